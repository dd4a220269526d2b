"""The GPUs' part of the metrics page and of the status: power, activity, errors, energy, cost, utilisation.

``GPU_UTIL`` appears under a name that says what it is, and nothing here or elsewhere takes it for load.
Hardware series carry the board's UUID and nothing of a pod, a job or a request; what belongs together is
joined by ``goodput_gpu_info``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sidecar.derive.diagnosis import diagnose
from sidecar.derive.economics import Economics, economics
from sidecar.derive.gpu_now import (
    Use,
    clock_ratio,
    memory_ratio,
    power_limit,
    power_ratio,
    signals_now,
    slow,
    straggler_text,
    use_now,
)
from sidecar.derive.live import Live
from sidecar.gpu.advice import advice_for, words
from sidecar.gpu.fields import dcgm_fields, decode_reasons
from sidecar.gpu.incidents import Event
from sidecar.gpu.ownership import OwnGpu
from sidecar.gpu.watch import GpuState, GpuWatch
from sidecar.publish.exposition import Family
from sidecar.publish.gpu_catalog import GPU_METRICS

WINDOWS_S = {"5m": 300.0, "1h": 3600.0}
_SHOWN_EVENTS = 20

# Signal -> metric, as it is.
_GAUGES = {
    "power_watts": "goodput_gpu_power_watts",
    "sm_active_ratio": "goodput_gpu_sm_active_ratio",
    "sm_occupancy_ratio": "goodput_gpu_sm_occupancy_ratio",
    "tensor_active_ratio": "goodput_gpu_tensor_active_ratio",
    "dram_active_ratio": "goodput_gpu_dram_active_ratio",
    "kernel_resident_ratio": "goodput_gpu_kernel_resident_ratio",
    "sm_clock_hertz": "goodput_gpu_sm_clock_hertz",
    "memory_clock_hertz": "goodput_gpu_memory_clock_hertz",
    "temperature_celsius": "goodput_gpu_temperature_celsius",
    "memory_temperature_celsius": "goodput_gpu_memory_temperature_celsius",
    "memory_used_bytes": "goodput_gpu_memory_used_bytes",
    "energy_joules_total": "goodput_gpu_energy_joules_total",
    "pcie_replay_total": "goodput_gpu_pcie_replays_total",
}
_LABELLED = {
    "nvlink_tx_bytes_per_s": ("goodput_gpu_nvlink_bytes_per_second", "direction", "tx"),
    "nvlink_rx_bytes_per_s": ("goodput_gpu_nvlink_bytes_per_second", "direction", "rx"),
    "nvlink_bytes_per_s": ("goodput_gpu_nvlink_bytes_per_second", "direction", "both"),
    "nvlink_tx_bytes_total": ("goodput_gpu_nvlink_bytes_total", "direction", "tx"),
    "nvlink_rx_bytes_total": ("goodput_gpu_nvlink_bytes_total", "direction", "rx"),
    "pcie_tx_bytes_per_s": ("goodput_gpu_pcie_bytes_per_second", "direction", "tx"),
    "pcie_rx_bytes_per_s": ("goodput_gpu_pcie_bytes_per_second", "direction", "rx"),
    "pcie_bytes_per_s": ("goodput_gpu_pcie_bytes_per_second", "direction", "both"),
    "ecc_corrected_volatile_total": ("goodput_gpu_ecc_errors_total", "kind", "corrected"),
    "ecc_uncorrected_volatile_total": ("goodput_gpu_ecc_errors_total", "kind", "uncorrected"),
    "ecc_deferred_total": ("goodput_gpu_ecc_errors_total", "kind", "deferred"),
    "remapped_rows_correctable_total": ("goodput_gpu_remapped_rows_total", "kind", "correctable"),
    "remapped_rows_uncorrectable_total": ("goodput_gpu_remapped_rows_total", "kind", "uncorrectable"),
    "row_remap_pending": ("goodput_gpu_row_remap", "state", "pending"),
    "row_remap_failed": ("goodput_gpu_row_remap", "state", "failed"),
    "nvlink_crc_flit_errors_total": ("goodput_gpu_nvlink_errors_total", "kind", "crc_flit"),
    "nvlink_crc_data_errors_total": ("goodput_gpu_nvlink_errors_total", "kind", "crc_data"),
    "nvlink_replay_total": ("goodput_gpu_nvlink_errors_total", "kind", "replay"),
    "nvlink_recovery_total": ("goodput_gpu_nvlink_errors_total", "kind", "recovery"),
}


def gpu_families(watch: GpuWatch, live: Live, now_ns: int) -> list[Family]:
    """The families of the GPU part, in the catalogue's order."""
    page = {name: Family(name, kind, text) for name, kind, _, text in GPU_METRICS}
    state = watch.state
    _sources(page, watch)
    gpus = state.gpus(now_ns)
    for own in gpus:
        _board(page, state, own)
    _spread(page, state)
    _events(page, state)
    page["goodput_pod_energy_joules_total"].add(state.energy.joules if state.energy.joules else None)
    for name, window_s in WINDOWS_S.items():
        found = economics_now(state, now_ns, window_s)
        if found is not None:
            _economics(page, found, name)
    use = use_now(live.watch, gpus, state.settings.model, now_ns, WINDOWS_S["5m"])
    _use(page, use)
    return list(page.values())


