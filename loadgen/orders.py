"""What the sweep tells a Locust process, as plain values: built on one side, read on the other. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from loadgen.address import Target
from loadgen.arrivals import Arrivals
from loadgen.plan import LevelPlan
from loadgen.workload.mix import Mix, mix_from
from loadgen.workload.prompts import Calibration


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a Locust process must know once, before its first level."""

    target: Target
    mix: Mix
    model: str
    seed: int
    calibration: Calibration
    workers: int = 1  # processes to start
    timeout_s: float = 600.0
    trace: str = ""  # file or sample to replay, read by each process itself
    context_tokens: int | None = None  # what the model takes; longer rows of a trace are cut
    api_key: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)


def setup_order(setup: Setup) -> dict[str, Any]:
    """The order as msgpack can carry it."""
    return {"do": "setup", **asdict(setup)}


def setup_from(order: dict[str, Any]) -> Setup:
    """The other end of `setup_order`."""
    values = {name: value for name, value in order.items() if name != "do"}
    values["mix"] = mix_from(values["mix"])
    values["target"] = Target(**values["target"])
    values["calibration"] = Calibration(
        **{**values["calibration"], "ids": tuple(values["calibration"]["ids"])}
    )
    return Setup(**values)


def level_order(plan: LevelPlan, worker: int = 0, workers: int = 1) -> dict[str, Any]:
    """The order to run one level, as one of so many processes: dealt anew each level, should one be lost."""
    return {"do": "level", "plan": asdict(plan), "worker": worker, "workers": workers}


def plan_from(values: dict[str, Any]) -> LevelPlan:
    """The plan of a `level_order`."""
    return LevelPlan(**{**values, "arrivals": Arrivals(**values["arrivals"])})
