"""The SLO side of requests in one place: classes, the judge, the tally, and policies from files and flags."""

from sidecar.requests.judge import DEFAULT_SLO, Bucket, SloClass, Verdict, judge, nearest_rank, stalls
from sidecar.requests.slo_file import SloPolicy, SloRule, load_slo, parse_slo
from sidecar.requests.tally import Tally, why_not_eligible

__all__ = [
    "DEFAULT_SLO",
    "Bucket",
    "SloClass",
    "SloPolicy",
    "SloRule",
    "Tally",
    "Verdict",
    "judge",
    "load_slo",
    "nearest_rank",
    "parse_slo",
    "stalls",
    "why_not_eligible",
]
