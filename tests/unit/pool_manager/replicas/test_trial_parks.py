"""The park of a trial, tried before its report is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pool_manager.core import events
from pool_manager.core.state import Replica, State
from pool_manager.ports import Binding, ServerContainer
from pool_manager.replicas.trial_parks import CALL_LEAST_S, CAP_ADVICE, REASON_MAX, TrialParks
from registry.errors import DriverError
from registry.model.parks import ParkProfile
from registry.tasks import Tasks
from runtime_image.contract.parks import ParkHooks
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import ServerSpec
from tests.support.operator import until
from tests.support.replicas import KEY, binding

ID = "aaaa0001"
UNTIL_S = 60.0
AWAKE = {"GPU-a": 8000.0, "GPU-b": 8000.0}
ASLEEP = {"GPU-a": 500.0, "GPU-b": 600.0}
SPEC = ServerSpec("a@1", ("x",), park=ParkHooks(SampleRequest("/s"), SampleRequest("/w")))
LOADED = events.Loaded(ID, 0, True, 50.0, {"load": 90_000.0}, {"load_ms": 90_000.0})
PARKED = events.ParkAnswered(ID, "", 3.0)
AWOKEN = events.UnparkAnswered(ID, "", 2.0, 16_000.0)
RIGHT = events.Verified(ID, "")


class Rig:
    """A trial's control link, its proofs and its driver, as a script."""

    def __init__(self, given: Binding, role: Any = "trial") -> None:
        self.sent: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self.passed: asyncio.Queue[events.Event] = asyncio.Queue()
        self.tasks = Tasks("test")
        self.awake: dict[str, float] | str = AWAKE
        self.residue: dict[str, float] | str = ASLEEP
        self.used_mib: list[float | DriverError | None] = []
        self.now, self.is_linked = 100.0, True
        replica = Replica(ID, KEY, ("GPU-a", "GPU-b"), role, 0.0, State.LOADING)
        link: Any = self
        self.parks = TrialParks(
            self.passed.put_nowait,
            {ID: replica}.get,
            {KEY: given},
            lambda _id: link if self.is_linked else None,
            lambda: link,
            self.read_mib,
            self.tasks,
            lambda: self.now,
        )
        self.parks.exit_s = 0.0

    # The control link

    def park(self, if_idle_s: float, limit_s: float) -> None:
        assert if_idle_s == 0
        self.sent.put_nowait(("park", limit_s))

    def unpark(self, limit_s: float) -> None:
        self.sent.put_nowait(("unpark", limit_s))

    def verify(self, limit_s: float) -> None:
        self.sent.put_nowait(("verify", limit_s))

    # Proofs

    async def awake_mib(self, id: str) -> dict[str, float] | str:
        assert id == ID
        return self.awake

    async def residue_mib(self, id: str, awake: dict[str, float]) -> dict[str, float] | str:
        assert (id, awake) == (ID, self.awake)
        return self.residue

    # The driver

    async def read_mib(self, id: str) -> float | None:
        assert id == ID
        found = self.used_mib.pop(0) if len(self.used_mib) > 1 else self.used_mib[0]
        if isinstance(found, DriverError):
            raise found
        return found

    async def command(self) -> tuple[str, float]:
        """Return the next command to the sidecar."""
        async with asyncio.timeout(UNTIL_S):
            return await self.sent.get()

    async def next(self) -> Any:
        """Return the next event passed on."""
        async with asyncio.timeout(UNTIL_S):
            return await self.passed.get()

    async def play(self, *answers: events.Event) -> ParkProfile:
        """Report, and answer each command; return what the park has shown."""
        self.parks.emit(LOADED)
        for answer in answers:
            await self.command()
            self.now += 0.25
            self.parks.emit(answer)
        return await self.shown()

    async def shown(self) -> ParkProfile:
        """Return what the passed report says of the park."""
        found: ParkProfile = (await self.next()).report["park"]
        return found


