"""Reports of pools and devices: decisions, states, cold starts, device occupancy, endpoints."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import msgspec

from pool_manager.core.commands import RecordColdStart
from pool_manager.core.ledger import Ledger
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, DeviceState, Replica, State
from pool_manager.host import Located
from pool_manager.parked import wake_s, wake_text
from pool_manager.ports import Binding, Charges, GpuView, GpuViews, Recorder
from pool_manager.subscribers import Subscribers
from registry.exchange import Endpoints, HostRoute, PoolEndpoints, encode
from registry.model.history import ColdStart, Decision, StateInterval


class Journal:
    """Journal of pools: keeps the last `kept` decisions per pool in memory, and passes cold starts
    and state intervals to the recorder.

    `wall` returns Unix seconds.
    """

    def __init__(self, recorder: Recorder, wall: Callable[[], float], kept: int) -> None:
        self._recorder = recorder
        self._wall = wall
        self._kept = kept
        self._decisions: dict[str, deque[Decision]] = {}
        self._states: dict[str, tuple[str, str, float]] = {}
        self.decided = Subscribers[[str, Decision]]()

    def note(self, key: str, text: str) -> None:
        """Record a decision about a pool, and notify `decided`."""
        decision = Decision(self._wall(), text)
        self._decisions.setdefault(key, deque(maxlen=self._kept)).append(decision)
        self.decided.notify(key, decision)

    def decisions(self, key: str) -> list[Decision]:
        """Return the decisions about a pool, oldest first."""
        return list(self._decisions.get(key, ()))

    def forget(self, key: str) -> None:
        """Drop the records of a pool that was removed."""
        self._decisions.pop(key, None)
        self._states.pop(key, None)

    def state(self, key: str, shown: PoolEndpoints, binding: Binding) -> None:
        """Record a pool's state; when it changes, the interval of the previous state is passed to
        the recorder."""
        now = self._wall()
        before = self._states.get(key)
        if before is not None and before[0] == shown.state:
            return
        self._states[key] = (shown.state, shown.reason, now)
        if before is not None:
            state, reason, since = before
            self._recorder.state_interval(
                StateInterval(
                    binding.namespace, binding.name, binding.number, state, reason, since, now
                )
            )

    def since_s(self, key: str) -> float:
        """Return the Unix time at which a pool's present state began; now if it never had one."""
        return self._states[key][2] if key in self._states else self._wall()

    def cold_start(self, kept: RecordColdStart, binding: Binding, device_kind: str) -> None:
        """Pass a cold start to the recorder."""
        self._recorder.cold_start(
            ColdStart(
                binding.namespace,
                binding.name,
                binding.number,
                kept.id,
                device_kind,
                self._wall() - kept.ago_s,
                round(kept.total_ms, 3),
                kept.phases,
                kept.outcome,
                kept.host,
                kept.session,
                kept.devices,
            )
        )


@dataclass(frozen=True, slots=True)
class Occupancy:
    """State of a device, with the ids of its replicas and the MiB charged for them, for those that
    are kept without a CPU slot and had this one last, and for parked ones, which do not hold it.

    `quarantined`: the release of a replica failed, its memory may still be in use. `cordoned`: no
    replicas are placed on the device because of an error. `gpu` is None for CPU slots. `leaked_mib`
    is the memory that quarantined replicas still hold, as far as the device shows it.
    """

    device: Device
    state: DeviceState
    reason: str
    replicas: tuple[str, ...]
    charged_mib: float
    gpu: GpuView | None
    leaked_mib: float = 0.0
    parked: tuple[str, ...] = ()
    """Ids of the replicas that sleep and keep memory of it."""
    residue_mib: float = 0.0
    """The part of `charged_mib` that these keep."""


def charges(ledger: Ledger, device: str, id: str) -> Charges:
    """Return what replica `id` and the others are charged in a device's memory bank, standbys
    included."""
    bank = ledger.devices[device].bank
    charges = {one: ledger.charge_of(one).mib_in(bank) for one in ledger.in_bank(bank)}
    own_mib = charges.pop(id, 0.0)
    return Charges(own_mib, len(charges), sum(charges.values()))


def occupancies(machine: Machine, views: GpuViews) -> list[Occupancy]:
    """Return the occupancy of every device, in the machine's order. A replica that is kept without
    a CPU slot is on none; its memory is that of the slot that it had last."""
    there: dict[str, list[Replica]] = {}
    kept_mib = defaultdict[str, float](float)
    ledger = machine.cluster.ledger
    for replica in machine.replicas():
        if machine.cluster.is_on_cpu(replica) and not ledger.has_slot(replica.id):
            kept_mib[replica.first_device] += ledger.charge_of(replica.id).memory_mib
            continue
        for id in replica.devices:
            there.setdefault(id, []).append(replica)
    return [
        _occupancy(
            device,
            there.get(device.id, []),
            kept_mib[device.id],
            ledger,
            views(device),
        )
        for device in machine.devices.values()
    ]


