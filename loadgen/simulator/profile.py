"""What the simulator pretends to be: the machine, the model on it, the workload its curve is stated for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from sidecar.errors import UserError
from sidecar.user_yaml import parse_value, read_text

PROFILES_FILE = "profiles.yaml"


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers drawn evenly from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise UserError(f"a length span needs 1 <= low <= high, got [{self.low}, {self.high}]")

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def variance(self) -> float:
        """Of the even distribution on whole numbers: (m^2 - 1) / 12 for m values."""
        return ((self.high - self.low + 1) ** 2 - 1) / 12


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompt and output lengths in tokens, each request drawn independently."""

    prompt_tokens: Span
    output_tokens: Span


@dataclass(frozen=True, slots=True)
class Bounds:
    """SLO bounds in seconds, inclusive; ``None`` is no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    max_gap_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """One simulated server. Sizes in bytes, tokens or sequences; rates per second; times in seconds."""

    name: str
    description: str
    model_name: str
    params: float  # parameters read and multiplied for each token
    bytes_per_param: float
    layers: int
    kv_heads: int
    head_dim: int
    kv_dtype_bytes: int
    peak_flops: float  # dense, of the whole replica
    bandwidth_bytes_per_s: float
    step_overhead_s: float  # stated: launch, scheduling; paid once a step
    sequence_overhead_s: float  # stated: sampling, input preparation; paid for each sequence of a step
    block_size: int  # tokens in one KV block
    kv_blocks: int
    max_batch: int  # sequences in one step (vLLM: max_num_seqs)
    max_batched_tokens: int  # tokens in one step; longer prompts are chunked
    max_model_len: int
    answer_tokens: Span  # where the model stops of itself, unless told to ignore that
    workload: Workload
    slo: Bounds

    def __post_init__(self) -> None:
        positive = (
            "params bytes_per_param layers kv_heads head_dim kv_dtype_bytes peak_flops bandwidth_bytes_per_s "
            "block_size kv_blocks max_batch max_batched_tokens max_model_len"
        )
        for key in positive.split():
            if getattr(self, key) <= 0:
                raise UserError(f"profile {self.name}: {key} must be greater than 0")
        for key in ("step_overhead_s", "sequence_overhead_s"):
            if getattr(self, key) < 0:
                raise UserError(f"profile {self.name}: {key} must not be negative")
        # vLLM refuses to start here too: a lone sequence that cannot fit would wait for ever.
        if self.kv_blocks * self.block_size < self.max_model_len:
            raise UserError(
                f"profile {self.name}: kv_blocks x block_size ({self.kv_blocks * self.block_size} tokens) "
                f"must hold max_model_len ({self.max_model_len})"
            )
        if self.workload.prompt_tokens.high + self.workload.output_tokens.high > self.max_model_len:
            raise UserError(
                f"profile {self.name}: workload is longer than max_model_len ({self.max_model_len})"
            )

    @property
    def weight_bytes(self) -> float:
        return self.params * self.bytes_per_param

    @property
    def kv_bytes_per_token(self) -> int:
        """Key and value of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.kv_dtype_bytes

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold ``tokens`` tokens."""
        return -(-tokens // self.block_size)


def _span(where: str, value: Any) -> Span:
    if isinstance(value, int) and not isinstance(value, bool):
        return Span(value, value)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, int) for v in value):
        return Span(value[0], value[1])
    raise UserError(f"{where}: expected a whole number or [low, high], got {value!r}")


def _section(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a mapping, got {value!r}")
    return value


def _known(where: str, section: Mapping[str, Any], known: set[str], required: set[str]) -> None:
    if extra := sorted(set(map(str, section)) - known):
        raise UserError(f"{where}: unknown key {extra[0]!r}; known: {', '.join(sorted(known))}")
    if missing := sorted(required - set(section)):
        raise UserError(f"{where}: missing key {missing[0]!r}")


def profile_from(name: str, raw: Any, *, where: str = PROFILES_FILE) -> Profile:
    """A profile from its YAML mapping; raises :class:`UserError` naming file and key."""
    here = f"{where}: {name}"
    section = _section(here, raw)
    own = {f.name for f in fields(Profile)} - {"name"}
    _known(here, section, own, own)
    workload = _section(f"{here}.workload", section["workload"])
    lengths = {"prompt_tokens", "output_tokens"}
    _known(f"{here}.workload", workload, lengths, lengths)
    slo = _section(f"{here}.slo", section["slo"])
    bounds = {f.name: f for f in fields(Bounds)}
    _known(f"{here}.slo", slo, set(bounds), {k for k, f in bounds.items() if f.default is MISSING})
    for key, bound in slo.items():
        if bound is not None and (
            isinstance(bound, bool) or not isinstance(bound, (int, float)) or bound < 0
        ):
            raise UserError(f"{here}.slo.{key}: expected seconds, got {bound!r}")
    values: dict[str, Any] = {}
    for f in fields(Profile):
        if f.name in ("name", "workload", "slo", "answer_tokens"):
            continue
        value = section[f.name]
        kind = {"str": str, "int": int, "float": (int, float)}[str(f.type)]
        if isinstance(value, bool) or not isinstance(value, kind):  # type: ignore[arg-type]
            raise UserError(f"{here}.{f.name}: expected {f.type}, got {value!r}")
        values[f.name] = float(value) if f.type == "float" else value
    return Profile(
        name=name,
        answer_tokens=_span(f"{here}.answer_tokens", section["answer_tokens"]),
        workload=Workload(
            _span(f"{here}.workload.prompt_tokens", workload["prompt_tokens"]),
            _span(f"{here}.workload.output_tokens", workload["output_tokens"]),
        ),
        slo=Bounds(**{k: float(v) for k, v in slo.items() if v is not None}),
        **values,
    )


def parse_profiles(text: str, *, where: str) -> dict[str, Profile]:
    """Profiles by name from YAML text; raises :class:`UserError` naming ``where`` and the key."""
    raw = parse_value(text, where)
    return {
        str(name): profile_from(str(name), one, where=where) for name, one in _section(where, raw).items()
    }


@cache
def profiles() -> Mapping[str, Profile]:
    """The built-in profiles by name, from the package's ``profiles.yaml``."""
    text = resources.files("loadgen.simulator").joinpath(PROFILES_FILE).read_text(encoding="utf-8")
    return parse_profiles(text, where=PROFILES_FILE)


def find_profile(name: str, path: str | None = None) -> Profile:
    """The profile of that name, built in or from the file ``path``; :class:`UserError` lists the names."""
    if path is None:
        known, where = profiles(), "built in"
    else:
        known = parse_profiles(read_text(path), where=path)
        where = f"in {path}"
    if name not in known:
        raise UserError(f"unknown profile {name!r}; {where}: {', '.join(sorted(known))}")
    return known[name]
