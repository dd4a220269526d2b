"""The ``--slo`` option of the commands that judge recorded requests."""

from __future__ import annotations

import argparse
from pathlib import Path

from sidecar.requests.slo import SloPolicy, load_slo, parse_slo


def add_slo_option(parser: argparse.ArgumentParser) -> None:
    """Adds ``--slo``: a file, or bounds as ``ttft=0.5,tpot=0.05``."""
    parser.add_argument(
        "--slo", metavar="FILE|BOUNDS", help="SLO file, or bounds as ttft=0.5,tpot=50ms (default: built in)"
    )


def policy_from(value: str | None) -> SloPolicy:
    """The policy that the option names. Raises SettingsError."""
    if value is None:
        return SloPolicy()
    if "=" in value and not Path(value).exists():
        slo = parse_slo(value)
        return SloPolicy(slo, (slo,))
    return load_slo(value)