def _sources(page: dict[str, Family], watch: GpuWatch) -> None:
    for source in watch.sources.values():
        if source.success is not None:
            page["goodput_gpu_source_up"].add(1 if source.success else 0, source=source.name)
        page["goodput_gpu_source_duration_seconds"].add(source.duration_s, source=source.name)
        for code, count in sorted(source.failures.items()):
            page["goodput_gpu_source_failures_total"].add(count, source=source.name, reason=code)


def _board(page: dict[str, Family], state: GpuState, own: OwnGpu) -> None:
    gpu = own.gpu
    board = {"gpu": gpu.uuid}
    labels = board if own.part is None else {**board, "instance": own.part.id}
    page["goodput_gpu_info"].add(
        1,
        **labels,
        index=gpu.index,
        model=gpu.model,
        pci=gpu.pci,
        node=gpu.node,
        driver=gpu.driver,
        profile=own.part.profile if own.part else "",
        sharing=own.sharing.value,
    )
    values = own.values()
    for signal, metric in _GAUGES.items():
        value = values.get(signal)
        if value is not None and metric.endswith("_ratio"):
            value = min(1.0, max(0.0, value))
        page[metric].add(value, **labels)
    for signal, (metric, label, word) in _LABELLED.items():
        page[metric].add(values.get(signal), **labels, **{label: word})
    limit = power_limit(own)
    if limit is not None:
        page["goodput_gpu_power_limit_watts"].add(limit[0], **labels, origin=limit[1])
    page["goodput_gpu_power_ratio"].add(power_ratio(own), **labels)
    page["goodput_gpu_sm_clock_ratio"].add(clock_ratio(own), **labels)
    page["goodput_gpu_memory_used_ratio"].add(memory_ratio(own), **labels)
    bits = values.get("clock_event_reasons")
    if bits is not None:
        for reason in decode_reasons(int(bits))[0]:
            page["goodput_gpu_clock_event"].add(1, **labels, reason=reason)
    for cause, share in sorted(state.throttle(gpu.uuid).items()):
        page["goodput_gpu_throttled_ratio"].add(share, **labels, cause=cause)
    action = values.get("recovery_action")
    if action is not None:
        name = dcgm_fields().recovery_actions.get(int(action), "other")
        page["goodput_gpu_recovery_action"].add(1, **labels, action=name)


