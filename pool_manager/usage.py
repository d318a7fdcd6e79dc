"""Usage: device-seconds of replicas (waking, idle, busy), and time and energy of devices, by
revision and minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from pool_manager.attribution import MINUTE_S, Attributed, Attribution, Holder, by_minute
from pool_manager.core.machine import Machine
from pool_manager.core.state import Replica, State
from pool_manager.devices import kind_of
from pool_manager.ports import Binding, GpuViews, Recorder
from registry.model.devices import DeviceModel, Use
from registry.model.functions import NAMESPACE
from registry.usage import IDLE, OTHERS
from runtime_image.contract.link import BUSY_MASK

WINDOW_S: Final = 5.0
"""Window of the mean "busy now". If PONGs arrive less often, the window is the time between two of
them."""

BACK_MS: Final = BUSY_MASK // 2
"""A larger step (modulo 2**32) means that the count went back: 25 days of runs cannot lie between
two PONGs. The count goes back a little if a run ends while the replica reads it."""

Stage = Literal["waking", "up", "standby", "parked"]
"""waking: starting, loading or waking from a park; up: able to run a model; standby: without a
model; parked: asleep, on no device."""


FLUSH_S: Final = 10.0
"""Seconds between two flushes to the recorder; a crash may lose this much."""
STAGES: Final[dict[State, Stage]] = {
    State.STARTING: "waking",
    State.STANDBY: "waking",
    State.LOADING: "waking",
    State.READY: "up",
    State.DRAINING: "up",
    State.PARKING: "up",
    State.PROVING: "up",
    State.PARKED: "parked",
    State.UNPARKING: "waking",
    State.VERIFYING: "waking",
}
"""Stages by state. A RELEASING replica serves no calls and is not counted."""


class Owner(NamedTuple):
    """The revision that seconds are counted for; name "" and number 0 for standbys."""

    namespace: str
    name: str
    number: int


class _BusySample(NamedTuple):
    at_s: float
    busy_s: float


@dataclass(slots=True)
class _ReplicaUsage:
    """Usage of one replica. Seconds until `settled_s` are in the sums. `busy_s` is the accepted
    time of its runs so far, `reported_ms` its last report, None before there is a base for it."""

    owner: Owner
    devices: tuple[str, ...]
    stage: Stage
    settled_s: float
    reported_ms: int | None
    busy_s: float = 0.0
    samples: deque[_BusySample] = field(default_factory=deque)


class UsageMeter:
    """Sums seconds per minute, owner and device. `now` is in monotonic seconds.

    Every second between a replica's record and its end is counted exactly once. Reported busy time
    is capped at the elapsed time, so no idle time is negative. Only PONGs separate idle from busy
    seconds, so the seconds of an "up" replica are counted at its next PONG; those after its last
    PONG count as idle.
    """

    def __init__(self, offset_s: float) -> None:
        """`offset_s` is the Unix time at monotonic 0; the owner may correct it later."""
        self.offset_s = offset_s
        self._replicas: dict[str, _ReplicaUsage] = {}
        self._sums: dict[tuple[Owner, str, int], list[float]] = {}

    def set_stage(
        self, id: str, owner: Owner, devices: tuple[str, ...], stage: Stage, now: float
    ) -> None:
        """Set the stage of a replica from `now` on; the first call starts its usage. Its seconds
        count on each of its devices."""
        account = self._replicas.get(id)
        if account is None:
            self._replicas[id] = _ReplicaUsage(owner, devices, stage, now, 0)
            return
        if (account.owner, account.devices, account.stage) != (owner, devices, stage):
            self._settle(account, now, 0.0)
            account.owner, account.devices, account.stage = owner, devices, stage
            if stage == "parked":
                account.samples.clear()

    def adopt(self, id: str) -> None:
        """Mark a replica as adopted: its first PONG is only the base for later ones."""
        self._replicas[id].reported_ms = None

    def report_busy(self, id: str, reported_ms: int, now: float) -> None:
        """Record a PONG: `reported_ms` is the total run time in milliseconds, modulo 2**32."""
        account = self._replicas.get(id)
        if account is None or account.stage != "up":
            return
        before_ms, account.reported_ms = account.reported_ms, reported_ms
        more_ms = 0 if before_ms is None else (reported_ms - before_ms) & BUSY_MASK
        if more_ms > BACK_MS:
            more_ms = 0
        busy_s = min(more_ms / 1e3, max(0.0, now - account.settled_s))
        if not account.samples:
            account.samples.append(_BusySample(account.settled_s, account.busy_s))
        self._settle(account, now, busy_s)
        if before_ms is None:
            account.samples.clear()
        account.samples.append(_BusySample(now, account.busy_s))
        while len(account.samples) > 2 and account.samples[1].at_s <= now - WINDOW_S:
            account.samples.popleft()

    def end(self, id: str, now: float) -> None:
        """End the usage of a replica."""
        account = self._replicas.pop(id, None)
        if account is not None:
            self._settle(account, now, 0.0)

    def knows(self, id: str) -> bool:
        """Whether a replica is counted."""
        return id in self._replicas

    def busy(self, device: str) -> float | None:
        """Return the share of the last WINDOW_S in which a model ran on a device, 0 to 1; None
        before the first PONG of its replicas."""
        up = [one for one in self._replicas.values() if one.stage == "up" and device in one.devices]
        shares = [_share(one.samples) for one in up if len(one.samples) > 1]
        return None if up and not shares else min(1.0, sum(shares, 0.0))

    def take(self, now: float) -> list[Use]:
        """Return and reset the sums since the last call. Several records of the same minute add
        up."""
        for account in self._replicas.values():
            if account.stage != "up":
                self._settle(account, now, 0.0)
        sums, self._sums = self._sums, {}
        return [
            Use(*owner, device, minute, *took) for (owner, device, minute), took in sums.items()
        ]

    def _settle(self, account: _ReplicaUsage, now: float, busy_s: float) -> None:
        """Add the time until `now` to the sums; `busy_s` of it is busy, spread evenly."""
        from_s, account.settled_s = account.settled_s, max(account.settled_s, now)
        account.busy_s += busy_s
        length_s = account.settled_s - from_s
        if not length_s or not account.devices:
            return
        share = min(1.0, busy_s / length_s)
        start_s, end_s = from_s + self.offset_s, account.settled_s + self.offset_s
        for minute, seconds in by_minute(start_s, end_s):
            for device in account.devices:
                took = self._sums.setdefault((account.owner, device, minute), [0.0, 0.0, 0.0])
                if account.stage == "waking":
                    took[0] += seconds
                else:
                    took[1] += seconds * (1 - share)
                    took[2] += seconds * share


def _share(samples: deque[_BusySample]) -> float:
    first, last = samples[0], samples[-1]
    passed_s = last.at_s - first.at_s
    return (last.busy_s - first.busy_s) / passed_s if passed_s > 0 else 0.0


NOBODY: Final = Owner("", "", 0)
FUNCTIONS_MAX: Final = 1000
"""Max functions with totals of their own; those of further and of removed ones are added up as
OTHERS, and the time that no function holds as IDLE."""
HOUR_S: Final = 3600
NAME_MAX: Final = 200
"""Max characters of the name of a GPU that are kept."""


class HeldTotal(NamedTuple):
    """Device-seconds and joules since the server's start, by function and kind of device."""

    namespace: str
    function: str
    kind: str
    held_s: float
    joules: float


