"""One line of a kernel or fabric manager log -> what it says of a GPU or switch. Pure.

Reads the lines of every driver generation (no ``PCI:``, no process, process with odd names, NVLink 5 units,
recovery actions) behind every usual prefix: a ``/dev/kmsg`` record, ``dmesg`` in its time formats, syslog and
the journal. Only the kernel's own lines count: a program that quotes an Xid, or writes one into ``/dev/kmsg``
from user space, is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from sidecar.gpu.reading import pci_address


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a line says it was written. ``clock`` is ``boot`` (seconds since boot) or ``wall`` (Unix, UTC
    where the line has no zone); a syslog time has no year and is only good for differences."""

    seconds: float
    clock: str


@dataclass(frozen=True, slots=True)
class NvLink5:
    """The words of an NVLink 5 error (Xid 144 to 150). ``link`` -1: none."""

    unit: str
    severity: str
    cross_containment: str
    link: int
    first_word: str
    error_status: str | None
    subcode: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the driver says should be done (Xid 154): action before and after, number and name."""

    old: str
    old_name: str
    new: str
    new_name: str


@dataclass(frozen=True, slots=True)
class Xid:
    """A driver report. ``pci`` as 0000:1b:00. ``implied``: the line had no number but means this code."""

    code: int
    pci: str
    message: str
    at: Stamp | None = None
    pid: int | None = None
    process: str | None = None
    channel: str | None = None
    sm: tuple[int, int, int] | None = None  # GPC, TPC, SM
    caused_by: int | None = None
    nvlink_link: int | None = None
    nvlink5: NvLink5 | None = None
    recovery: Recovery | None = None
    gpu_instance: str | None = None
    implied: bool = False
    record: KmsgRecord | None = None


@dataclass(frozen=True, slots=True)
class Sxid:
    """An NVSwitch report, from the kernel or from the fabric manager's log."""

    code: int
    pci: str
    message: str
    source: str  # kernel, fabric_manager
    at: Stamp | None = None
    switch: int | None = None
    severity: str | None = None  # Fatal, Non-fatal
    link: int | None = None


@dataclass(frozen=True, slots=True)
class UuidHint:
    """Which GPU sits at a PCI address."""

    pci: str
    uuid: str


@dataclass(frozen=True, slots=True)
class DriverHint:
    """The driver's version."""

    version: str


