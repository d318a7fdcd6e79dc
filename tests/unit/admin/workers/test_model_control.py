"""Tests of loading and unloading models with several gateway processes."""

from __future__ import annotations

import asyncio

import pytest

from admin.workers import model_control
from admin.workers.messages import (
    AskLoad,
    AskUnload,
    LeaveLoad,
    LoadEnded,
    decode_down,
    decode_up,
)
from admin.workers.model_control import ModelRequests, RemoteModels
from registry.catalog import Catalog, Deployed
from registry.errors import (
    FnError,
    FunctionFailing,
    NoRoom,
    QueueFull,
    SupervisorAway,
    UnknownFunction,
)
from tests.support import nouns
from tests.support.operator import until

DIGITS = nouns.deployed()


class Models:
    """`ModelControl` whose loads end when the test says so."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, float, asyncio.Future[None]]] = []
        self.unloaded: list[str] = []

    async def load(self, deployed: Deployed, wait_s: float) -> None:
        """Wait for the test."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.loads.append((deployed.revision.ref, wait_s, answer))
        await answer

    async def unload(self, deployed: Deployed) -> None:
        """Record the name."""
        self.unloaded.append(deployed.function.name)


class Rig:
    """A worker and its supervisor, whose messages pass at once."""

    def __init__(self) -> None:
        self.models = Models()
        self.requests = ModelRequests(Catalog([DIGITS]), self.models)
        self.requests.add_worker("1", self._down)
        self.remote = RemoteModels(self._up)
        self.is_silent = False

    def _up(self, data: bytes) -> None:
        message = decode_up(data)
        assert isinstance(message, AskLoad | LeaveLoad | AskUnload)
        if not self.is_silent:
            self.requests.on_request("1", message)

    def _down(self, data: bytes) -> None:
        message = decode_down(data)
        assert isinstance(message, LoadEnded)
        self.remote.on_ended(message)

    async def loading(self, count: int = 1) -> list[asyncio.Task[None]]:
        """Begin loads; return their tasks when the supervisor has them."""
        tasks = [asyncio.create_task(self.remote.load(DIGITS, 2.5)) for _ in range(count)]
        await until(lambda: len(self.models.loads) == count)
        return tasks


async def test_each_client_waits_at_the_supervisor() -> None:
    """Loads reach the supervisor with their wait, and end when the model is resident."""
    rig = Rig()
    first, second = await rig.loading(2)
    assert [one[:2] for one in rig.models.loads] == [("digits@1", 2.5), ("digits@1", 2.5)]
    rig.models.loads[1][2].set_result(None)
    await second
    assert not first.done()

    rig.models.loads[0][2].set_result(None)
    await first


@pytest.mark.parametrize(
    "error",
    [
        FunctionFailing("it fails", retry_after_s=3.0, admin_detail={"log_tail": ["x"]}),
        NoRoom("no room", retry_after_s=5.0),
        QueueFull("too many"),
        UnknownFunction("no function", detail={"nearest": ["digit"]}),
    ],
)
async def test_an_error_arrives_as_it_was(error: FnError) -> None:
    """Class, text, retry and details are those that the supervisor raised."""
    rig = Rig()
    (task,) = await rig.loading()
    rig.models.loads[0][2].set_exception(error)

    with pytest.raises(type(error)) as caught:
        await task
    found = caught.value
    assert (found.message, found.retry_after_s) == (error.message, error.retry_after_s)
    assert (found.detail, found.admin_detail) == (error.detail, error.admin_detail)


async def test_a_defect_says_nothing() -> None:
    """Whatever else is raised becomes the problem that hides internals."""
    rig = Rig()
    (task,) = await rig.loading()
    rig.models.loads[0][2].set_exception(KeyError("secret"))

    with pytest.raises(FnError, match="see the server's log"):
        await task


async def test_what_is_not_deployed_any_more_is_unknown() -> None:
    """The supervisor's catalog decides: it may be newer. Unloading has no effect then."""
    rig = Rig()
    other = nouns.deployed("other")

    with pytest.raises(UnknownFunction):
        await rig.remote.load(other, 1.0)
    await rig.remote.unload(other)
    await rig.remote.unload(DIGITS)
    await until(lambda: bool(rig.models.unloaded))
    assert rig.models.unloaded == ["digits"]


async def test_a_client_that_leaves_ends_its_wait_alone() -> None:
    """The wait at the supervisor ends with the client's."""
    rig = Rig()
    first, second = await rig.loading(2)
    first.cancel()
    await until(lambda: rig.models.loads[0][2].cancelled())

    assert not rig.models.loads[1][2].done()
    rig.models.loads[1][2].set_result(None)
    await second


async def test_the_end_of_a_process_ends_its_waits() -> None:
    """The supervisor waits no more for a process that has ended, and answers nothing."""
    rig = Rig()
    (task,) = await rig.loading()
    rig.requests.remove_worker("1")
    await until(lambda: rig.models.loads[0][2].cancelled())

    rig.remote.on_lost()
    with pytest.raises(SupervisorAway):
        await task
    for verb in (rig.remote.load(DIGITS, 1.0), rig.remote.unload(DIGITS)):
        with pytest.raises(SupervisorAway):
            await verb


async def test_waits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait more than the limit is refused at once."""
    monkeypatch.setattr(model_control, "WAITING_MAX", 1)
    rig = Rig()
    (task,) = await rig.loading()

    with pytest.raises(QueueFull):
        await rig.remote.load(DIGITS, 1.0)
    rig.models.loads[0][2].set_result(None)
    await task


async def test_a_silent_supervisor_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait ends soon after its limit without an answer; one that comes later is dropped."""
    monkeypatch.setattr(model_control, "GRACE_S", 0.0)
    rig = Rig()
    rig.is_silent = True

    with pytest.raises(SupervisorAway):
        await rig.remote.load(DIGITS, 0.0)
    rig.remote.on_ended(LoadEnded(1))


async def test_the_end_of_the_supervisor_ends_all_waits() -> None:
    """Closing cancels what still waits."""
    rig = Rig()
    (task,) = await rig.loading()
    await rig.requests.close()

    assert rig.models.loads[0][2].cancelled()
    task.cancel()
