"""GPU memory of replicas, and the proof that it was freed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pool_manager.core.events import Greeted, Loaded
from pool_manager.core.state import Device
from pool_manager.gpus.absent import NoGpus
from pool_manager.gpus.occupancy import GpuOccupancy
from pool_manager.ports import Charges, GpuView
from registry.errors import DriverError
from runtime_image.contract.gpus import Reading
from tests.support.fake_driver.driver import FakeDriver, FakeProcesses

ID, GPU = "aaaa0001", "GPU-a"
VIEW = GpuView(None, "0", None, None, None, None, 0.0)


class Answers(FakeProcesses):
    """Processes that were listed before, in order."""

    def __init__(self, log: list[Any], *pids: frozenset[int] | DriverError | None) -> None:
        super().__init__(lambda _id: True)
        self._log = log
        self._answers = list(pids)

    async def pids(self, id: str) -> frozenset[int] | None:
        self._log.append("pids")
        answer = self._answers.pop(0)
        if isinstance(answer, DriverError):
            raise answer
        return answer


class Driver(FakeDriver):
    """A driver that knows processes and records its calls in order."""

    def __init__(self, log: list[Any], *pids: frozenset[int] | DriverError | None) -> None:
        super().__init__()
        self._log = log
        self.processes = Answers(log, *pids)

    async def release(self, id: str) -> None:
        self._log.append("release")


class Gpus(NoGpus):
    """One GPU; `taken` is the measured memory, `left` the error of a proof."""

    def __init__(self, log: list[Any], taken: float | None = None, left: str = "") -> None:
        super().__init__()
        self._log = log
        self._taken = taken
        self.left = left

    def view(self, device: str) -> GpuView | None:
        return VIEW if device == GPU else None

    def used_mib(self, device: str) -> float | None:
        return 40.0

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        self._log.append((device, pids, before_mib, is_alone))
        return self._taken

    async def held_mib(self, device: str, pids: frozenset[int]) -> float | None:
        self._log.append((device, pids))
        return self._taken

    async def prove_free(
        self, device: str, pids: frozenset[int] | None, others_mib: Callable[[], float]
    ) -> None:
        self._log.append((device, pids, others_mib()))
        if self.left:
            raise DriverError(self.left)


@pytest.fixture
def log() -> list[Any]:
    return []


def loaded(report: dict[str, Any] | None = None) -> Loaded:
    """A replica's Loaded event, with 77 MiB of host memory."""
    return Loaded(ID, 1, True, 77.0, {}, report or {})


def tenancy(driver: Driver, gpus: Gpus, others: int = 0) -> GpuOccupancy:
    """The ledger charges the replica 900 MiB and each other 50."""
    host: Any = SimpleNamespace(driver=driver, processes=driver.processes, gpus=gpus)
    return GpuOccupancy(
        lambda _id: host, lambda _device, _id: Charges(900.0, others, others * 50.0)
    )


async def measured(tenants: GpuOccupancy, event: Loaded) -> Loaded:
    """Return the event that is emitted instead."""
    fed: list[Loaded] = []
    await tenants.measure(event, fed.append)
    [one] = fed
    return one


async def test_a_replica_is_measured_on_its_gpu(log: list[Any]) -> None:
    """The measurement gets the processes, the memory in use before the launch, and whether the
    replica is alone."""
    tenants = tenancy(Driver(log, frozenset({7})), Gpus(log, 640.0))
    tenants.begin(ID, (GPU,))
    event = await measured(tenants, loaded())

    assert log == ["pids", (GPU, frozenset({7}), 40.0, True)]
    assert (event.memory_mib, event.report) == (640.0, {})


