"""Energy and money per token, and per good token. Pure.

Watts are the increase of the boards' energy counters over time. Board power is not facility power: host
overhead and PUE are separate, stated factors, and both figures are shown. Nothing per token is known where no
token was made: absent, never infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sidecar.engine.series import increase


def mean_watts(energy_j: Sequence[tuple[float, float | None]]) -> float | None:
    """Of one board: energy counter samples ``(seconds, joules or None)``; reset-aware. ``None``: unknown."""
    return increase(energy_j).rate


def tokens_per_joule(tokens_per_s: float, watts: float) -> float | None:
    """``None`` where no energy was used."""
    return tokens_per_s / watts if watts > 0 else None


def joules_per_token(tokens_per_s: float, watts: float) -> float | None:
    """``None`` where no token was made."""
    return watts / tokens_per_s if tokens_per_s > 0 else None


def usd_per_million_tokens(
    usd_per_gpu_hour: float, gpus: float, tokens_per_s: float, occupancy: float = 1.0
) -> float | None:
    """price x GPUs / (tokens/s x 3600 x occupancy) x 10^6.

    ``tokens_per_s`` is of all GPUs of the replica while it works, ``occupancy`` the share of paid time in
    which it does: allocation is not use. ``None`` where either is 0.
    """
    made = tokens_per_s * 3600 * occupancy
    return usd_per_gpu_hour * gpus / made * 1e6 if made > 0 else None


def facility_watts(
    board_w: float, *, host_w: float = 0.0, server_factor: float = 1.0, pue: float = 1.0
) -> float:
    """(boards x server factor + host) x PUE.

    ``server_factor`` scales with the boards' draw (fans, supplies), ``host_w`` is a constant share of CPUs
    and the rest, PUE = total facility power / IT power.
    """
    return (board_w * server_factor + host_w) * pue


def highest_mean_occupancy(peak_to_mean: float) -> float:
    """A replica sized for the peak is used at most this much on average, without batch work to fill it."""
    return 1.0 / peak_to_mean


@dataclass(frozen=True, slots=True)
class Prices:
    """What the user says of money and overhead. ``None`` price: costs are not shown."""

    usd_per_gpu_hour: float | None = None
    gpus: int | None = None  # paid for; else as many as are seen
    host_w: float = 0.0
    server_factor: float = 1.0
    pue: float = 1.0


@dataclass(frozen=True, slots=True)
class Economics:
    """One window. ``None``: not known. Rates per second, watts, tokens per joule, US dollars."""

    board_w: float | None
    facility_w: float | None
    tokens_per_s: float
    good_tokens_per_s: float
    tokens_per_joule: float | None
    good_tokens_per_joule: float | None
    joules_per_good_token: float | None
    facility_tokens_per_joule: float | None
    facility_good_tokens_per_joule: float | None
    usd_per_million: float | None
    usd_per_million_good: float | None
    usd_per_million_busy: float | None  # at full use: idle time of the window left out
    usd_per_million_good_busy: float | None
    occupancy: float | None


def economics(
    *,
    board_w: float | None,
    tokens_per_s: float,
    good_tokens_per_s: float,
    occupancy: float | None,
    prices: Prices,
    gpus_seen: int,
) -> Economics:
    """All figures of one window. ``tokens_per_s`` are means over the whole window, idle time included, so the
    plain cost is already divided by occupancy; the ``busy`` cost is what it would be without the idle time.
    ``occupancy``: share of the window in which the engine had work, ``None`` unknown."""
    facility_w = (
        None
        if board_w is None
        else facility_watts(board_w, host_w=prices.host_w, server_factor=prices.server_factor, pue=prices.pue)
    )
    gpus = prices.gpus if prices.gpus is not None else gpus_seen

    def per_joule(rate: float, watts: float | None) -> float | None:
        return None if watts is None else tokens_per_joule(rate, watts)

    def cost(rate: float, *, busy: bool) -> float | None:
        if prices.usd_per_gpu_hour is None or gpus <= 0:
            return None
        if busy:
            if not occupancy:
                return None
            rate = rate / occupancy
        return usd_per_million_tokens(prices.usd_per_gpu_hour, gpus, rate)

    return Economics(
        board_w=board_w,
        facility_w=facility_w,
        tokens_per_s=tokens_per_s,
        good_tokens_per_s=good_tokens_per_s,
        tokens_per_joule=per_joule(tokens_per_s, board_w),
        good_tokens_per_joule=per_joule(good_tokens_per_s, board_w),
        joules_per_good_token=None if board_w is None else joules_per_token(good_tokens_per_s, board_w),
        facility_tokens_per_joule=per_joule(tokens_per_s, facility_w),
        facility_good_tokens_per_joule=per_joule(good_tokens_per_s, facility_w),
        usd_per_million=cost(tokens_per_s, busy=False),
        usd_per_million_good=cost(good_tokens_per_s, busy=False),
        usd_per_million_busy=cost(tokens_per_s, busy=True),
        usd_per_million_good_busy=cost(good_tokens_per_s, busy=True),
        occupancy=occupancy,
    )