class HeldTotals:
    """Totals by function and kind of device."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], list[float]] = {}
        self._functions: set[tuple[str, str]] = set()

    def add(self, one: Attributed[Owner], kind: str) -> None:
        """Add the time and the energy of a device of this kind."""
        name = (NAMESPACE, IDLE) if one.owner is None else (one.owner.namespace, one.owner.name)
        if name not in self._functions and len(self._functions) >= FUNCTIONS_MAX:
            name = (NAMESPACE, OTHERS)
        self._functions.add(name)
        sums = self._sums.setdefault((*name, kind), [0.0, 0.0])
        sums[0] += one.held_s
        sums[1] += one.joules

    def list(self) -> list[HeldTotal]:
        """Return all totals."""
        return [HeldTotal(*key, *sums) for key, sums in self._sums.items()]

    def keep(self, present: Collection[tuple[str, str]]) -> None:
        """Add the totals of functions that are not `present`, as (namespace, name), to OTHERS: a
        later function of the same name begins at 0."""
        for name in self._functions - {*present, (NAMESPACE, IDLE), (NAMESPACE, OTHERS)}:
            self._functions.discard(name)
            for key in [key for key in self._sums if key[:2] == name]:
                others = self._sums.setdefault((NAMESPACE, OTHERS, key[2]), [0.0, 0.0])
                for index, value in enumerate(self._sums.pop(key)):
                    others[index] += value


_UseKey = tuple[str, str, int, str, int]


def _key(use: Use) -> _UseKey:
    return use.namespace, use.name, use.number, use.device, use.minute_s


def _add(records: dict[_UseKey, Use], use: Use) -> None:
    """Add the time and the energy of a device to the record of its owner and minute."""
    known = records.get(_key(use), replace(use, held_s=0.0, joules=0.0))
    held_s, joules = known.held_s + use.held_s, known.joules + use.joules
    records[_key(use)] = replace(known, held_s=held_s, joules=joules)


class UsageMonitor:
    """Meters the machine's replicas and devices, and flushes the sums to the recorder.

    `clocks` are a monotonic one and one that returns Unix seconds; `bindings` is shared with the
    owner. The energy of GPUs, by their `views`, is sampled at each tick.
    """

    def __init__(
        self,
        machine: Machine,
        bindings: Mapping[str, Binding],
        recorder: Recorder,
        clocks: tuple[Callable[[], float], Callable[[], float]],
        views: GpuViews,
    ) -> None:
        self._machine = machine
        self._bindings = bindings
        self._recorder = recorder
        self._view = views
        self._clock, self._wall = clocks
        offset_s = self._wall() - self._clock()
        self._meter, self._attribution = UsageMeter(offset_s), Attribution[Owner](offset_s)
        self._nobodys: dict[_UseKey, Use] = {}
        self._kinds: dict[str, str] = {}
        self._models: dict[str, DeviceModel | None] = {}
        self._flushed_s = self._clock()
        self._totals = HeldTotals()
        self._set_devices()

    def observe(self, about: object) -> None:
        """Meter the replica that an event or a command is about, if any."""
        id = getattr(about, "id", None)
        if not isinstance(id, str):
            return
        now, replica = self._clock(), self._machine.replica(id)
        stage = STAGES.get(replica.state) if replica is not None else None
        if replica is None or stage is None:
            self._meter.end(id, now)
            self._attribution.release(id, now)
            return
        if replica.role == "standby":
            stage = "waking" if replica.state is State.STARTING else "standby"
        is_new, owner = not self._meter.knows(id), self._owner(replica)
        # What a parked replica keeps of its devices is no use of them: others have the whole.
        devices = replica.devices if stage != "parked" else ()
        self._meter.set_stage(id, owner, devices, stage, now)
        if is_new and replica.adopted:
            self._meter.adopt(id)
        # A replica that is kept without a CPU slot holds no device, nor does one that is parked.
        charge = self._machine.cluster.ledger.charge_of(id)
        holder = Holder(None if owner == NOBODY else owner, charge.share)
        self._attribution.hold(id, charge.devices, holder, now)

    def on_pong(self, id: str, busy_ms: int) -> None:
        """Record a PONG: `busy_ms` is the model's total run time in milliseconds, modulo 2**32."""
        self._meter.report_busy(id, busy_ms, self._clock())

    def tick(self) -> None:
        """Observe every replica, because the assignment of a standby is not an event; sample the
        energy of GPUs; flush every FLUSH_S."""
        self._set_devices()
        for replica in self._machine.replicas():
            self.observe(replica)
        now = self._clock()
        for device in self._machine.devices.values():
            if device.kind != "cpu" and (view := self._view(device)) is not None:
                telemetry = view.reading.telemetry if view.reading is not None else None
                if telemetry is not None and telemetry.energy_mj is not None:
                    self._attribution.sample(device.id, telemetry.energy_mj, view.part, now)
        if now - self._flushed_s >= FLUSH_S:
            self.flush()

    def flush(self, *, is_last: bool = False) -> None:
        """Pass the sums so far to the recorder, those without an owner only once their minute is
        over: a server without calls then writes only once a minute. `is_last`: pass all."""
        self._flushed_s = now = self._clock()
        records = {_key(record): record for record in self._meter.take(now)}
        for one in self._attribution.take(now):
            self._totals.add(one, self._kinds.get(one.device) or kind_of(one.device))
            into = self._nobodys if one.owner is None else records
            use = Use(*(one.owner or NOBODY), one.device, one.minute_s)
            _add(into, replace(use, held_s=one.held_s, joules=one.joules))
        present = (now + self._attribution.offset_s) // MINUTE_S * MINUTE_S
        for record in list(self._nobodys.values()):
            if is_last or record.minute_s < present:
                _add(records, self._nobodys.pop(_key(record)))
        for record in records.values():
            self._recorder.use(record)
        self._record_models()
        # The wall clock may be set: later seconds are counted by the new time.
        self._meter.offset_s = self._attribution.offset_s = self._wall() - now

    def totals(self) -> list[HeldTotal]:
        """Return the totals of functions that are deployed; OTHERS has those of removed ones."""
        self._totals.keep({(one.namespace, one.name) for one in self._bindings.values()})
        return self._totals.list()

    def busy(self, device: str) -> float | None:
        """As `UsageMeter.busy`."""
        return self._meter.busy(device)

    def _set_devices(self) -> None:
        devices = self._machine.devices
        if devices.keys() == self._kinds.keys():
            return
        self._attribution.set_devices(devices.keys(), self._clock())
        self._kinds = {id: device.kind for id, device in devices.items()}

    def _record_models(self) -> None:
        """Record what devices are: new or changed ones, and every one once an hour."""
        at_s = self._wall() // HOUR_S * HOUR_S
        models = {id: self._model(id, kind, at_s) for id, kind in self._kinds.items()}
        for id, model in models.items():
            if model is not None and self._models.get(id) != model:
                self._recorder.device_model(model)
        self._models = models

    def _model(self, id: str, kind: str, at_s: float) -> DeviceModel | None:
        """Return what a device is, None for a GPU that is gone or whose driver has not answered."""
        if kind == "cpu":
            return DeviceModel(id, kind, "", 1.0, at_s)
        device = self._machine.devices.get(id)
        view = self._view(device) if device is not None else None
        if view is None:
            return None
        return DeviceModel(id, kind, (view.name or "")[:NAME_MAX], view.part, at_s)

    def _owner(self, replica: Replica) -> Owner:
        """Return the owner of a replica's seconds. A trial counts for its function, with number 0:
        there is no revision yet."""
        if replica.role == "standby":
            return NOBODY
        if binding := self._bindings.get(replica.pool):
            return Owner(binding.namespace, binding.name, binding.number)
        # Adopted, and its revision is gone: the pool's key names the function.
        namespace, _, ref = replica.pool.partition("/")
        return Owner(namespace, ref.partition("@")[0], 0)