async def test_a_standby_is_measured_with_what_it_had(log: list[Any]) -> None:
    """A standby's memory is measured from its launch on; memory of others may have been freed
    since."""
    gpus, used = Gpus(log, 640.0), iter([40.0, 540.0, None, 20.0])
    gpus.used_mib = lambda device: next(used)  # type: ignore[method-assign]
    tenants = tenancy(Driver(log, *[frozenset({7})] * 3), gpus)
    for _ in range(2):
        tenants.begin(ID, (GPU,))
    await measured(tenants, loaded())
    for _ in range(2):
        tenants.begin(ID, (GPU,))
        await measured(tenants, loaded())

    assert [entry[2] for entry in log if entry != "pids"] == [40.0, 40.0, 20.0]


async def test_an_adopted_replica_is_measured_by_its_processes(log: list[Any]) -> None:
    """An adopted replica is measured by its processes only: the memory before its launch is
    unknown."""
    tenants = tenancy(Driver(log, frozenset({7})), Gpus(log, 640.0))
    tenants.adopt(ID, (GPU,))
    event = await measured(tenants, loaded())

    assert log == ["pids", (GPU, frozenset({7}), None, True)]
    assert event.memory_mib == 640.0


async def test_a_trial_reports_what_was_measured(log: list[Any]) -> None:
    """A trial's report contains the measured memory; the rest is unchanged."""
    tenants = tenancy(Driver(log, None), Gpus(log, 640.0))
    tenants.begin(ID, (GPU,))
    event = await measured(tenants, loaded({"memory_mib": 77.0, "load_ms": 3}))

    assert (event.memory_mib, event.report) == (640.0, {"memory_mib": 640.0, "load_ms": 3})


async def test_what_cannot_be_measured_stays_charged(log: list[Any]) -> None:
    """If the memory cannot be measured, the charge is kept, also if the processes are unknown."""
    tenants = tenancy(Driver(log, DriverError("away")), Gpus(log), others=1)
    tenants.begin(ID, (GPU,))
    event = await measured(tenants, loaded({"memory_mib": 77.0}))

    assert log == ["pids", (GPU, None, 40.0, False)]
    assert (event.memory_mib, event.report) == (900.0, {"memory_mib": 900.0})


def test_only_gpus_are_its_concern(log: list[Any]) -> None:
    """Only replicas on GPUs are covered, not those on CPU slots or without a device."""
    tenants = tenancy(Driver(log), Gpus(log))
    for id, devices in (("r1", (GPU,)), ("r2", ("cpu:0",)), ("r3", ())):
        tenants.begin(id, devices)
        tenants.adopt(id, devices)
    assert [tenants.covers(id) for id in ("r1", "r2", "r3")] == [True, False, False]


async def test_a_replica_is_ended_before_its_gpu_is_looked_at(log: list[Any]) -> None:
    """A replica's processes are listed before its end, which comes before the proof."""
    tenants = tenancy(Driver(log, frozenset({7})), Gpus(log), others=2)
    tenants.begin(ID, (GPU,))
    await tenants.release(ID)

    assert log == ["pids", "release", (GPU, frozenset({7}), 100.0)]
    assert not tenants.covers(ID)


async def test_processes_are_remembered_until_it_is_proved(log: list[Any]) -> None:
    """A retried release looks for all processes that the replica ever had."""
    gpus = Gpus(log, left="still there")
    driver = Driver(log, frozenset({7}), frozenset({8}), frozenset())
    tenants = tenancy(driver, gpus)
    tenants.begin(ID, (GPU,))
    await measured(tenants, loaded())
    with pytest.raises(DriverError, match="still there"):
        await tenants.release(ID)
    gpus.left = ""
    await tenants.release(ID)

    assert [entry[1] for entry in log if isinstance(entry, tuple) and len(entry) == 3] == [
        frozenset({7, 8}),
        frozenset({7, 8}),
    ]


async def test_a_replica_that_is_given_up_is_no_other_tenant(log: list[Any]) -> None:
    """Its host was removed: what has its pids on a GPU of that name later is another program."""
    tenants = tenancy(Driver(log, frozenset({7})), Gpus(log), others=1)
    for id in (ID, "dead0001"):
        tenants.begin(id, (GPU,))
    tenants.forget("dead0001")
    await tenants.release(ID)

    assert not tenants.covers("dead0001")
    assert log == ["pids", "release", (GPU, frozenset({7}), 50.0)]