def rig_of(**changes: Any) -> Rig:
    """A trial of a server with a table [park]."""
    return Rig(replace(binding(SPEC), **changes))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = rig_of()
    yield made
    await made.tasks.close()


async def test_a_park_that_works_is_measured(rig: Rig) -> None:
    """The rest of the report stays; nothing is passed on before."""
    shown = await rig.play(PARKED, AWOKEN, RIGHT)

    assert shown == ParkProfile(True, "", 3.0, 2.0, 0.25, 16_000.0, 600.0)
    assert rig.passed.empty()


async def test_commands_follow_answers(rig: Rig) -> None:
    """A call may take as long as the start, and at least a minute."""
    rig.parks.emit(LOADED)
    assert await rig.command() == ("park", 90.0)
    rig.parks.emit(PARKED)
    assert await rig.command() == ("unpark", 90.0)
    rig.parks.emit(AWOKEN)
    assert await rig.command() == ("verify", 90.0)
    assert rig.passed.empty()
    rig.parks.emit(RIGHT)
    loaded = await rig.next()
    assert loaded.report["load_ms"] == 90_000.0

    quick = rig_of()
    quick.parks.emit(replace(LOADED, phases={"load": 10.0}))
    assert await quick.command() == ("park", CALL_LEAST_S)
    await quick.tasks.close()


@pytest.mark.parametrize(
    "answers",
    [
        [replace(PARKED, problem="no")],
        [PARKED, replace(AWOKEN, problem="no")],
        [PARKED, AWOKEN, replace(RIGHT, problem="no")],
    ],
)
async def test_a_problem_is_the_reason(rig: Rig, answers: list[events.Event]) -> None:
    """Nothing more is asked then: the trial is over."""
    assert await rig.play(*answers) == ParkProfile(False, "no")
    assert rig.sent.empty()


async def test_memory_that_is_not_freed_is_the_reason(rig: Rig) -> None:
    """The engine is not woken for it."""
    rig.residue = "it holds all of it"

    assert await rig.play(PARKED) == ParkProfile(False, "it holds all of it")
    assert rig.sent.empty()


async def test_memory_that_cannot_be_read_is_the_reason(rig: Rig) -> None:
    """The engine is not even put to sleep."""
    rig.awake = "it is on no GPU"

    assert await rig.play() == ParkProfile(False, "it is on no GPU")
    assert rig.sent.empty()


async def test_a_sidecar_that_cannot_park_says_why(rig: Rig) -> None:
    """It reports that, and is asked nothing. Its text is bounded."""
    rig.parks.emit(replace(LOADED, report={"no_park": "x\ud800" * REASON_MAX}))

    shown = await rig.shown()
    assert not shown.works
    assert shown.reason.startswith("x?x?")
    assert len(shown.reason) == REASON_MAX
    assert rig.sent.empty()


@pytest.mark.parametrize(
    ("answers", "doing"),
    [([], "as it slept"), ([PARKED], "as it woke"), ([PARKED, AWOKEN], "after its wake")],
)
async def test_an_end_is_the_reason(rig: Rig, answers: list[events.Event], doing: str) -> None:
    """Of the server, the sidecar or its link: what the trial had measured before counts."""
    rig.parks.emit(LOADED)
    for answer in answers:
        await rig.command()
        rig.parks.emit(answer)
    await rig.command()
    lost = events.Lost(ID, "was killed by SIGKILL")
    rig.parks.emit(lost)

    assert await rig.shown() == ParkProfile(False, f"it ended {doing}: was killed by SIGKILL")
    assert await rig.next() == lost
    rig.parks.emit(PARKED)
    assert await rig.next() == PARKED, "of a trial that is over"


async def test_an_end_says_more_than_a_connection_that_broke(rig: Rig) -> None:
    """The sidecar sees that first."""
    rig.parks.exit_s = UNTIL_S
    rig.parks.emit(LOADED)
    await rig.command()
    rig.parks.emit(replace(PARKED, problem="POST /s: expected an answer, got none"))
    rig.parks.emit(events.Lost(ID, "was killed by SIGKILL"))

    assert (await rig.shown()).reason == "it ended as it slept: was killed by SIGKILL"


