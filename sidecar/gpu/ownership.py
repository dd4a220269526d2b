"""Which boards are this pod's, and whose energy may be charged to it. Pure.

Only a board that this pod has to itself is charged. Where several pods, MIG instances or time slices share
one, its figures are shown once and said to be shared; where the page cannot tell, that is said too. One
tenant never pays for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sidecar.gpu.reading import Gpu, Part, Pod, Reading, Sharing


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this pod is. Any of it may be unknown.

    ``declared``: UUIDs that the user named as this pod's own. ``visible``: what the container runtime shows
    (GPU- or MIG- UUIDs), which another pod may see as well. ``all_gpus``: every board of the source is ours.
    """

    pod: str = ""
    namespace: str = ""
    declared: frozenset[str] = frozenset()
    visible: frozenset[str] = frozenset()
    all_gpus: bool = False
    shared: bool = False  # the user says that GPUs here are time-sliced, which a page need not show

    @property
    def known(self) -> bool:
        """Whether anything can be joined at all."""
        return bool(self.pod or self.declared or self.visible or self.all_gpus)


@dataclass(frozen=True, slots=True)
class OwnGpu:
    """A board (or one MIG instance of it) of this pod. ``charged``: its energy is this pod's alone."""

    gpu: Gpu
    part: Part | None
    sharing: Sharing
    charged: bool

    def values(self) -> Mapping[str, float]:
        """The board's figures, with the instance's own in their place where this is one."""
        return self.gpu.values if self.part is None else {**self.gpu.values, **self.part.values}


@dataclass(frozen=True, slots=True)
class Owned:
    """The pod's GPUs and what is uncertain about them."""

    gpus: tuple[OwnGpu, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def all_charged(self) -> bool:
        """Whether the energy of every GPU is this pod's alone."""
        return bool(self.gpus) and all(own.charged for own in self.gpus)


def identity_of(
    environ: Mapping[str, str], *, gpus: str, pod: str, namespace: str, shared: bool = False
) -> Identity:
    """From settings and the container's environment. ``gpus``: ``all``, or UUIDs with commas, or empty.

    Indices in NVIDIA_VISIBLE_DEVICES count on another scale than the exporter's and join nothing.
    """
    named = frozenset(word.strip() for word in gpus.split(",") if word.strip())
    visible = frozenset(
        word.strip()
        for name in ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        for word in environ.get(name, "").split(",")
        if word.strip().startswith(("GPU-", "MIG-"))
    )
    return Identity(
        pod=pod or environ.get("POD_NAME", ""),
        namespace=namespace or environ.get("POD_NAMESPACE", ""),
        declared=frozenset() if gpus.strip() == "all" else named,
        visible=visible,
        all_gpus=gpus.strip() == "all",
        shared=shared,
    )


def own_gpus(reading: Reading, identity: Identity) -> Owned:
    """The boards of ``reading`` that are this pod's."""
    if not identity.known:
        return Owned(
            notes=(
                "which GPUs are this pod's is not known: set gpus to UUIDs or to all, or give the pod's name",
            )
        )
    found: list[OwnGpu] = []
    notes: dict[str, None] = {}
    for gpu in reading.gpus:
        found += _claim(gpu, identity, notes)
    if not found and reading.gpus:
        if not any(gpu.pods for gpu in reading.gpus) and identity.pod:
            notes[
                "the exporter names no pods (it needs its Kubernetes mapping): set gpus to this pod's UUIDs"
            ] = None
        else:
            notes["none of the exporter's GPUs is this pod's"] = None
    return Owned(tuple(found), tuple(notes))


def _claim(gpu: Gpu, identity: Identity, notes: dict[str, None]) -> list[OwnGpu]:
    if identity.all_gpus:
        # The user says that nobody else is there: parts and pods on the page do not matter.
        sharing = Sharing.SHARED if identity.shared else Sharing.EXCLUSIVE
        return [OwnGpu(gpu, None, sharing, charged=not identity.shared)]
    by_uuid = gpu.uuid in identity.declared or gpu.uuid in identity.visible
    if gpu.sharing is Sharing.MIG:
        parts = [
            part
            for part in gpu.parts
            if _ours(part.pods, identity) or part.uuid in identity.visible or part.uuid in identity.declared
        ]
        if parts or by_uuid:
            notes[f"{gpu.name} is cut into instances: the board's power and energy cannot be told apart"] = (
                None
            )
        if parts:
            return [OwnGpu(gpu, part, Sharing.MIG, charged=False) for part in parts]
        return [OwnGpu(gpu, None, Sharing.MIG, charged=False)] if by_uuid else []
    if not by_uuid and not _ours(gpu.pods, identity):
        return []
    sharing = gpu.sharing
    if sharing is Sharing.EXCLUSIVE and identity.pod and not _ours(gpu.pods, identity):
        sharing = Sharing.SHARED
        notes[f"{gpu.name} is this pod's by UUID, but the exporter names another pod on it"] = None
    if sharing is Sharing.UNKNOWN and gpu.uuid in identity.declared:
        sharing = Sharing.EXCLUSIVE
    if identity.shared:
        sharing = Sharing.SHARED
    if sharing is Sharing.SHARED:
        notes[f"{gpu.name} is shared: its energy is the board's, not this pod's"] = None
    elif sharing is Sharing.UNKNOWN:
        notes[f"who else uses {gpu.name} is not known: its energy is not charged to this pod"] = None
    return [OwnGpu(gpu, None, sharing, charged=sharing is Sharing.EXCLUSIVE)]


def _ours(pods: frozenset[Pod], identity: Identity) -> bool:
    return any(
        pod.name == identity.pod and (not identity.namespace or pod.namespace in ("", identity.namespace))
        for pod in pods
    )


@dataclass(slots=True)
class Flapping:
    """Boards whose pod label jumps between pods: time slicing without the exporter's sharing option.

    One of the sharing pods gets the label, another one at the next look; each page alone looks exclusive.
    """

    window_ns: int
    _seen: dict[str, dict[frozenset[Pod], tuple[int, int]]] = field(default_factory=dict)

    def add(self, reading: Reading, at_ns: int) -> Reading:
        """The reading, with boards whose label came back to a former pod marked as shared."""
        gpus = tuple(self._judge(gpu, at_ns) for gpu in reading.gpus)
        return Reading(gpus, reading.notes, reading.switch_errors)

    def _judge(self, gpu: Gpu, at_ns: int) -> Gpu:
        if gpu.sharing is not Sharing.EXCLUSIVE:
            return gpu
        seen = self._seen.setdefault(gpu.uuid, {})
        for pods in [pods for pods, (_, last) in seen.items() if at_ns - last > self.window_ns]:
            del seen[pods]
        first, _ = seen.get(gpu.pods, (at_ns, at_ns))
        seen[gpu.pods] = (first, at_ns)
        # A pod seen before another that has gone again was there all along.
        others = [span for pods, span in seen.items() if pods != gpu.pods]
        back = any(first < other_last < at_ns for _, other_last in others)
        away = any(o_first < first < o_last for o_first, o_last in others)
        if not (back or away):
            return gpu
        every = frozenset(pod for pods in seen for pod in pods)
        return replace(gpu, pods=every, sharing=Sharing.SHARED)