async def test_nothing_is_told_of_a_replica_that_goes_while_it_is_measured(log: list[Any]) -> None:
    """The machine does not know it any more."""
    fed: list[Loaded] = []
    driver = Driver(log)

    class Leaving(FakeProcesses):
        async def pids(self, id: str) -> frozenset[int] | None:
            tenants.forget(id)
            return frozenset({7})

    driver.processes = Leaving(lambda _id: True)
    tenants = tenancy(driver, Gpus(log, taken=640.0))
    tenants.begin(ID, (GPU,))
    await tenants.measure(loaded(), fed.append)

    assert fed == []


async def test_elsewhere_a_replica_is_just_ended(log: list[Any]) -> None:
    """On other devices a release does not list processes."""
    tenants = tenancy(Driver(log), Gpus(log))
    tenants.begin(ID, ("cpu:0",))
    await tenants.release(ID)

    assert log == ["release"]


OTHER = "GPU-2"


class TwoGpus(Gpus):
    """A second GPU, on which replicas take other amounts, None for unknown."""

    def __init__(self, log: list[Any], *taken: float | None) -> None:
        super().__init__(log)
        self._taken = list(taken)

    def view(self, device: str) -> GpuView | None:
        return VIEW if device in (GPU, OTHER) else None

    def used_mib(self, device: str) -> float | None:
        return {GPU: 40.0, OTHER: None}[device]

    async def taken_mib(
        self, device: str, pids: frozenset[int] | None, before_mib: float | None, *, is_alone: bool
    ) -> float | None:
        await super().taken_mib(device, pids, before_mib, is_alone=is_alone)
        return self._taken.pop(0)


@pytest.mark.parametrize(
    ("taken", "expected"), [((640.0, 700.0), 700.0), ((640.0, None), 900.0), ((950.0, None), 950.0)]
)
async def test_the_most_on_one_of_several_gpus_is_measured(
    log: list[Any], taken: tuple[float | None, ...], expected: float
) -> None:
    """Each GPU is measured with what was in use there; the charge stands for what is unknown."""
    tenants = tenancy(Driver(log, frozenset({7})), TwoGpus(log, *taken))
    tenants.begin(ID, (GPU, OTHER, "cpu:0"))

    assert tenants.used_mib(ID) == 40.0
    assert (await measured(tenants, loaded())).memory_mib == expected
    assert log == ["pids", *((one, frozenset({7}), mib, True) for one, mib in BEFORE)]


BEFORE = ((GPU, 40.0), (OTHER, None))


async def test_a_replica_is_ended_when_each_of_its_gpus_is_free(log: list[Any]) -> None:
    """The proof of every GPU is needed; a release that is tried again asks for all."""
    gpus = TwoGpus(log)
    tenants = tenancy(Driver(log, frozenset({7}), frozenset()), gpus)
    tenants.begin(ID, (GPU, OTHER))
    await tenants.release(ID)

    assert log == ["pids", "release", (GPU, frozenset({7}), 0.0), (OTHER, frozenset({7}), 0.0)]
    assert tenants.used_mib(ID) is None


async def test_what_a_replica_holds_is_read_anew(log: list[Any]) -> None:
    """Each reading lists the processes again, beside those that were listed before; one that was
    never listed says nothing of the GPU."""
    driver = Driver(log, None, frozenset({7}), frozenset({8}))
    occupancy = tenancy(driver, Gpus(log, 640.0))
    occupancy.begin(ID, (GPU,))

    assert await occupancy.held_mib(ID) == {GPU: None}
    assert await occupancy.held_mib(ID) == {GPU: 640.0}
    assert await occupancy.held_mib(ID) == {GPU: 640.0}
    assert await occupancy.held_mib("another") == {}

    assert log == ["pids", "pids", (GPU, frozenset({7})), "pids", (GPU, frozenset({7, 8}))]