@pytest.mark.parametrize(
    "reason",
    ["ran out of memory", "exited with code 1: the server used 9 MiB of memory, its cap is 8 MiB"],
)
async def test_an_end_by_the_memory_cap_names_it(rig: Rig, reason: str) -> None:
    """The trial has the cap of a replica that never sleeps."""
    rig.parks.emit(LOADED)
    await rig.command()
    rig.parks.emit(events.Lost(ID, reason))

    assert (await rig.shown()).reason == f"it ended as it slept: {reason}{CAP_ADVICE}"


async def test_a_trial_that_is_stopped_is_over(rig: Rig) -> None:
    """A deploy may be given up meanwhile."""
    rig.parks.emit(LOADED)
    await rig.command()
    rig.parks.emit(events.Released(ID))

    assert (await rig.shown()).reason == "it ended as it slept: it was stopped"
    assert await rig.next() == events.Released(ID)


async def test_a_command_is_sent_again_over_a_new_link(rig: Rig) -> None:
    """The sidecar of another host may dial again; its last answer may have been lost."""
    rig.parks.emit(LOADED)
    await rig.command()
    rig.parks.emit(PARKED)
    assert (await rig.command())[0] == "unpark"
    again = events.Greeted(ID, {}, loaded=True)
    rig.parks.emit(again)

    assert await rig.next() == again
    assert (await rig.command())[0] == "unpark"
    rig.parks.emit(AWOKEN)
    rig.parks.emit(AWOKEN)
    assert (await rig.command())[0] == "verify"


async def test_an_answer_that_never_comes_ends_the_park(rig: Rig) -> None:
    """The deploy does not wait for ever: not without a link either."""
    rig.is_linked, rig.parks.most_s = False, 0.05
    rig.parks.emit(LOADED)

    assert (await rig.shown()).reason == "expected its end within 0.05 s, got none as it slept"


async def test_an_error_is_a_reason(rig: Rig) -> None:
    """The report is passed on in any case."""
    rig.residue = {}

    shown = await rig.play(PARKED, AWOKEN, RIGHT)
    assert shown.reason.startswith("it could not be tried: ValueError")


async def test_the_memory_of_a_container_is_read_meanwhile() -> None:
    """Its sidecar does not see it. What cannot be read counts as nothing."""
    rig = rig_of(container=ServerContainer("sha256:1"))
    rig.used_mib = [1000.0, DriverError("busy"), 9000.0, None, 1500.0]
    paused = asyncio.Semaphore(0)
    rig.parks.pause = lambda _seconds: _void(paused.acquire())
    rig.parks.emit(LOADED)
    await rig.command()
    for _ in range(2):
        paused.release()
    await until(lambda: len(rig.used_mib) == 2)
    for answer in (PARKED, replace(AWOKEN, host_mib=0.0)):
        rig.parks.emit(answer)
        await rig.command()
    rig.parks.emit(RIGHT)

    assert (await rig.shown()).host_mib == 8000.0
    await rig.tasks.close()


async def _void(work: Any) -> None:
    await work


@pytest.mark.parametrize(
    ("given", "role"),
    [
        (binding(SPEC), "serve"),
        (binding(replace(SPEC, park=None)), "trial"),
        (binding(), "trial"),
    ],
)
async def test_other_reports_pass(given: Binding, role: str) -> None:
    """Of replicas that serve, of servers without the table, and of models."""
    rig = Rig(given, role)
    for event in (LOADED, PARKED, events.Lost(ID, "gone")):
        rig.parks.emit(event)
        assert await rig.next() is event
    await rig.tasks.close()


async def test_a_replica_that_is_gone_passes(rig: Rig) -> None:
    """Its events may come late."""
    event = replace(LOADED, id="bbbb0002")
    rig.parks.emit(event)
    assert await rig.next() is event
