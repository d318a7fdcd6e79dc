"""Monitor of this host's GPUs, polled once a second: lost GPUs, recovered GPUs, memory in use.

XIDs are the error numbers of the NVIDIA driver.

Source: NVIDIA, "Xid Errors", chapter "Analyzing Xid Errors with the Xid Catalog"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Immediate Action". Here
RESTART_BM means "gone", and RESET_GPU means "needs a reset". 48 and 74 have their own workflows,
which require a reset or reboot; 151 requires a restart of the machine. All other errors
(RESTART_APP, IGNORE, or no action in the catalogue) leave the GPU usable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

import structlog

from pool_manager.calls import BlockingCalls, Unanswered
from pool_manager.core.events import DeviceBack, DeviceLost
from pool_manager.core.state import Device
from pool_manager.gpus import memory
from pool_manager.gpus.memory import held_mib, still_taken, taken_mib
from pool_manager.ports import GpuView
from registry.errors import DriverError
from registry.model.hosts import LOCAL_HOST, id_on
from registry.tasks import Tasks
from runtime_image.contract.gpus import NoDriver, Reading, Snapshot, XidEvent

log = structlog.get_logger()

CALL_S: Final = 2.0
"""Time limit of one driver call; after it the driver counts as silent."""
POLL_S: Final = 1.0
POLLS_PER_RENEWAL: Final = 5
"""Polls between two renewals of the session while a GPU is gone or the driver is silent. An old
session finds neither GPUs that appeared later nor a reloaded driver."""
REPORTS_MAX: Final = 1000
"""Max error reports kept until a poll is answered in time."""
XIDS_MAX: Final = 32
"""Max different errors of a GPU that are counted apart."""
PROOF_S: Final = 3.0
"""Time limit for a GPU to show that a replica is gone; less than the 5 s after which a release is
retried."""
PROOF_POLL_S: Final = 0.05

DeviceEvent = DeviceLost | DeviceBack


GONE: Final = {79: "has fallen off the bus"}
NEEDS_RESET: Final = {
    46: "stopped processing",
    48: "double-bit ECC error",
    62: "internal controller halted",
    64: "memory rows could not be remapped",
    74: "NVLink error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "its system processor (GSP) does not answer",
    120: "error in its system processor (GSP)",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "initialisation error",
    151: "key rotation error",
    155: "software-defined NVLink error",
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
"""The most frequent application errors, for the log; not a complete list."""


class Severity(StrEnum):
    """Effect of an error on the use of the GPU."""

    GONE = "gone"
    NEEDS_RESET = "needs a reset"
    APPLICATION = "concerns one application"


def severity(xid: int) -> Severity:
    """Return the severity of error `xid`."""
    if xid in GONE:
        return Severity.GONE
    return Severity.NEEDS_RESET if xid in NEEDS_RESET else Severity.APPLICATION


def meaning(xid: int) -> str:
    """Return a description of error `xid`, e.g. "XID 79: has fallen off the bus"."""
    text = GONE.get(xid) or NEEDS_RESET.get(xid) or APPLICATION.get(xid)
    return f"XID {xid}: {text}" if text else f"XID {xid}"


@dataclass(slots=True)
class Verdict:
    """Result of a poll: events for the machine, and notes for the log only."""

    events: list[DeviceEvent] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class GpuHealth:
    """Health of the GPUs (gone, needs a reset) from snapshots and XID reports. No I/O."""

    def __init__(self, gpus: Iterable[Reading]) -> None:
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._gone: dict[str, str] = {}
        self._worn: set[str] = set()

    @property
    def gone(self) -> frozenset[str]:
        """Devices that are gone at present."""
        return frozenset(self._gone)

    def judge(
        self,
        snapshot: Snapshot,
        xids: Sequence[XidEvent],
        released: Mapping[str, Collection[int]],
        *,
        renewed: bool,
    ) -> Verdict:
        """Update the health from a snapshot and the errors reported since the last poll.

        A gone device counts as back only if the session was `renewed` just before: an old session
        may answer from its cache for a GPU that is gone. None of the pids of `released`, the
        replicas released while it was gone, may be listed there any more: their memory would be
        given away twice. A device that needs a reset stays out of use for the lifetime of this
        process, because a reset cannot be detected.
        """
        verdict = Verdict()
        for event in xids:
            self._report(event, verdict)
        for uuid, gpu in self._gpus.items():
            found = snapshot.find(uuid)
            if found is None:
                self._lose(uuid, _absence(gpu, snapshot), verdict)
            elif uuid not in self._gone or not renewed or xids:
                continue
            elif memory.listed(found, released.get(uuid, ())) is None:
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
    """Whether an error affects a device. A MIG slice is affected by errors of its GPU instance and
    of the whole GPU."""
    if gpu.parent != event.uuid:
        return gpu.uuid == event.uuid
    return event.instance is None or gpu.instance == event.instance


def _absence(gpu: Reading, snapshot: Snapshot) -> str:
    """Return why a device is missing from a snapshot, with the driver's message if there is one."""
    said = snapshot.lost.get(gpu.uuid) or snapshot.lost.get(gpu.parent)
    if said:
        return f"the driver has lost it: {said}"
    if snapshot.unreadable:
        return f"the driver no longer finds it ({'; '.join(snapshot.unreadable)})"
    return "the driver no longer lists it"