async def test_what_others_hold_there_is_not_what_is_left(log: list[Any]) -> None:
    """A trial on the same GPU may hold more than it is charged: the end of another replica is
    proved all the same. What its processes hold counts, once more than the charges."""
    driver = Driver(log, frozenset({7}), frozenset({8}))
    occupancy = tenancy(driver, Gpus(log, 8_192.0), others=1)
    occupancy.adopt(ID, (GPU,))
    occupancy.adopt("trial", (GPU,))

    await occupancy.release(ID)

    assert log == ["pids", "release", "pids", (GPU, frozenset({8})), (GPU, frozenset({7}), 8_192.0)]


SECOND = "aaaa0002"
SLOTS = ("c/n/gpu-0", "c/n/gpu-1")


class Published(NoGpus):
    """GPUs of a host that nobody reads: slots of a device plugin, or GPUs by their UUIDs."""

    def __init__(self, *devices: str, is_exclusive: bool, memory_mib: float = 1000.0) -> None:
        super().__init__()
        self._devices = [
            Device(one, "cuda", memory_mib, host="c/n", is_exclusive=is_exclusive)
            for one in devices
        ]

    def devices(self) -> list[Device]:
        return self._devices

    def view(self, device: str) -> GpuView | None:
        return VIEW if any(one.id == device for one in self._devices) else None


def seen(uuid: str, used_mib: float | None = 0.0, total_mib: float | None = 1000.0) -> Reading:
    return Reading(uuid, "", total_mib=total_mib, used_mib=used_mib)


def published(*devices: str, memory_mib: float = 1000.0) -> Any:
    """Return GPUs by their UUIDs, or the slots of a plugin."""
    return Published(*(devices or SLOTS), is_exclusive=not devices, memory_mib=memory_mib)


def slots(log: list[Any], memory_mib: float = 1000.0) -> GpuOccupancy:
    return tenancy(Driver(log), published(memory_mib=memory_mib))


def why(tenants: GpuOccupancy, *gpus: Reading, id: str = ID, has_model: bool = False) -> str:
    return tenants.why_refused(Greeted(id, {}, has_model, gpus))


def test_a_replica_that_sees_a_free_gpu_may_load(log: list[Any]) -> None:
    """Enough free memory, or memory that is not reported, is no obstacle."""
    tenants = slots(log)
    tenants.begin(ID, SLOTS[:1])
    assert why(tenants, seen("GPU-a", 50.0)) == ""
    assert why(tenants, seen("GPU-a", None)) == why(tenants, seen("GPU-a", total_mib=None)) == ""


def test_a_gpu_that_others_use_is_no_place(log: list[Any]) -> None:
    """Less than 95 % of the memory that the ledger expects to be free is too little."""
    tenants = slots(log)
    tenants.begin(ID, SLOTS[:1])
    assert why(tenants, seen("GPU-a", 51.0)) == (
        "GPU-a has 949 MiB free, expected 1,000: programs that are no replicas use it"
    )


def test_what_the_ledger_does_not_know_is_not_expected(log: list[Any]) -> None:
    """A device of unknown memory is not judged."""
    tenants = slots(log, memory_mib=0.0)
    tenants.begin(ID, SLOTS[:1])
    assert why(tenants, seen("GPU-a", 1000.0)) == ""


def test_memory_of_other_replicas_is_expected_to_be_used(log: list[Any]) -> None:
    """What other replicas are charged is not expected to be free."""
    tenants = tenancy(Driver(log), published("c/n/GPU-a"), others=8)  # they are charged 400 MiB
    tenants.begin(ID, ("c/n/GPU-a",))
    assert why(tenants, seen("GPU-a", 430.0)) == ""
    assert why(tenants, seen("GPU-a", 431.0)) != ""


