"""Label values that cannot grow without bound: what clients send never becomes a label as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

OTHER = "__other__"


@dataclass(slots=True)
class ModelNames:
    """Which model names may stand as a label.

    Once the server has said what it serves, only that. Until then the names of requests that the server
    answered successfully, at most ``limit`` of them. Everything else is ``__other__``.
    """

    limit: int = 32
    served: frozenset[str] = frozenset()
    _seen: set[str] = field(default_factory=set)

    def serve(self, names: frozenset[str]) -> None:
        """Names that the server says it serves, beside those it said before: adapters come and go, and their
        series should not. Beyond the limit new names are not taken up."""
        room = self.limit - len(self.served)
        self.served |= frozenset(sorted(names - self.served)[: max(room, 0)])

    def label(self, model: str, *, answered: bool) -> str:
        """The label of a request for ``model``; ``answered``: the server gave it a 2xx."""
        if self.served:
            if model in self.served:
                return model
            # A request may leave the model out when there is only one.
            return next(iter(self.served)) if not model and answered and len(self.served) == 1 else OTHER
        if model in self._seen:
            return model
        if model and answered and len(self._seen) < self.limit:
            self._seen.add(model)
            return model
        return OTHER


@dataclass(slots=True)
class Bounded:
    """The first ``limit`` distinct values as they are, all others ``__other__``."""

    limit: int
    _seen: set[str] = field(default_factory=set)

    def label(self, value: str) -> str:
        """``value`` or ``__other__``."""
        if value in self._seen:
            return value
        if len(self._seen) < self.limit:
            self._seen.add(value)
            return value
        return OTHER
