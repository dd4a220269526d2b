"""Several classes of requests in one load, each with a weight of its own. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from loadgen.workload.lengths import Lengths
from loadgen.workload.prompts import Calibration
from loadgen.workload.sessions import Session
from loadgen.workload.spec import PreparedRequest, RequestMaker, Workload
from loadgen.workload.traces import Trace
from sidecar.requests.records import Api


@dataclass(frozen=True, slots=True)
class Mix:
    """The classes of a load. A single class without a name is the plain case."""

    classes: tuple[Workload, ...] = (Workload(),)
    name: str = ""  # of the recipe or file it came from

    def weigh(self, figure: Callable[[Workload], float]) -> float:
        """The weighted mean of a figure over the classes."""
        total = sum(workload.weight for workload in self.classes)
        return sum(workload.weight * figure(workload) for workload in self.classes) / total

    @property
    def own_hit_rate(self) -> float | None:
        """Share of prompt tokens that the classes share on purpose; ``None`` where one of them cannot
        tell.
        """
        rates = [workload.own_hit_rate for workload in self.classes]
        if None in rates:
            return None
        found = self.weigh(lambda w: (w.own_hit_rate or 0.0) * w.prompt_tokens.mean)
        return found / self.weigh(lambda w: w.prompt_tokens.mean)

    @property
    def talks(self) -> bool:
        """True where a class has conversations: its users think, and are then not in flight."""
        return any(workload.turns is not None for workload in self.classes)

    def to_json(self) -> dict[str, Any]:
        """For the report: a single class as it stands, several under their names."""
        if len(self.classes) == 1 and not self.classes[0].name:
            return self.classes[0].to_json()
        return {
            **({"recipe": self.name} if self.name else {}),
            "classes": {workload.name: workload.to_json() for workload in self.classes},
        }


def mix_from(values: dict[str, Any]) -> Mix:
    """A mix as it was before it travelled as plain values."""
    classes = []
    for value in values["classes"]:
        plain = dict(value)
        for name in ("prompt_tokens", "output_tokens", "turns"):
            if plain[name] is not None:
                plain[name] = Lengths(**{**plain[name], "values": tuple(plain[name]["values"])})
        classes.append(Workload(**plain))
    return Mix(tuple(classes), values["name"])


class MixMaker:
    """Makes the requests of one worker: serials ``worker``, ``worker + workers``, ... of each level.

    Which class a serial number falls to depends on nothing but seed, level and serial.
    """

    def __init__(
        self,
        mix: Mix,
        *,
        model: str,
        seed: int,
        calibration: Calibration,
        head_of: Callable[[Workload], bytes],
        trace: Trace | None = None,
        context_tokens: int | None = None,
    ) -> None:
        self.trace = trace
        self._seed = seed
        self._makers = [
            RequestMaker(
                workload,
                model=model,
                seed=seed,
                calibration=calibration,
                head=head_of(workload),
                context_tokens=context_tokens,
            )
            for workload in mix.classes
        ]
        self._cumulative = list(accumulate(workload.weight for workload in mix.classes))

    @property
    def api(self) -> Api:
        """The API of the first class."""
        return self._makers[0].api

    def make(self, level: int, serial: int) -> PreparedRequest:
        """The request with this serial number of this level; the same arguments give the same bytes."""
        row = None if self.trace is None else self.trace.row(serial)
        return self._maker_of(level, serial).make(level, serial, row)

    def session(self, level: int, serial: int) -> Session | None:
        """The conversation with this serial number; ``None`` where it falls to a class of single requests."""
        return self._maker_of(level, serial).session(level, serial)

    def _maker_of(self, level: int, serial: int) -> RequestMaker:
        if len(self._makers) == 1:
            return self._makers[0]
        rng = random.Random(hash((self._seed, level, serial, 1)))
        return rng.choices(self._makers, cum_weights=self._cumulative)[0]
