"""The GPUs of this host, polled once a second: which are lost, which are back, what is in use.

XID numbers are those by which the NVIDIA driver reports errors.

Source: NVIDIA, "Xid Errors", chapter "Analyzing Xid Errors with the Xid Catalog"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Immediate Action": here
RESTART_BM means gone, RESET_GPU needs a reset. 48 and 74 have workflows of their own, whose
descriptions ask for a reset or reboot, and 151 asks for a restart of the machine. All others
(RESTART_APP, IGNORE, and what the catalogue gives no action for) leave the GPU usable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import structlog

from pool_manager.calls import BlockingCalls, Unanswered
from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from pool_manager.gpus import memory
from pool_manager.gpus.memory import still_taken, taken_mib
from pool_manager.gpus.nvml import NoDriver, Nvml, Reading, Snapshot, XidEvent
from pool_manager.ports import GpuView
from registry.errors import DriverError
from registry.tasks import Tasks

log = structlog.get_logger()

CALL_S: Final = 2.0
"""How long the driver may take for one answer before it counts as silent."""
POLL_S: Final = 1.0
POLLS_PER_RENEWAL: Final = 5
"""While a GPU is gone or the driver silent, the session is begun anew every so many polls: an old
one finds neither a GPU that came after it, nor a driver that was loaded anew."""
REPORTS_MAX: Final = 1000
"""Errors kept until there is an answer in time."""
PROOF_S: Final = 3.0
"""How long a GPU may take to show that a replica is gone: less than the 5 s after which a release
is tried again."""
PROOF_POLL_S: Final = 0.05

DeviceEvent = DeviceLost | DeviceBack


GONE: Final = {79: "has fallen off the bus"}
NEEDS_RESET: Final = {
    46: "stopped processing",
    48: "double-bit ECC error",
    62: "halt of an internal controller",
    64: "memory rows could not be remapped",
    74: "NVLink error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "its system processor (GSP) does not answer",
    120: "error of its system processor (GSP)",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "initialisation error",
    151: "key rotation error",
    155: "NVLink error defined by software",
    156: "memory was retired",
    158: "fatal timeout",
}
APPLICATION: Final = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "stopped processing for one application",
    45: "an application was cleaned up",
    63: "memory rows are remapped at the next reset",
    94: "contained memory error",
}
"""Those seen most often, for the log; not all."""


class Severity(StrEnum):
    """What an error means for whoever wants to use the GPU."""

    GONE = "gone"
    NEEDS_RESET = "needs a reset"
    APPLICATION = "concerns one application"


def severity(xid: int) -> Severity:
    """How bad error `xid` is."""
    if xid in GONE:
        return Severity.GONE
    return Severity.NEEDS_RESET if xid in NEEDS_RESET else Severity.APPLICATION


def meaning(xid: int) -> str:
    """An error in words: "XID 79: has fallen off the bus"."""
    text = GONE.get(xid) or NEEDS_RESET.get(xid) or APPLICATION.get(xid)
    return f"XID {xid}: {text}" if text else f"XID {xid}"


@dataclass(slots=True)
class Verdict:
    """What follows from a poll: events for the machine, and lines for the log alone."""

    events: list[DeviceEvent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class GpuHealth:
    """Which devices are gone or need a reset, by snapshots and XID reports. No I/O."""

    def __init__(self, gpus: Iterable[Reading]) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._gone: dict[str, str] = {}
        self._worn: set[str] = set()

    @property
    def gone(self) -> frozenset[str]:
        """The devices that are gone at present."""
        return frozenset(self._gone)

    def judge(self, snapshot: Snapshot, xids: Sequence[XidEvent], *, renewed: bool) -> Verdict:
        """Take in what the driver shows now and what it reported since the last poll.

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