def _spread(page: dict[str, Family], state: GpuState) -> None:
    for signal, found in state.standings.items():
        word = signal.removesuffix("_hertz").removesuffix("_watts").removesuffix("_celsius")
        for uuid, standing in found.items():
            page["goodput_gpu_peer_ratio"].add(standing.ratio, gpu=uuid, signal=word)
            page["goodput_gpu_outlier_score"].add(standing.score, gpu=uuid, signal=word)
    for spread, engines in state.engines.standings().items():
        for engine, standing in engines.items():
            page["goodput_engine_peer_ratio"].add(standing.ratio, engine=engine, signal=spread)
            page["goodput_engine_outlier_score"].add(standing.score, engine=engine, signal=spread)


def _events(page: dict[str, Family], state: GpuState) -> None:
    watched = page["goodput_gpu_xid_watched"]
    watched.add(1 if state.kernel_log_watched else 0, source="kernel_log")
    shown = any("last_xid" in own.values() or own.gpu.xid_counts for own in state.owned.gpus)
    watched.add(1 if shown and not state.kernel_log_watched else 0, source="dcgm")
    for code, count in sorted(state.incidents.xids.items()):
        advice = advice_for(code)
        page["goodput_gpu_xid_events_total"].add(
            count,
            code=str(code) if code >= 0 else "other",
            advisory=advice.advisory,
            scope="_or_".join(advice.scope) or "unknown",
            containment=advice.containment,
        )
    for code, count in sorted(state.incidents.sxids.items()):
        page["goodput_gpu_sxid_events_total"].add(count, code=str(code) if code >= 0 else "other")


def economics_now(state: GpuState, now_ns: int, window_s: float) -> Economics | None:
    """Energy and cost of one window, tokens and joules between the same two looks; ``None`` without two."""
    used = state.energy.usage(now_ns, window_s)
    if used is None:
        return None
    return economics(
        board_w=used.watts,
        tokens_per_s=used.tokens / used.elapsed_s,
        good_tokens_per_s=used.good_tokens / used.elapsed_s,
        occupancy=used.occupancy,
        prices=state.settings.prices,
        gpus_seen=len({own.gpu.uuid for own in state.owned.gpus}),
    )


def _economics(page: dict[str, Family], found: Economics, window: str) -> None:
    at = {"window": window}
    page["goodput_power_watts"].add(found.board_w, **at, scope="boards")
    page["goodput_power_watts"].add(found.facility_w, **at, scope="facility")
    for metric, boards, facility in (
        ("goodput_tokens_per_joule", found.tokens_per_joule, found.facility_tokens_per_joule),
        ("goodput_good_tokens_per_joule", found.good_tokens_per_joule, found.facility_good_tokens_per_joule),
    ):
        page[metric].add(boards, **at, scope="boards")
        page[metric].add(facility, **at, scope="facility")
    page["goodput_joules_per_good_token"].add(found.joules_per_good_token, **at, scope="boards")
    page["goodput_engine_busy_ratio"].add(found.occupancy, **at)
    for tokens, used, busy in (
        ("all", found.usd_per_million, found.usd_per_million_busy),
        ("good", found.usd_per_million_good, found.usd_per_million_good_busy),
    ):
        page["goodput_usd_per_1m_tokens"].add(used, **at, tokens=tokens, basis="as_used")
        page["goodput_usd_per_1m_tokens"].add(busy, **at, tokens=tokens, basis="full_use")


def _use(page: dict[str, Family], use: Use) -> None:
    for metric, ratio in (("goodput_mfu_ratio", use.mfu), ("goodput_mbu_ratio", use.mbu)):
        if ratio is not None:
            source = "estimated" if ratio.estimated else "engine"
            page[metric].add(ratio.value, peak=ratio.against, source=source)
    if use.batch_step is not None:
        page["goodput_roofline_step_seconds"].add(use.batch_step.memory_s, roof="memory")
        page["goodput_roofline_step_seconds"].add(use.batch_step.compute_s, roof="compute")


