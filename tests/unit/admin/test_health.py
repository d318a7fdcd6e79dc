"""Tests of the reasons that /readyz gives, and of their end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from admin.health import BUFFERED_MAX, DISK_FREE_MIN, Health
from admin.history import Prior, ServerHistory
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from pool_manager.core import events
from pool_manager.core.state import Replica, State
from pool_manager.gpus.absent import NoGpus
from pool_manager.host import HostView
from registry.errors import DriverError
from registry.exchange import Endpoints, PoolEndpoints, encode
from registry.model.history import Arrivals
from tests.support.fake_driver.driver import FakeDriver
from tests.support.operator import Operator, locked, operating, until


class StuckDriver(FakeDriver):
    """Driver that never releases a replica."""

    async def release(self, id: str) -> None:
        await super().release(id)
        raise DriverError("process group 7 survives KILL")


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    """An operator without problems."""
    async with operating(tmp_path) as operator:
        yield operator


Make = Callable[..., Health]


@pytest.fixture
def make(operator: Operator) -> Make:
    """Create a Health over `operator`, with enough disk space."""
    return lambda **changes: health(operator, **changes)


def delivery(operator: Operator) -> Delivery:
    """Create a gateway's delivery that has received nothing."""
    past = ServerHistory(
        operator.store.history, time.time, lambda _: Prior(), operator.store.usage.add
    )
    return Delivery(Limits(), "test", operator.manager, past)


def health(
    operator: Operator,
    gateway: Delivery | None = None,
    free: Callable[[Path], int] = lambda _folder: DISK_FREE_MIN,
    later_s: float = 0.0,
) -> Health:
    """Create a Health whose clock is `later_s` ahead of the manager's."""
    store = operator.store
    return Health(
        store.settings.data,
        operator.manager,
        gateway or delivery(operator),
        store.history,
        lambda: time.monotonic() + later_s,
        free,
    )


def arrival(minute: int) -> Arrivals:
    """Return a record for the history."""
    return Arrivals("default", "digits", minute * 60, 1)


async def test_a_healthy_server_has_no_reasons(make: Make) -> None:
    """A healthy server has no reasons."""
    assert make().reasons() == []


async def test_the_real_disk_is_looked_at(operator: Operator) -> None:
    """By default the file system of the data folder is measured."""
    store = operator.store
    real = Health(
        store.settings.data, operator.manager, delivery(operator), store.history, time.monotonic
    )

    assert [reason for reason in real.reasons() if not reason.startswith("disk:")] == []


async def test_a_disk_without_room_is_a_reason(make: Make, operator: Operator) -> None:
    """Little disk space is a reason with the free space and the folder; so is a missing folder."""
    data = operator.store.settings.data

    def gone(folder: Path) -> int:
        return (folder / "gone").stat().st_size

    assert make(free=lambda _folder: 5 * 2**20).reasons() == [f"disk: 5 MiB free in {data}"]
    assert make(free=gone).reasons() == [f"disk: {data}: No such file or directory"]


async def test_a_store_that_cannot_be_written_is_a_reason_until_it_can(
    make: Make, operator: Operator
) -> None:
    """A store that cannot be written is a reason from the first failed flush to the next successful
    one."""
    history, looked_at = operator.store.history, make()
    history.record(arrival(1))
    assert looked_at.reasons() == []
    with locked(operator.store.settings.database):
        await history.flush()
        said = looked_at.reasons()
        assert said == ["store: 1 records wait to be written, 0 were dropped"]
        assert looked_at.reasons() == said

    await history.flush()
    history.record(arrival(2))

    assert looked_at.reasons() == []


async def test_records_that_pile_up_are_a_reason(make: Make, operator: Operator) -> None:
    """Records that accumulate faster than they are stored are a reason before any is dropped."""
    for minute in range(BUFFERED_MAX):
        operator.store.history.record(arrival(minute))

    assert make().reasons() == [f"store: {BUFFERED_MAX} records wait to be written, 0 were dropped"]