def _occupancy(
    device: Device,
    replicas: list[Replica],
    kept_mib: float,
    ledger: Ledger,
    view: GpuView | None,
) -> Occupancy:
    charged = {one.id: ledger.charge_of(one.id) for one in replicas}
    parked = tuple(id for id, charge in charged.items() if charge.is_parked)
    state, reason = _state(device.id, replicas, ledger, is_held=len(parked) < len(replicas))
    charged_mib = kept_mib + sum(charge.memory_mib for charge in charged.values())
    stuck_mib = sum(charged[one.id].memory_mib for one in replicas if _is_stuck(one))
    return Occupancy(
        device,
        state,
        reason,
        tuple(id for id in charged if id not in parked),
        charged_mib,
        view,
        _leaked_mib(stuck_mib, charged_mib, view),
        parked,
        sum(charged[id].memory_mib for id in parked),
    )


def _leaked_mib(stuck_mib: float, charged_mib: float, gpu: GpuView | None) -> float:
    """Return the MiB that stuck replicas still hold. For a GPU they are taken from its memory in
    use, which may be more than was charged, or nothing."""
    if not stuck_mib or gpu is None or gpu.used_mib is None:
        return stuck_mib
    return max(0.0, gpu.used_mib - gpu.foreign_mib - (charged_mib - stuck_mib))


def _is_stuck(replica: Replica) -> bool:
    """Whether a replica's release has failed at least once and is still pending."""
    return replica.state is State.RELEASING and replica.deadline_s < inf


def _state(
    device: str, replicas: list[Replica], ledger: Ledger, *, is_held: bool
) -> tuple[DeviceState, str]:
    """Return a device's state and reason: a cordon takes precedence over a quarantine, and that
    over "taken". A device whose replicas all sleep is free. One that is refused to new replicas is
    taken: others have it."""
    if device in ledger.cordons:
        return "cordoned", ledger.cordons[device].reason
    for replica in replicas:
        if _is_stuck(replica):
            return "quarantined", f"{replica.id}: {replica.why}"
    if device in ledger.refusals:
        return "taken", f"refused: {ledger.refusals[device].reason}"
    return ("taken", "") if is_held else ("free", "")


class Publisher:
    """Publishes the machine's pools as serialised Endpoints messages."""

    def __init__(
        self,
        machine: Machine,
        journal: Journal,
        bindings: dict[str, Binding],
        located: Callable[[str], Located],
        clock: Callable[[], float],
        routes: Callable[[], dict[str, HostRoute]] = dict,
    ) -> None:
        """`bindings` is shared with the owner, by pool key; entries of removed pools are deleted.
        `located(id)` returns where gateways reach a replica, `routes()` the other hosts with
        replicas."""
        self._machine = machine
        self._journal = journal
        self._bindings = bindings
        self._located = located
        self._routes = routes
        self._clock = clock
        self._seq = itertools.count(1)
        self._workers: set[str] = set()
        self.messages = Subscribers[[bytes]]()
        """Notified with every Endpoints message."""

    def add_worker(self, worker: str) -> None:
        """Register a gateway worker that sent a demand; if it is new, publish all pools."""
        if worker not in self._workers:
            self._workers.add(worker)
            self.publish(frozenset(self._bindings), full=True)

    def remove_worker(self, worker: str) -> None:
        """Forget a gateway worker that is gone."""
        self._workers.discard(worker)

    def endpoints(self, key: str) -> PoolEndpoints:
        """Return the machine's endpoints of a pool, completed with socket paths, `wake_s` and the
        reason of a wake, and with a duration from now in place of the monotonic
        `retry_after_s`."""
        now = self._clock()
        shown = self._machine.endpoints(key, now)
        replicas = [
            msgspec.structs.replace(one, **self._located(one.id)._asdict())
            for one in shown.replicas
        ]
        wait_s = max(0.0, shown.retry_after_s - now) if shown.retry_after_s else 0.0
        pool = self._machine.pools[key]
        reason = (wake_text(pool) if shown.state == "waking" else "") or shown.reason
        return msgspec.structs.replace(
            shown, replicas=replicas, reason=reason, retry_after_s=wait_s, wake_s=wake_s(pool)
        )

    def publish(self, keys: frozenset[str], *, full: bool = False) -> None:
        """Publish the endpoints of these pools; `full`: the message lists all pools."""
        pools = {}
        for key in keys:
            if key not in self._machine.pools:
                self._bindings.pop(key, None)
                self._journal.forget(key)
                pools[key] = PoolEndpoints([], "gone", "removed")
                continue
            if self._machine.pools[key].spec.role != "serve":
                continue
            pools[key] = self.endpoints(key)
            # Replicas that an earlier manager left of a function that is gone have no binding.
            if binding := self._bindings.get(key):
                self._journal.state(key, pools[key], binding)
        if not self._workers:
            # The first worker gets all pools when it registers. This saves thousands of messages
            # at a start.
            return
        self.messages.notify(encode(Endpoints(next(self._seq), full, pools, self._routes())))