@dataclass(frozen=True, slots=True)
class SxidData:
    """More words of the SXid before it; no event of its own."""

    code: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that looks like an event but was not written by the kernel."""

    facility: int | str


@dataclass(frozen=True, slots=True)
class Continuation:
    """A further line of a ``/dev/kmsg`` record."""


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """The head of a ``/dev/kmsg`` record. ``usec`` is since boot."""

    level: int
    facility: int
    seq: int
    usec: int


Parsed = Xid | Sxid | UuidHint | DriverHint | SxidData | Refused | Continuation

_RECORD = re.compile(r"(?P<prio>\d{1,10}),(?P<seq>\d{1,20}),(?P<usec>\d{1,20}),[^;]*;")
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_BOOT = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]\s*")
_CTIME = re.compile(r"\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s*")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)\s+")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)\s+")
_FACILITY = re.compile(r"(kern|user|mail|daemon|auth|syslog|local\d)\s*:\s*[a-z]+\s*:\s*")
_TAG = re.compile(r"(?:\S+ )?(kernel|nv-fabricmanager(?:\[\d+\])?): ?")
_FM_HEAD = re.compile(r"\[([A-Z][a-z]{2} [ \d]\d \d{4} \d\d:\d\d:\d\d)\] \[[A-Z]+\] \[tid \d+\] ")

_PCI = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?(?P<pci>{_PCI})(?:\.[0-7])?(?: GPU-I:(?P<gi>\d+))?\)[^:]*: (?P<code>\d{{1,6}}),"
    r" ?(?P<rest>.*)"
)
_PROCESS = re.compile(r"pid=(?P<pid>\d+|'<unknown>'), name=(?P<name>[^,]*), ?")
_CHANNEL = re.compile(r"(?:Ch|Channel) (?P<channel>[0-9a-fA-F]{8})\b")
_SM = re.compile(r"GPC (\d+), TPC (\d+), SM (\d+)")
_CAUSED_BY = re.compile(r"caused by previous Xid (\d+)")
_LINK = re.compile(r"NVLink: .*?\blink (\d+)")
_NVLINK5 = re.compile(
    r"(?P<unit>[A-Z0-9_]+(?:/[A-Z0-9_]+)?)\s+(?P<severity>Nonfatal|Fatal)\s+(?P<xc>XC[01])\s+i\d+\s+"
    r"Link\s+(?P<link>-?\d+)\s+\((?P<words>0x[0-9a-fA-F]+(?:\s+0x[0-9a-fA-F]+)*)"
)
_RECOVERY = re.compile(
    r"GPU recovery action changed from (?P<old>0x[0-9a-fA-F]+) \((?P<old_name>[^)]*)\) "
    r"to (?P<new>0x[0-9a-fA-F]+) \((?P<new_name>[^)]*)\)"
)
_FELL_OFF = re.compile(rf"NVRM: GPU (?P<pci>{_PCI})(?:\.[0-7])?: (?P<rest>GPU has fallen off the bus\.?)")
_UUID = re.compile(rf"NVRM: GPU at (?:PCI:)?(?P<pci>{_PCI})(?:\.[0-7])?: (?P<uuid>GPU-[0-9a-fA-F-]{{36}})")
_DRIVER = re.compile(r"NVRM: loading NVIDIA UNIX .*?Kernel Module(?: for \S+)?\s+(?P<version>\d+(?:\.\d+)+)")
_SXID = re.compile(
    r"nvidia-nvswitch(?P<switch>\d+): SXid \(PCI:(?P<pci>[0-9a-fA-F:.]+)\): (?P<code>\d{1,6}), "
    r"(?:(?P<severity>Fatal|Non-fatal), )?(?:Link (?P<link>\d+) )?(?P<rest>.*)"
)
_FM_SXID = re.compile(
    r"detected NVSwitch (?P<severity>fatal|non-fatal) error (?P<code>\d{1,6}) on (?:fid|NodeId) \d+ "
    r"on NVSwitch pci bus id (?P<pci>[0-9a-fA-F:.]+) physical id (?P<switch>\d+) port (?P<link>\d+)"
)


def parse_line(line: str) -> Parsed | None:
    """What one line says, or ``None`` for a line that is no news of a GPU. Never raises."""
    line = line.rstrip("\r\n")
    if line[:1] == " " and "=" in line:
        return Continuation()
    body, at, writer, record = _strip(line)
    if writer.startswith("nv-fabricmanager"):
        return _fabric_manager(body, at)
    if not body.startswith(("NVRM: ", "nvidia-nvswitch")):
        return None
    if writer not in ("", "kernel"):
        return Refused(record.facility if record else writer)
    return _xid(body, at, record) or _sxid(body, at) or _hint(body)


def _strip(line: str) -> tuple[str, Stamp | None, str, KmsgRecord | None]:
    """Body, time, writer (``kernel``, another facility, or empty when the line does not say), record head."""
    if match := _RECORD.match(line):
        prio = int(match["prio"])
        record = KmsgRecord(prio & 7, prio >> 3, int(match["seq"]), int(match["usec"]))
        body = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), line[match.end() :])
        writer = "kernel" if record.facility == 0 else f"facility {record.facility}"
        return body, Stamp(record.usec / 1e6, "boot"), writer, record
    writer, at = "", None
    if match := _FACILITY.match(line):
        writer = "kernel" if match[1] == "kern" else match[1]
        line = line[match.end() :]
    if match := _FM_HEAD.match(line):
        return line[match.end() :], _wall(match[1], "%b %d %Y %H:%M:%S"), "nv-fabricmanager", None
    for pattern, form in ((_CTIME, "%a %b %d %H:%M:%S %Y"), (_SYSLOG, "%b %d %H:%M:%S"), (_ISO, "")):
        if match := pattern.match(line):
            at = _wall(match[1], form)
            line = line[match.end() :]
            break
    if match := _TAG.match(line):
        writer = writer or match[1]
        line = line[match.end() :]
    if match := _BOOT.match(line):
        at = at or Stamp(float(match[1]), "boot")
        line = line[match.end() :]
    return line, at, writer, None


def _wall(text: str, form: str) -> Stamp | None:
    try:
        if not form:
            when = datetime.fromisoformat(text.replace(",", "."))
        elif "%Y" in form:
            when = datetime.strptime(text, form)
        else:
            # No year: a leap one, so that 29 February can be read.
            when = datetime.strptime(f"2000 {text}", f"%Y {form}")
    except ValueError:
        return None
    return Stamp((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp(), "wall")


def _xid(body: str, at: Stamp | None, record: KmsgRecord | None) -> Xid | None:
    if match := _FELL_OFF.match(body):
        pci = pci_address(match["pci"])
        return Xid(79, pci, match["rest"], at, implied=True, record=record)
    match = _XID.match(body)
    if match is None:
        return None
    rest, pid, process = match["rest"], None, None
    if who := _PROCESS.match(rest):
        rest = rest[who.end() :]
        pid = int(who["pid"]) if who["pid"].isdigit() else None
        process = who["name"].strip()
        process = None if process in ("", "<unknown>") else process
    channel = _CHANNEL.match(rest)
    sm = _SM.search(rest)
    caused_by = _CAUSED_BY.search(rest)
    link = _LINK.match(rest)
    recovery = _RECOVERY.search(rest)
    return Xid(
        code=int(match["code"]),
        pci=pci_address(match["pci"]),
        message=rest,
        at=at,
        pid=pid,
        process=process,
        channel=channel["channel"] if channel else None,
        sm=(int(sm[1]), int(sm[2]), int(sm[3])) if sm else None,
        caused_by=int(caused_by[1]) if caused_by else None,
        nvlink_link=int(link[1]) if link else None,
        nvlink5=_nvlink5(rest),
        recovery=Recovery(*recovery.group("old", "old_name", "new", "new_name")) if recovery else None,
        gpu_instance=match["gi"],
        record=record,
    )


def _nvlink5(rest: str) -> NvLink5 | None:
    match = _NVLINK5.match(rest)
    if match is None:
        return None
    words = match["words"].split()
    return NvLink5(
        unit=match["unit"],
        severity=match["severity"],
        cross_containment=match["xc"],
        link=int(match["link"]),
        first_word=words[0],
        error_status=words[1] if len(words) > 1 else None,
        subcode=(int(words[0], 16) >> 20) & 0x3F,
    )


def _sxid(body: str, at: Stamp | None) -> Sxid | SxidData | None:
    match = _SXID.match(body)
    if match is None:
        return None
    code = int(match["code"])
    if match["rest"].startswith("Data {"):
        return SxidData(code)
    link = int(match["link"]) if match["link"] else None
    pci = match["pci"].lower()
    return Sxid(code, pci, match["rest"], "kernel", at, int(match["switch"]), match["severity"], link)


def _fabric_manager(body: str, at: Stamp | None) -> Sxid | None:
    match = _FM_SXID.search(body)
    if match is None:
        return None
    return Sxid(
        code=int(match["code"]),
        pci=pci_address(match["pci"]) + ".0",
        message=match[0],
        source="fabric_manager",
        at=at,
        switch=int(match["switch"]),
        severity=match["severity"].capitalize(),
        link=int(match["link"]),
    )


def _hint(body: str) -> UuidHint | DriverHint | None:
    if match := _UUID.match(body):
        return UuidHint(pci_address(match["pci"]), match["uuid"])
    if match := _DRIVER.match(body):
        return DriverHint(match["version"])
    return None