class GpuMonitor:
    """The chosen GPUs over one session with the driver; `foreign_mib` by UUID is what others had
    in use at the start."""

    def __init__(
        self,
        nvml: Nvml,
        calls: BlockingCalls,
        snapshot: Snapshot,
        foreign_mib: Mapping[str, float],
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pause` is awaited between two polls; `clock` bounds a proof."""
        chosen = [gpu for gpu in snapshot.gpus if gpu.uuid in foreign_mib]
        self._nvml = nvml
        self._calls = calls
        self._driver = snapshot.driver
        self._foreign_mib = foreign_mib
        self._devices = [memory.device(gpu, foreign_mib[gpu.uuid]) for gpu in chosen]
        self._seen = {gpu.uuid: gpu for gpu in chosen}
        self._health = GpuHealth(chosen)
        self._pause = pause
        self._clock = clock
        self._polls = 0
        self._reported: list[XidEvent] = []
        self._tasks = Tasks("gpus")
        self.silence = ""

    def devices(self) -> list[Device]:
        """The chosen GPUs and slices, of kind "cuda"."""
        return list(self._devices)

    def view(self, device: str) -> GpuView | None:
        """One of them as it was last seen."""
        gpu = self._seen.get(device)
        if gpu is None:
            return None
        return GpuView(
            gpu.name,
            gpu.index,
            None if gpu.capability is None else "{}.{}".format(*gpu.capability),
            self._driver,
            gpu.total_mib,
            gpu.used_mib,
            self._foreign_mib[device],
            gpu.utilization,
        )

    def used_mib(self, device: str) -> float | None:
        """What it had in use when it was last seen."""
        gpu = self._seen.get(device)
        return None if gpu is None else gpu.used_mib

    def start(self, emit: Callable[[DeviceEvent], None]) -> None:
        """Poll each second from now on; `emit` gets the events."""
        self._tasks.spawn("watch", self._watch(emit))

    async def _watch(self, emit: Callable[[DeviceEvent], None]) -> None:
        while True:
            await self._pause(POLL_S)
            try:
                for event in await self.poll():
                    emit(event)
            except Exception:  # one bad poll must not be the last
                log.exception("the GPUs could not be looked at")

    async def poll(self) -> list[DeviceEvent]:
        """Read all GPUs; the events that follow.

        A driver that does not answer is `silence` and changes nothing: its GPUs may work.
        """
        self._polls += 1
        is_amiss = bool(self._health.gone or self.silence)
        renewed = is_amiss and self._polls % POLLS_PER_RENEWAL == 0
        try:
            snapshot = await self._calls.run(self._read, renewed)
        except (Unanswered, NoDriver) as error:
            if not self.silence:
                log.error("the NVIDIA driver is silent", reason=str(error))
            self.silence = str(error)
            return []
        if self.silence:
            log.info("the NVIDIA driver answers again")
        self.silence = ""
        self._note(snapshot.gpus)
        xids, self._reported = self._reported, []
        verdict = self._health.judge(snapshot, xids, renewed=renewed)
        for note in verdict.notes:
            log.warning("a GPU reports an error", reported=note)
        for event in verdict.events:
            log.warning("a GPU changes", what=event)
        return verdict.events

    def _read(self, renewed: bool) -> Snapshot:
        """In the calls' thread. Reports are kept for the next poll that is answered in time: the
        driver tells them once."""
        if renewed:
            self._nvml.renew()
        snapshot = self._nvml.read()
        self._reported = [*self._reported, *self._nvml.xids()][-REPORTS_MAX:]
        return snapshot

    def _note(self, gpus: Iterable[Reading]) -> None:
        self._seen |= {gpu.uuid: gpu for gpu in gpus if gpu.uuid in self._seen}

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        """What these processes have of a device, None where that cannot be told."""
        try:
            gpu = await self._calls.run(self._nvml.read_one, device)
        except (Unanswered, NoDriver) as error:
            log.warning("a replica cannot be measured", device=device, reason=str(error))
            return None
        if gpu is None:
            return None
        self._note([gpu])
        return taken_mib(gpu, pids, before_mib, is_alone=is_alone)

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """Ask the driver until nothing of these processes is left, for 3 s at most.

        A GPU that is gone has nothing left on it: the replica is, and what keeps others from the
        device is that it was lost. Raises DriverError.
        """
        if device not in self._seen:
            return
        until_s = self._clock() + PROOF_S
        while reason := await self._what_is_left(device, pids, others_mib()):
            if self._clock() >= until_s:
                raise DriverError(reason)
            await self._pause(PROOF_POLL_S)

    async def _what_is_left(
        self, device: str, pids: frozenset[int] | None, others_mib: float
    ) -> str:
        try:
            gpu = await self._calls.run(self._nvml.read_one, device)
        except (Unanswered, NoDriver) as error:
            raise DriverError(f"{device} cannot be seen to be free: {error}") from error
        if gpu is None:
            return ""
        self._note([gpu])
        return still_taken(gpu, pids, others_mib, self._foreign_mib[device])

    async def close(self) -> None:
        """Watch no longer and end the session, unless the driver hangs."""
        await self._tasks.close()
        try:
            await self._calls.run(self._nvml.close)
        except Unanswered as error:
            log.warning("the NVIDIA driver is left as it is", reason=str(error))
        self._calls.close()
