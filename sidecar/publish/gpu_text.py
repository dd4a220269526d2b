"""The GPU part of a status as sentences for a terminal. Pure: JSON values in, lines out."""

from __future__ import annotations

from typing import Any


def gpu_sentences(gpu: dict[str, Any] | None) -> list[str]:
    """What the GPUs add to an explanation; empty where none are watched."""
    if not gpu:
        return []
    said = ["", "GPUs:"]
    down = [one for one in gpu["sources"] if one["up"] is False]
    said += [f"  source {one['name']} gives nothing: {one['reason']}." for one in down]
    said += _use(gpu["utilisation"])
    if gpu["energy"] is not None:
        said += _energy(gpu["energy"])
    for one in gpu["diagnosis"]:
        said.append(f"  {one['name'].replace('_', ' ')}: {one['what']}")
        said.append(f"    Evidence: {'; '.join(one['evidence'])}.")
        said.append(f"    To tell: {one['tell_apart']}")
        if one["unknown"]:
            said.append(f"    Not known: {one['unknown']}")
    for one in gpu["events"][-5:]:
        said.append(
            f"  {one['kind'].capitalize()} {one['code']} ({one['name']}) on {one['gpu'] or one['pci']}; "
            f"advised: {one['advice']}."
        )
        if one["look_beside"]:
            beside = ", ".join(word.replace("_", " ") for word in one["look_beside"])
            said.append(f"    Before anyone decides, look at: {beside}.")
        known = [
            f"{key.replace('_', ' ')} {value}" for key, value in one["beside"].items() if value is not None
        ]
        if known:
            said.append(f"    Now on that GPU: {', '.join(known)}.")
    if not gpu["xids_watched"]:
        said.append("  The kernel log is not watched: no Xid shown does not mean that none happened.")
    said += [f"  {note}." for note in gpu["notes"]]
    return said if len(said) > 2 else []


def _use(use: dict[str, Any]) -> list[str]:
    said = []
    for name, key in (("MFU", "mfu"), ("MBU", "mbu")):
        if use[key] is not None:
            estimated = " (estimated)" if use["estimated"] else ""
            said.append(f"  {name} {100 * use[key]:.3g} % of {use[key + '_peak']}{estimated}.")
    if use["bound"]:
        said.append(f"  The present batch is {use['bound']} bound.")
    return said


def _energy(energy: dict[str, Any]) -> list[str]:
    if energy["board_watts"] is None:
        return ["  Energy is not charged to this pod: not all of its boards are its alone."]
    text = f"  The boards draw {energy['board_watts']:.4g} W ({energy['facility_watts']:.4g} W with overhead)"
    if energy["tokens_per_joule"]:
        text += f", {energy['tokens_per_joule']:.3g} tokens a joule"
    if energy["joules_per_good_token"] is not None:
        text += f", {energy['joules_per_good_token']:.3g} J for each good token"
    lines = [text + "."]
    if energy["usd_per_million_good_tokens"] is not None:
        lines.append(
            f"  A million tokens cost ${energy['usd_per_million_tokens']:.2f}, a million good ones "
            f"${energy['usd_per_million_good_tokens']:.2f}."
        )
    return lines
