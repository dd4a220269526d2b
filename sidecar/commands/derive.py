"""``goodput-sidecar derive mfu|roofline|cost``: the sums behind the figures, from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from sidecar.derive import economics as eco
from sidecar.derive import roofline as roof
from sidecar.derive import utilisation as use
from sidecar.errors import UserError
from sidecar.gpu.peaks import Peak, all_peaks, canonical_dtype, find_peak_of

_MAX_STEPS_BYTES = 64 * 1024 * 1024


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "derive",
        help="do the sums: MFU and MBU, the roofline of a batch, cost and energy per token",
        description="Model FLOPs utilisation, roofline and cost from numbers that you give. Every ratio says "
        "which peak it divides by.",
    )
    kinds = parser.add_subparsers(title="sums", metavar="mfu|roofline|cost", required=True)
    _add_mfu(kinds)
    _add_roofline(kinds)
    _add_cost(kinds)


def _number(low: float, *, above: bool = False) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (value > low if above else value >= low) or value == float("inf"):
            sign = "above" if above else "at least"
            raise argparse.ArgumentTypeError(f"must be a number {sign} {low:g}, not {text!r}")
        return value

    return read


_POSITIVE = _number(0, above=True)
_NOT_NEGATIVE = _number(0)


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="product name or key, like H100-SXM (see --list-devices)")
    parser.add_argument("--dtype", default="bf16", help="dtype the multiplications run in (default bf16)")
    parser.add_argument("--peak-tflops", type=_POSITIVE, help="dense peak of one GPU, instead of the table's")
    parser.add_argument("--bandwidth-gb-s", type=_POSITIVE, help="memory bandwidth of one GPU, GB/s")
    parser.add_argument("--list-devices", action="store_true", help="list the known devices and stop")
    parser.add_argument("--json", action="store_true", help="print JSON for tools")


def _add_mfu(kinds: Any) -> None:
    parser = kinds.add_parser(
        "mfu",
        help="model FLOPs (and bandwidth) utilisation, of inference or training",
        description="MFU = tokens/s x FLOPs per token / (GPUs x dense peak). Inference counts 2N + 4LHS "
        "FLOPs a token, training 6N + 12LHS.",
    )
    parser.add_argument("--params", type=_POSITIVE, help="parameters (active ones of a mixture)")
    parser.add_argument("--gpus", type=_POSITIVE, default=1.0, help="GPUs together (default 1)")
    parser.add_argument("--tokens-per-s", type=_NOT_NEGATIVE, help="tokens a second of all GPUs")
    parser.add_argument("--training", action="store_true", help="training instead of inference")
    parser.add_argument("--layers", type=_NOT_NEGATIVE, default=0, help="layers, for the attention term")
    parser.add_argument("--hidden", type=_NOT_NEGATIVE, default=0, help="hidden size, for the attention term")
    parser.add_argument("--context", type=_NOT_NEGATIVE, default=0, help="tokens attended to on average")
    parser.add_argument("--bytes-per-s", type=_NOT_NEGATIVE, help="bytes moved a second of all GPUs, for MBU")
    parser.add_argument("--tokens-per-step", type=_POSITIVE, help="training: tokens of one step")
    parser.add_argument("--step-s", type=_POSITIVE, help="training: seconds of one step")
    parser.add_argument(
        "--rank-times",
        metavar="FILE",
        help="training: compute seconds, a line a step, a "
        "number a rank; gives the step time and the slowest rank",
    )
    parser.add_argument(
        "--collective-s", type=_NOT_NEGATIVE, default=0.0, help="seconds of communication a step"
    )
    _add_device(parser)
    parser.set_defaults(run=_mfu)


def _add_roofline(kinds: Any) -> None:
    parser = kinds.add_parser(
        "roofline",
        help="how far a batch is from the memory and the compute roof",
        description="step = max(bytes / bandwidth, FLOPs / peak). An upper bound: attention FLOPs and kernel "
        "overhead are left out.",
    )
    parser.add_argument("--params", type=_POSITIVE, help="parameters (active ones of a mixture)")
    parser.add_argument(
        "--weight-bytes", type=_POSITIVE, help="bytes of weights read a step (default 2 a parameter)"
    )
    parser.add_argument("--layers", type=_POSITIVE, help="layers")
    parser.add_argument("--kv-heads", type=_POSITIVE, help="KV heads")
    parser.add_argument("--head-dim", type=_POSITIVE, help="size of a head")
    parser.add_argument(
        "--kv-dtype-bytes", type=_POSITIVE, default=2.0, help="bytes of a KV number (default 2)"
    )
    parser.add_argument("--kv-bytes-per-token", type=_NOT_NEGATIVE, help="instead of layers, heads and size")
    parser.add_argument(
        "--batch", default="1,8,32,64,128", help="batches, comma separated (default %(default)s)"
    )
    parser.add_argument(
        "--context", type=_NOT_NEGATIVE, default=2048, help="tokens of a sequence (default 2048)"
    )
    parser.add_argument("--gpus", type=_POSITIVE, default=1.0, help="GPUs that share the model (default 1)")
    parser.add_argument("--memory-gb", type=_POSITIVE, help="memory of one GPU, decimal GB")
    _add_device(parser)
    parser.set_defaults(run=_roofline)


def _add_cost(kinds: Any) -> None:
    parser = kinds.add_parser(
        "cost",
        help="$ per million tokens, tokens per joule, board and facility power",
        description="price x GPUs / (tokens/s x 3600 x occupancy) x 10^6; tokens per joule of the boards and "
        "of the facility.",
    )
    parser.add_argument("--usd-per-gpu-hour", type=_NOT_NEGATIVE, help="price of one GPU for an hour")
    parser.add_argument("--gpus", type=_POSITIVE, default=1.0, help="GPUs of the replica (default 1)")
    parser.add_argument("--tokens-per-s", type=_NOT_NEGATIVE, required=True, help="output tokens a second")
    parser.add_argument("--good-tokens-per-s", type=_NOT_NEGATIVE, help="those of good requests")
    parser.add_argument(
        "--occupancy", type=_number(0), default=1.0, help="share of paid time at work (default 1)"
    )
    parser.add_argument(
        "--peak-to-mean", type=_number(1), help="peak load over mean load: bounds the occupancy"
    )
    parser.add_argument("--watts", type=_POSITIVE, help="draw of all boards")
    parser.add_argument("--host-watts", type=_NOT_NEGATIVE, default=0.0, help="constant draw of the host")
    parser.add_argument(
        "--server-factor", type=_number(1), default=1.0, help="server over board power (default 1)"
    )
    parser.add_argument("--pue", type=_number(1), default=1.0, help="facility over IT power (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON for tools")
    parser.set_defaults(run=_cost)


def _print(args: argparse.Namespace, data: dict[str, Any], lines: list[str]) -> int:
    sys.stdout.write(json.dumps({"format": 1, **data}) + "\n" if args.json else "\n".join(lines) + "\n")
    return 0


def _devices() -> int:
    seen = dict.fromkeys(peak.key for peak in all_peaks())
    sys.stdout.write("\n".join(seen) + "\n")
    return 0


def _need(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(args, name) is None:
            raise UserError(f"derive {args.sum}: give --{name.replace('_', '-')}")


def _peak(args: argparse.Namespace) -> Peak | None:
    if args.device is None:
        return None
    peak = find_peak_of(args.device)
    if peak is None:
        raise UserError(
            f"--device {args.device}: not in the table, and no family is guessed; give --peak-tflops and "
            "--bandwidth-gb-s, or one of --list-devices"
        )
    return peak


def _flops(args: argparse.Namespace) -> tuple[float, str]:
    peak = _peak(args)
    dtype = canonical_dtype(args.dtype)
    if args.peak_tflops is not None:
        return args.peak_tflops * 1e12, f"{args.peak_tflops:g} TFLOPS {dtype} as given (taken as dense)"
    if peak is None:
        raise UserError(f"derive {args.sum}: give --device or --peak-tflops")
    dense = peak.dense(args.dtype)
    if dense is None:
        raise UserError(
            f"--dtype {args.dtype}: no dense peak of {peak.key} is known for it; give --peak-tflops"
        )
    return dense, peak.describe(args.dtype)


def _bandwidth(args: argparse.Namespace) -> tuple[float, str]:
    peak = _peak(args)
    if args.bandwidth_gb_s is not None:
        return args.bandwidth_gb_s * 1e9, f"{args.bandwidth_gb_s:g} GB/s as given"
    if peak is None:
        raise UserError(f"derive {args.sum}: give --device or --bandwidth-gb-s")
    doubt = ", doubtful" if peak.doubtful else ""
    return peak.bandwidth_bytes_per_s, f"{peak.key} {peak.bandwidth_bytes_per_s / 1e9:g} GB/s{doubt}"


def _mfu(args: argparse.Namespace) -> int:
    args.sum = "mfu"
    if args.list_devices:
        return _devices()
    _need(args, "params")
    peak_flops, against = _flops(args)
    slowest, step_s = _ranks(args)
    rate = args.tokens_per_s
    if rate is None:
        if args.tokens_per_step is None or step_s is None:
            raise UserError(
                "derive mfu: give --tokens-per-s, or --tokens-per-step with --step-s or --rank-times"
            )
        rate = args.tokens_per_step / step_s
    per_token = (use.training_flops_per_token if args.training else use.decode_flops_per_token)(
        args.params, args.layers, args.hidden, args.context
    )
    value = use.mfu(rate, per_token, args.gpus, peak_flops)
    assert value is not None
    data: dict[str, Any] = {
        "mfu": value,
        "divided_by": against,
        "peak_flops": peak_flops,
        "gpus": args.gpus,
        "tokens_per_s": rate,
        "flops_per_token": per_token,
        "training": args.training,
    }
    kind = "training" if args.training else "inference, forward pass"
    lines = [
        f"MFU {value:.2%} of {args.gpus:g} x {against}",
        f"  {rate:,.1f} tokens/s, {per_token:.4g} FLOPs each ({kind})",
    ]
    if args.layers and args.hidden and args.context:
        share = use.attention_share(args.params, args.layers, args.hidden, args.context)
        data["attention_share"] = share
        lines.append(f"  attention is {share:.1%} of them")
    if args.training:
        data["verdict"] = use.training_verdict(value)
        lines.append(f"  for dense training that is {data['verdict']} (35 to 50 % is normal)")
    else:
        lines.append("  decode is memory bound: single digits are normal, MBU is the measure")
    if args.bytes_per_s is not None:
        bandwidth, what = _bandwidth(args)
        data["mbu"] = use.mbu(args.bytes_per_s, args.gpus, bandwidth)
        lines.append(f"MBU {data['mbu']:.2%} of {args.gpus:g} x {what}")
    if step_s is not None:
        data["step_s"] = step_s
        lines.append(f"step {step_s:.4g} s")
    if slowest is not None:
        data["slowest_rank"] = {
            "rank": slowest.rank,
            "mean_s": slowest.mean_s,
            "median_s": slowest.median_s,
            "steps_slowest": slowest.steps_slowest,
            "steps": slowest.steps,
            "z": slowest.z,
        }
        stands = "" if slowest.z is None else f", {slowest.z:.1f} standard errors above the median"
        lines.append(
            f"slowest rank {slowest.rank}: {slowest.slowdown:.3f} x the median time{stands}; slowest in "
            f"{slowest.steps_slowest} of {slowest.steps} steps"
        )
    return _print(args, data, lines)


def _ranks(args: argparse.Namespace) -> tuple[use.Slowest | None, float | None]:
    if args.rank_times is None:
        return None, args.step_s
    steps = _read_steps(args.rank_times)
    try:
        slowest = use.slowest_rank(steps)
    except ValueError as error:
        raise UserError(f"{args.rank_times}: {error}") from None
    return slowest, args.step_s or use.mean_step_s(steps, args.collective_s)


def _read_steps(path: str) -> list[list[float]]:
    steps: list[list[float]] = []
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MAX_STEPS_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text") from None
    if len(text) > _MAX_STEPS_BYTES:
        raise UserError(f"{path}: is larger than {_MAX_STEPS_BYTES} bytes")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            steps.append([float(word) for word in line.replace(",", " ").split()])
        except ValueError:
            raise UserError(f"{path}: line {number}: must be seconds, a number a rank") from None
    return steps


def _roofline(args: argparse.Namespace) -> int:
    args.sum = "roofline"
    if args.list_devices:
        return _devices()
    _need(args, "params")
    kv = args.kv_bytes_per_token
    if kv is None:
        _need(args, "layers", "kv_heads", "head_dim")
        kv = roof.kv_bytes_per_token(args.layers, args.kv_heads, args.head_dim, args.kv_dtype_bytes)
    peak_flops, against = _flops(args)
    bandwidth, memory_words = _bandwidth(args)
    weights = args.weight_bytes if args.weight_bytes is not None else 2 * args.params
    model = roof.ModelShape(args.params, weights, kv)
    roofs = roof.Roofs(args.gpus * peak_flops, args.gpus * bandwidth)
    rows = [roof.step(model, roofs, batch, args.context) for batch in _batches(args.batch)]
    peak = _peak(args)
    memory = args.memory_gb * 1e9 if args.memory_gb else peak.memory_bytes if peak else None
    fits = roof.sequences_that_fit(model, args.gpus * memory, args.context) if memory else None
    compute_from = roof.batch_compute_bound(model, roofs, args.context)
    data = {
        "divided_by": {"flops": against, "bandwidth": memory_words, "gpus": args.gpus},
        "kv_bytes_per_token": kv,
        "ridge_flops_per_byte": roofs.ridge_flops_per_byte,
        "rows": [
            {
                "batch": one.batch,
                "context": one.context,
                "step_ms": one.step_s * 1000,
                "tokens_per_s": one.tokens_per_s,
                "tensor_busy": one.tensor_busy,
                "memory_busy": one.memory_busy,
                "bound": one.bound,
            }
            for one in rows
        ],
        "sequences_that_fit": fits,
        "batch_compute_bound": compute_from,
        "context_below_which_compute_bound": roof.context_below_which_compute_bound(model, roofs),
    }
    lines = [f"{'batch':>6} {'step ms':>9} {'tokens/s':>10} {'tensor':>8} {'memory':>8}  bound"]
    lines += [
        f"{one.batch:6g} {one.step_s * 1000:9.2f} {one.tokens_per_s:10,.0f} {one.tensor_busy:8.1%} "
        f"{one.memory_busy:8.1%}  {one.bound}"
        for one in rows
    ]
    lines.append(f"context {args.context:g}; {args.gpus:g} x {against}, {memory_words}")
    if compute_from is None:
        lines.append(
            "never compute bound at this context: each sequence adds more memory time than compute time"
        )
    else:
        lines.append(f"compute bound from a batch of {compute_from:.0f}")
    if fits is not None:
        lines.append(f"{fits} sequences of this context fit beside the weights")
    lines.append("an upper bound: attention FLOPs and kernel overhead are left out")
    return _print(args, data, lines)


def _batches(text: str) -> list[float]:
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < batch < 1e9 for batch in found):
        raise UserError(f"--batch {text}: must be numbers above 0, comma separated, like 1,8,32")
    return found


def _cost(args: argparse.Namespace) -> int:
    occupancy = args.occupancy
    if not 0 < occupancy <= 1:
        raise UserError(f"--occupancy {occupancy:g}: must lie above 0 and at most 1")
    if args.peak_to_mean:
        occupancy = min(occupancy, eco.highest_mean_occupancy(args.peak_to_mean))
    data: dict[str, Any] = {"occupancy": occupancy, "gpus": args.gpus}
    lines: list[str] = []
    for name, rate in (("tokens", args.tokens_per_s), ("good_tokens", args.good_tokens_per_s)):
        if rate is None:
            continue
        words = name.replace("_", " ")
        if args.usd_per_gpu_hour is not None:
            full = eco.usd_per_million_tokens(args.usd_per_gpu_hour, args.gpus, rate)
            mean = eco.usd_per_million_tokens(args.usd_per_gpu_hour, args.gpus, rate, occupancy)
            data[f"usd_per_million_{name}_full_use"], data[f"usd_per_million_{name}"] = full, mean
            lines.append(
                f"$ per million {words}: {_usd(full)} at full use, {_usd(mean)} at {occupancy:.0%} occupancy"
            )
        if args.watts:
            facility = eco.facility_watts(
                args.watts, host_w=args.host_watts, server_factor=args.server_factor, pue=args.pue
            )
            board, whole = eco.tokens_per_joule(rate, args.watts), eco.tokens_per_joule(rate, facility)
            data[f"{name}_per_joule"], data[f"{name}_per_joule_facility"] = board, whole
            data["board_watts"], data["facility_watts"] = args.watts, facility
            lines.append(
                f"{words} per joule: {board:.3g} of the boards ({args.watts:,.1f} W), {whole:.3g} of the "
                f"facility ({facility:,.1f} W)"
            )
    if not lines:
        raise UserError("derive cost: give --usd-per-gpu-hour, --watts or both")
    return _print(args, data, lines)


def _usd(value: float | None) -> str:
    return "undefined (no tokens)" if value is None else f"{value:.2f}"