def gpu_status(watch: GpuWatch, live: Live, now_ns: int) -> dict[str, Any]:
    """The GPU part of ``/goodput.json``. Unknown is ``None``."""
    state = watch.state
    gpus = state.gpus(now_ns)
    window_s = WINDOWS_S["5m"]
    use = use_now(live.watch, gpus, state.settings.model, now_ns, window_s)
    found = economics_now(state, now_ns, window_s)
    diagnoses = diagnose(signals_now(state, live.watch, use, now_ns, window_s)) if gpus else []
    worst = slow(state.stragglers)
    return {
        "sources": [
            {"name": one.name, "up": one.success, "reason": one.reason} for one in watch.sources.values()
        ],
        "gpus": [_gpu_status(state, own) for own in gpus],
        "notes": state.notes(now_ns),
        "straggler": straggler_text(worst) if worst else None,
        "energy": None
        if found is None
        else {
            "window": "5m",
            "board_watts": found.board_w,
            "facility_watts": found.facility_w,
            "tokens_per_joule": found.tokens_per_joule,
            "good_tokens_per_joule": found.good_tokens_per_joule,
            "joules_per_good_token": found.joules_per_good_token,
            "usd_per_million_tokens": found.usd_per_million,
            "usd_per_million_good_tokens": found.usd_per_million_good,
            "occupancy": found.occupancy,
        },
        "utilisation": {
            "mfu": use.mfu.value if use.mfu else None,
            "mfu_peak": use.mfu.against if use.mfu else None,
            "mbu": use.mbu.value if use.mbu else None,
            "mbu_peak": use.mbu.against if use.mbu else None,
            "estimated": any(ratio.estimated for ratio in (use.mfu, use.mbu) if ratio is not None),
            "bound": use.batch_step.bound if use.batch_step else None,
            "why_not": use.why_not,
        },
        "diagnosis": [
            {
                "name": one.name,
                "what": one.what,
                "evidence": list(one.evidence),
                "tell_apart": one.tell_apart,
                "unknown": one.unknown,
            }
            for one in diagnoses
        ],
        "xids_watched": state.kernel_log_watched,
        "events": list(_event_rows(state, state.incidents.events[-_SHOWN_EVENTS:])),
    }


def _gpu_status(state: GpuState, own: OwnGpu) -> dict[str, Any]:
    values = own.values()
    return {
        "uuid": own.gpu.uuid,
        "name": own.gpu.name,
        "model": own.gpu.model,
        "instance": own.part.id if own.part else None,
        "sharing": own.sharing.value,
        "power_watts": values.get("power_watts"),
        "power_ratio": power_ratio(own),
        "sm_clock_ratio": clock_ratio(own),
        "tensor_active": own.gpu.ratio("tensor_active_ratio") if own.part is None else None,
        "dram_active": own.gpu.ratio("dram_active_ratio") if own.part is None else None,
        "temperature_celsius": values.get("temperature_celsius"),
        "throttle_reasons": list(state.reasons(own.gpu)),
    }


def _event_rows(state: GpuState, events: Iterable[Event]) -> Iterable[dict[str, Any]]:
    boards = {own.gpu.uuid: own for own in state.owned.gpus}
    for event in events:
        yield {
            "kind": event.kind.lower(),
            "code": event.code,
            "name": event.advice.name,
            "gpu": event.uuid,
            "pci": event.report.pci,
            "source": event.source,
            "cause_candidate": event.cause,
            "containment": event.advice.containment,
            "advisory": event.advisory,
            "advice": words(event.advisory),
            "look_beside": list(event.advice.look_beside),
            "beside": _beside(boards.get(event.uuid or "")),
        }


def _beside(own: OwnGpu | None) -> dict[str, Any]:
    """What of it can be seen from here, now: memory repair and the driver's own word. ``None``: not known."""
    values = own.values() if own is not None else {}
    action = values.get("recovery_action")
    return {
        "row_remap_pending": values.get("row_remap_pending"),
        "row_remap_failed": values.get("row_remap_failed"),
        "ecc_uncorrected": values.get("ecc_uncorrected_volatile_total"),
        "recovery_action": None
        if action is None
        else dcgm_fields().recovery_actions.get(int(action), "other"),
    }
