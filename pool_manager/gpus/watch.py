"""Which GPUs can no longer be used, and which can again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.gpus.reading import Reading, Snapshot, XidEvent
from pool_manager.gpus.xids import Severity, meaning, severity


@dataclass(slots=True)
class Verdict:
    """What follows from a look: events for the machine, and lines that only the log gets."""

    events: list[DeviceLost | DeviceBack] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Watch:
    """Remembers what is wrong with which device. No I/O: it judges what it is shown."""

    def __init__(self, gpus: Iterable[Reading]) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._gone: dict[str, str] = {}
        self._worn: set[str] = set()

    @property
    def gone(self) -> frozenset[str]:
        """The devices that are gone at present."""
        return frozenset(self._gone)

    def judge(self, snapshot: Snapshot, xids: Sequence[XidEvent], *, renewed: bool) -> Verdict:
        """What the driver shows now, and what it reported since the last time.

        A gone device is back only where the session was `renewed` just before: an old one may
        answer from memory for a GPU that is not there. One that needs a reset stays out of use as
        long as this process lives: that it was reset cannot be seen.
        """
        verdict = Verdict()
        for event in xids:
            self._report(event, verdict)
        for uuid, gpu in self._gpus.items():
            if snapshot.find(uuid) is None:
                self._lose(uuid, _absence(gpu, snapshot), verdict)
            elif uuid in self._gone and renewed and not xids:
                del self._gone[uuid]
                if uuid not in self._worn:
                    verdict.events.append(DeviceBack(uuid))
        return verdict

    def _report(self, event: XidEvent, verdict: Verdict) -> None:
        text, level = meaning(event.xid), severity(event.xid)
        hit = [gpu for gpu in self._gpus.values() if _is_hit(gpu, event)]
        if level is Severity.APPLICATION or not hit:
            verdict.notes.append(f"{event.uuid}: {text}")
        elif level is Severity.GONE:
            for gpu in hit:
                self._lose(gpu.uuid, text, verdict)
        else:
            for gpu in hit:
                self._wear(gpu.uuid, text, verdict)

    def _lose(self, uuid: str, reason: str, verdict: Verdict) -> None:
        if uuid not in self._gone:
            self._gone[uuid] = reason
            verdict.events.append(DeviceLost(uuid, reason, is_gone=True))

    def _wear(self, uuid: str, reason: str, verdict: Verdict) -> None:
        if uuid in self._worn:
            verdict.notes.append(f"{uuid}: {reason}, again")
            return
        self._worn.add(uuid)
        verdict.events.append(DeviceLost(uuid, f"{reason}; it needs a reset", is_gone=False))


def _is_hit(gpu: Reading, event: XidEvent) -> bool:
    """A slice is hit by what concerns its GPU instance, or the whole GPU."""
    if gpu.parent != event.uuid:
        return gpu.uuid == event.uuid
    return event.instance is None or gpu.instance == event.instance


def _absence(gpu: Reading, snapshot: Snapshot) -> str:
    """Why a device is not in a snapshot, in the driver's words where it has some."""
    said = snapshot.lost.get(gpu.uuid) or snapshot.lost.get(gpu.parent)
    if said:
        return f"the driver has lost it: {said}"
    if snapshot.unreadable:
        return f"the driver no longer finds it ({'; '.join(snapshot.unreadable)})"
    return "the driver no longer lists it"