async def test_a_function_that_fails_to_load_is_a_reason(operator: Operator) -> None:
    """A function that fails to load is a reason, named with its revision; a warm one is not."""
    gateway = delivery(operator)
    pools = {
        "default/bad@2": PoolEndpoints([], "failing", "opset 9999"),
        "default/good@1": PoolEndpoints([], "warm", ""),
    }
    gateway.receive_endpoints(encode(Endpoints(1, True, pools)))

    assert health(operator, gateway).reasons() == ["function bad@2 fails to load"]


async def test_a_device_that_is_not_released_is_a_reason(tmp_path: Path) -> None:
    """A device that is still not released after a while is a reason."""
    async with operating(tmp_path, StuckDriver()) as operator:
        await operator.deploy("digits")
        await until(lambda: "survives" in operator.manager.replicas()[0].why)
        (stuck,) = operator.manager.replicas()
        assert stuck.state is State.RELEASING

        assert health(operator).reasons() == []
        assert health(operator, later_s=60).reasons() == [
            f"device {stuck.first_device}: {stuck.id} is not released:"
            " process group 7 survives KILL"
        ]
        operator.manager.submit(events.Released(stuck.id))


async def test_a_standby_that_is_not_released_is_a_reason(
    make: Make, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no device: its host is named."""
    standby = Replica("1a", "standby/gpu2/cpu", (), "standby", 0.0, host="gpu2")
    standby.state, standby.why = State.RELEASING, "no answer"
    monkeypatch.setattr(operator.manager, "replicas", lambda: [standby])

    assert make(later_s=60).reasons() == ["host gpu2: 1a is not released: no answer"]


async def test_a_replica_on_several_gpus_that_is_not_released_names_them_all(
    make: Make, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its devices is out of use until then."""
    wide = Replica("1a", "default/llama@1", ("GPU-a", "GPU-b"), "serve", 0.0)
    wide.state, wide.why = State.RELEASING, "no answer"
    monkeypatch.setattr(operator.manager, "replicas", lambda: [wide])

    assert make(later_s=60).reasons() == ["devices GPU-a, GPU-b: 1a is not released: no answer"]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (HostView("gpu2", "nn@gpu2", "up"), []),
        (HostView("gpu2", "nn@gpu2", "joining", "no route"), []),
        (HostView("gpu2", "nn@gpu2", "draining"), []),
        (HostView("gpu2", "nn@gpu2", "gone"), ["host gpu2: gone: no reason given"]),
        (
            HostView("gpu2", "nn@gpu2", "unreachable", "no route"),
            ["host gpu2: unreachable: no route"],
        ),
        (
            HostView("gpu2", "nn@gpu2", "up", "its disk is full: 3 MiB are free"),
            ["host gpu2: up: its disk is full: 3 MiB are free"],
        ),
        (HostView("local", "", "up", "its container engine does not answer: x"), []),
    ],
)
async def test_another_host_with_something_wrong_is_a_reason(
    make: Make,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    host: HostView,
    expected: list[str],
) -> None:
    """A lost host, and one that is up with a dead engine, a full disk or another clock. This
    machine's engine and disk are reasons of their own."""
    monkeypatch.setattr(operator.manager, "hosts", lambda: [host])

    assert make().reasons() == expected


async def test_a_device_that_is_out_of_use_is_a_reason(make: Make, operator: Operator) -> None:
    """A device is a reason as long as it is out of use."""
    device = operator.manager.devices()[0].id
    operator.manager.submit(
        events.DeviceLost(device, "XID 48: double-bit ECC error", is_gone=False)
    )
    assert make().reasons() == [f"device {device}: out of use: XID 48: double-bit ECC error"]

    operator.manager.submit(events.DeviceBack(device))
    assert make().reasons() == []


async def test_a_gpu_driver_that_does_not_answer_is_a_reason(tmp_path: Path) -> None:
    """A GPU driver that does not respond is a reason in its own words."""
    async with operating(tmp_path, gpus=NoGpus("the NVIDIA driver hangs")) as operator:
        assert health(operator).reasons() == ["gpus: the NVIDIA driver hangs"]