class GpuReader(Protocol):
    """A session of the driver: NVML's own (`Nvml`), or what stands in for it. Methods block, and
    raise NoDriver or Unanswered."""

    def read(self) -> Snapshot:
        """Read all GPUs."""

    def read_one(self, uuid: str) -> Reading | None:
        """Read one GPU or slice; None if it cannot be used."""

    def xids(self) -> list[XidEvent]:
        """Return the errors reported since the last call, oldest first."""

    def renew(self) -> None:
        """Start a new session."""

    def close(self) -> None:
        """End the session."""


class GpuMonitor:
    """Monitor of the chosen GPUs, which are those in `foreign_mib`: the MiB by UUID that other
    programs had in use at the start."""

    def __init__(  # noqa: PLR0913 - what is polled, and the times
        self,
        nvml: GpuReader,
        calls: BlockingCalls,
        snapshot: Snapshot,
        foreign_mib: Mapping[str, float],
        host: str = LOCAL_HOST,
        *,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """They are GPUs of `host`. `pause` is awaited between two polls; `clock` limits the
        duration of a proof."""
        chosen = [gpu for gpu in snapshot.gpus if gpu.uuid in foreign_mib]
        self._nvml = nvml
        self._calls = calls
        self._driver = snapshot.driver
        self._foreign_mib = foreign_mib
        self._host = host
        self._devices = [
            memory.device(gpu, foreign_mib[gpu.uuid], snapshot, host) for gpu in chosen
        ]
        self._seen = {gpu.uuid: gpu for gpu in chosen}
        self._parts = memory.parts(snapshot.gpus)
        self._numbers = memory.cuda_numbers(snapshot)
        self._xids: dict[str, dict[int, int]] = {gpu.parent or gpu.uuid: {} for gpu in chosen}
        self._health = GpuHealth(chosen)
        self._pause = pause
        self._clock = clock
        self._polls = 0
        self._reported: list[XidEvent] = []
        # Pids of replicas released from a GPU while it was gone, until it is back.
        self._released: dict[str, set[int]] = {}
        self._tasks = Tasks("gpus")
        self.silence = ""

    def devices(self) -> list[Device]:
        """Return the chosen GPUs and slices, of kind "cuda"."""
        return list(self._devices)

    def _uuid(self, device: str) -> str:
        """Return what the driver calls a device of this host."""
        return device.removeprefix(id_on(self._host, ""))

    def view(self, device: str) -> GpuView | None:
        """Return a chosen GPU as last polled, else None."""
        uuid = self._uuid(device)
        gpu = self._seen.get(uuid)
        if gpu is None:
            return None
        reading = gpu
        if self.silence or uuid in self._health.gone:  # the last values are not those of now
            reading = replace(gpu, used_mib=None, utilization=None, telemetry=None)
        return GpuView(
            gpu.name,
            gpu.index,
            None if gpu.capability is None else "{}.{}".format(*gpu.capability),
            self._driver,
            gpu.total_mib,
            gpu.used_mib,
            self._foreign_mib[uuid],
            reading.utilization,
            reading,
            self._parts.get(uuid, 1.0),
            dict(self._xids.get(gpu.parent or gpu.uuid, {})),
        )

    def visible(self, devices: Sequence[str]) -> str:
        """Return the value of CUDA_VISIBLE_DEVICES for a process on these devices, in the order
        PCI_BUS_ID.

        One device is named by its UUID. Several are named by their numbers, in their order: vLLM
        has ended on UUIDs (vllm-project/vllm#20939, #41848). While numbers may mean other GPUs they
        are named by UUIDs, too.
        """
        numbers = [self._numbers[one] for one in devices if one in self._numbers]
        is_sure = len(numbers) == len(devices) and not (self._health.gone or self.silence)
        if len(devices) < 2 or not is_sure:
            return ",".join(devices)
        return ",".join(map(str, sorted(numbers)))

    def used_mib(self, device: str) -> float | None:
        """Return the MiB in use as last polled, None if unknown."""
        gpu = self._seen.get(self._uuid(device))
        return None if gpu is None else gpu.used_mib

    def start(self, emit: Callable[[DeviceEvent], None]) -> None:
        """Start to poll every POLL_S; `emit` gets the events."""
        self._tasks.spawn("watch", self._watch(emit))

    async def _watch(self, emit: Callable[[DeviceEvent], None]) -> None:
        while True:
            await self._pause(POLL_S)
            try:
                for event in await self.poll():
                    emit(event)
            except Exception:  # a failed poll must not end the polling
                log.exception("the GPUs could not be looked at")

    async def poll(self) -> list[DeviceEvent]:
        """Read all GPUs; return the resulting events.

        If the driver does not answer, `silence` is set and nothing else changes: the GPUs may still
        work.
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
        self._parts = memory.parts(snapshot.gpus)
        self._numbers = memory.cuda_numbers(snapshot)
        xids, self._reported = self._reported, []
        for xid in xids:
            self._count(xid)
        verdict = self._health.judge(snapshot, xids, self._released, renewed=renewed)
        for uuid in self._released.keys() - self._health.gone:
            del self._released[uuid]
        for note in verdict.notes:
            log.warning("a GPU reports an error", reported=note)
        events = [replace(one, device=id_on(self._host, one.device)) for one in verdict.events]
        for event in events:
            log.warning("a GPU changes", what=event)
        return events

    def _read(self, renewed: bool) -> Snapshot:
        """Read all GPUs and new error reports, in the thread of `calls`. Reports are kept until a
        poll is answered in time, because the driver delivers them only once."""
        if renewed:
            self._nvml.renew()
        snapshot = self._nvml.read()
        self._reported = [*self._reported, *self._nvml.xids()][-REPORTS_MAX:]
        return snapshot

    def _count(self, event: XidEvent) -> None:
        """Count an error, which becomes the last one. With XIDS_MAX of them in the counts, further
        ones are counted as 0, which is no XID."""
        counts = self._xids.get(event.uuid)
        if counts is not None:
            xid = event.xid if event.xid in counts or len(counts) < XIDS_MAX else 0
            counts[xid] = counts.pop(xid, 0) + 1

    def _note(self, gpus: Iterable[Reading]) -> None:
        self._seen |= {gpu.uuid: gpu for gpu in gpus if gpu.uuid in self._seen}

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        """Return the MiB that a replica with these processes takes of a device, as
        `memory.taken_mib`; None if unknown."""
        gpu = await self._measured(self._uuid(device))
        return None if gpu is None else taken_mib(gpu, pids, before_mib, is_alone=is_alone)

    async def held_mib(self, device: str, pids: frozenset[int]) -> float | None:
        """Return the MiB that the driver reports of these processes on a device, None if it does
        not report them."""
        gpu = await self._measured(self._uuid(device))
        return None if gpu is None else held_mib(gpu, pids)

    async def _measured(self, uuid: str) -> Reading | None:
        try:
            gpu = await self._calls.run(self._nvml.read_one, uuid)
        except (Unanswered, NoDriver) as error:
            log.warning("a replica cannot be measured", device=uuid, reason=str(error))
            return None
        if gpu is not None:
            self._note([gpu])
        return gpu

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        """Poll the driver until nothing of these processes is left, for PROOF_S at most.

        On a GPU that is gone nothing can be read: the replica counts as released, and the cordon
        keeps other replicas off the device until it is back without these processes. Raises
        DriverError.
        """
        uuid = self._uuid(device)
        if uuid not in self._seen:
            return
        until_s = self._clock() + PROOF_S
        while reason := await self._what_is_left(uuid, pids, others_mib()):
            if self._clock() >= until_s:
                raise DriverError(reason)
            await self._pause(PROOF_POLL_S)

    async def _what_is_left(self, uuid: str, pids: frozenset[int] | None, others_mib: float) -> str:
        try:
            gpu = await self._calls.run(self._nvml.read_one, uuid)
        except (Unanswered, NoDriver) as error:
            raise DriverError(f"cannot verify that {uuid} is free: {error}") from error
        if gpu is None and uuid in self._health.gone:
            self._released.setdefault(uuid, set()).update(pids or ())
            return ""
        if gpu is None:
            return f"{uuid} is not found by the driver"
        self._note([gpu])
        return still_taken(gpu, pids, others_mib, self._foreign_mib[uuid])

    async def close(self) -> None:
        """Stop polling and end the session, unless the driver hangs."""
        await self._tasks.close()
        try:
            await self._calls.run(self._nvml.close)
        except Unanswered as error:
            log.warning("the NVIDIA driver is left as it is", reason=str(error))
        self._calls.close()