def test_two_slots_of_one_gpu_are_one_place(log: list[Any]) -> None:
    """A plugin that shares GPUs may give two Pods the same one: it is charged once."""
    tenants = slots(log)
    tenants.begin(ID, SLOTS[:1])
    tenants.begin(SECOND, SLOTS[1:])
    assert why(tenants, seen("GPU-a")) == ""
    refused = f"its host gave it GPU-a, which the replica {ID} has already"
    assert why(tenants, seen("GPU-a"), id=SECOND) == refused
    tenants.forget(ID)
    assert why(tenants, seen("GPU-a"), id=SECOND) == ""


def test_an_adopted_replica_has_its_gpu(log: list[Any]) -> None:
    """A replica that has its model is not judged, but nobody else gets its GPU; it may greet before
    the GPUs of its host are known."""
    tenants = slots(log)
    assert why(tenants, seen("GPU-a", 900.0), has_model=True) == ""
    tenants.begin(SECOND, SLOTS[1:])
    assert why(tenants, seen("GPU-a"), id=SECOND) == ""
    tenants.adopt(ID, SLOTS[:1])
    assert why(tenants, seen("GPU-a", 900.0), has_model=True) == ""
    assert why(tenants, seen("GPU-a"), id=SECOND) != ""


def test_replicas_on_one_device_share_its_gpu(log: list[Any]) -> None:
    """Two replicas on one device are meant to see the same GPU."""
    tenants = tenancy(Driver(log), published("c/n/GPU-a"))
    for id in (ID, SECOND):
        tenants.begin(id, ("c/n/GPU-a",))
        assert why(tenants, seen("GPU-a"), id=id) == ""


def test_another_gpu_than_the_charged_one_is_no_place(log: list[Any]) -> None:
    """A claimed GPU has to be the one that the replica sees, or one of them."""
    tenants = tenancy(Driver(log), published("c/n/GPU-a"))
    tenants.begin(ID, ("c/n/GPU-a",))
    assert why(tenants, seen("GPU-b")) == "its host gave it GPU-b, expected GPU-a"
    assert why(tenants, seen("GPU-b"), seen("GPU-a")) == ""


def test_several_slots_stand_for_as_many_gpus(log: list[Any]) -> None:
    """Each GPU of a replica on several is judged."""
    tenants = slots(log)
    tenants.begin(ID, SLOTS)
    assert why(tenants, seen("GPU-a"), seen("GPU-b")) == ""
    assert "GPU-b has 0 MiB free" in why(tenants, seen("GPU-a"), seen("GPU-b", 9999.0))


def test_who_says_nothing_is_not_refused(log: list[Any]) -> None:
    """Without a GPU, or without a reading, nothing is known and nothing refused."""
    tenants = slots(log)
    assert why(tenants, seen("GPU-a")) == ""  # it is on a CPU slot
    tenants.begin(ID, SLOTS[:1])
    assert why(tenants) == ""


async def test_a_replica_on_a_gpu_that_nobody_reads_measures_itself(log: list[Any]) -> None:
    """It takes what the use of its GPU has grown by, if no other replica is there."""
    tenants = tenancy(Driver(log, None, None, None), published())
    tenants.begin(ID, SLOTS[:1])
    assert why(tenants, seen("GPU-a", 10.0)) == ""
    event = replace(loaded({"memory_mib": 77.0}), gpus=(seen("GPU-a", 650.0), seen("GPU-z", 1.0)))
    found = await measured(tenants, event)
    assert (found.memory_mib, found.report) == (640.0, {"memory_mib": 640.0})
    assert (await measured(tenants, loaded())).memory_mib == 900.0
    assert (
        await measured(tenants, replace(event, gpus=(seen("GPU-a", None),)))
    ).memory_mib == 900.0


async def test_growth_beside_others_is_nobodys(log: list[Any]) -> None:
    """Beside others it cannot be told whose memory has grown: the charge counts."""
    tenants = tenancy(Driver(log, None), published(), others=1)
    tenants.begin(ID, SLOTS[:1])
    why(tenants, seen("GPU-a", 50.0))
    event = replace(loaded(), gpus=(seen("GPU-a", 650.0),))
    assert (await measured(tenants, event)).memory_mib == 900.0
