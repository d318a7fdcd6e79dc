"""Checks of idle servers by their golden samples."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pool_manager.core import events
from pool_manager.core.state import Device, PoolSpec, Replica, State
from pool_manager.golden import GoldenSamples, SampleCount
from registry.tasks import Tasks
from runtime_image.contract.samples import Sampled, SampleVerdict
from runtime_image.contract.server import ServerSpec
from tests.support.golden import golden
from tests.support.replicas import binding

KEY = "default/web@1"
RIGHT: Sampled = {"verdict": "right", "ms": 3.0, "reason": ""}
WRONG: Sampled = {"verdict": "wrong", "ms": 3.0, "reason": "expected a, got b"}
NO_ANSWER: Sampled = {"verdict": "no_answer", "ms": 0.0, "reason": "expected an answer"}


class Rig:
    """One ready server; the answers of its sidecar are scripted, an exception for a link that
    ends."""

    def __init__(self) -> None:
        self.answers: deque[Sampled | Exception] = deque()
        self.now, self.is_busy = 100.0, False
        self.notes: list[str] = []
        self.submitted: list[events.Event] = []
        self.replica = Replica("r1", KEY, ("cpu0",), "serve", 0.0, State.READY)
        self.spec = PoolSpec(KEY, is_server=True, sample_every_s=10.0)
        self.pools = {KEY: SimpleNamespace(key=KEY, spec=self.spec, replicas={"r1": self.replica})}
        demand = SimpleNamespace(is_busy=lambda _: self.is_busy)
        self.machine: Any = SimpleNamespace(
            pools=self.pools,
            first_device=lambda ids: Device(ids[0], "cpu"),
            cluster=SimpleNamespace(demand=demand),
            replicas=lambda: [self.replica] if self.pools else [],
            replica=lambda id: self.replica if id == "r1" and self.pools else None,
        )
        launcher: Any = SimpleNamespace(control=lambda _: SimpleNamespace(sample=self._sample))
        spec = ServerSpec("web@1", ("serve",))
        self.bound = replace(binding(), spec=spec, golden=golden(None))
        self.bindings = {KEY: self.bound}
        self.tasks = Tasks("golden")
        self.golden = GoldenSamples(
            self.machine,
            launcher,
            self.bindings,
            self.tasks,
            lambda: self.now,
            lambda _, text: self.notes.append(text),
            self.submitted.append,
        )

    async def _sample(self) -> Sampled:
        found = self.answers.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    async def check(self, *answers: Sampled | Exception) -> None:
        """Let the interval pass, and have the replica checked with these answers."""
        self.now += 10.0
        self.answers += answers
        while self.answers:
            self.golden.tick()
            await self.idle()

    async def idle(self) -> None:
        """Let the ask that has begun come to its end."""
        for _ in range(10):
            await asyncio.sleep(0)
        assert not len(self.tasks)

    def verdicts(self) -> dict[str, int]:
        """Return the counts by verdict that are not 0."""
        return {one.verdict: one.checks for one in self.golden.counts() if one.checks}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """The server."""
    made = Rig()
    yield made
    await made.tasks.close()


async def test_a_wrong_answer_is_told_once(rig: Rig) -> None:
    """As a decision; each check is counted and logged."""
    await rig.check(RIGHT)
    assert rig.notes == []
    with capture_logs() as logs:
        await rig.check(WRONG, WRONG)
        await rig.check(WRONG, WRONG)

    assert rig.notes == ["r1 answers its golden sample wrong: expected a, got b"]
    assert [one["event"] for one in logs] == ["a golden sample is answered wrong"] * 2
    assert rig.golden.verdict(KEY) == (SampleVerdict.WRONG, "expected a, got b")
    await rig.check(RIGHT)
    assert rig.notes[1:] == ["r1 answers its golden sample right again"]
    assert rig.verdicts() == {"right": 2, "wrong": 2}


async def test_all_verdicts_count_from_zero(rig: Rig) -> None:
    """As soon as there is a replica with a golden sample; one without it has none."""
    counts = [SampleCount("default", "web", one, 0) for one in SampleVerdict]
    assert rig.golden.counts() == sorted(counts)
    rig.replica.role = "trial"
    assert rig.golden.counts() == []


async def test_no_answer_is_told(rig: Rig) -> None:
    """Whatever follows from it."""
    with capture_logs() as logs:
        await rig.check(NO_ANSWER)

    assert rig.notes == ["r1 does not answer its golden sample: expected an answer"]
    assert [one["event"] for one in logs] == ["a golden sample is not answered"]
    assert rig.golden.verdict(KEY)[0] is SampleVerdict.NO_ANSWER


async def test_a_link_that_ends_shows_nothing(rig: Rig) -> None:
    """It is counted, and nothing else."""
    await rig.check(ConnectionError("gone"))

    assert (rig.notes, rig.verdicts()) == ([], {"none": 1})
    assert rig.golden.verdict(KEY) == (SampleVerdict.NONE, "")


@pytest.mark.parametrize("why", ["busy", "draining", "trial", "never", "other device", "unbound"])
async def test_who_is_not_asked(rig: Rig, why: str) -> None:
    """A replica that is called or leaves, one without a golden sample, and where it is off."""
    rig.now = 1000.0
    match why:
        case "busy":
            rig.is_busy = True
        case "draining":
            rig.replica.state = State.DRAINING
        case "trial":
            rig.replica.role = "trial"
        case "never":
            rig.pools[KEY].spec = replace(rig.spec, sample_every_s=0.0)
        case "other device":
            rig.bindings[KEY] = replace(rig.bound, golden=golden(None, "gpu2"))
        case "unbound":
            del rig.bindings[KEY]
    rig.golden.tick()
    await rig.idle()

    assert rig.verdicts() == {}


async def test_a_function_that_is_gone_is_forgotten(rig: Rig) -> None:
    """Its counts go with its last pool."""
    await rig.check(RIGHT)
    assert SampleCount("default", "web", SampleVerdict.RIGHT, 1) in rig.golden.counts()
    rig.pools.clear()
    rig.golden.tick()

    assert rig.golden.counts() == []
    assert rig.golden.verdict(KEY) == (SampleVerdict.NONE, "")
    assert (await rig.golden.ask("r1"))["verdict"] == SampleVerdict.NONE


async def test_the_machine_gets_what_idle_servers_answer(rig: Rig) -> None:
    """A wrong answer once it is confirmed; nothing of an ask that showed nothing."""
    await rig.check(RIGHT)
    await rig.check(WRONG, WRONG)
    await rig.check(ConnectionError("gone"))

    assert rig.submitted == [
        events.SampleAnswered("r1", SampleVerdict.RIGHT, "", in_silence=False),
        events.SampleAnswered("r1", SampleVerdict.WRONG, "expected a, got b", in_silence=False),
    ]


@pytest.mark.parametrize(
    ("answers", "verdict", "reason"),
    [
        ([RIGHT], SampleVerdict.RIGHT, ""),
        ([NO_ANSWER], SampleVerdict.NO_ANSWER, "expected an answer"),
        ([WRONG, WRONG], SampleVerdict.WRONG, "expected a, got b"),
        ([WRONG, RIGHT], SampleVerdict.RIGHT, ""),
        ([ConnectionError("gone")], SampleVerdict.NONE, "gone"),
        ([ValueError("a defect")], SampleVerdict.NONE, "it could not be asked"),
    ],
)
async def test_a_silent_server_is_asked(
    rig: Rig, answers: list[Sampled | Exception], verdict: SampleVerdict, reason: str
) -> None:
    """Twice if it answers wrong. The machine gets an answer whatever happens: it waits for one."""
    rig.answers += answers
    with capture_logs():
        rig.golden.ask_silent("r1")
        await rig.idle()

    assert rig.submitted == [events.SampleAnswered("r1", verdict, reason, in_silence=True)]
    assert rig.verdicts() == ({} if verdict is SampleVerdict.NONE else {verdict: 1})


async def test_a_silent_server_that_is_gone_is_not_asked(rig: Rig) -> None:
    """Nor one that has no golden sample."""
    rig.pools.clear()
    rig.golden.ask_silent("r1")
    await rig.idle()

    reason = "it has no golden sample"
    assert rig.submitted == [
        events.SampleAnswered("r1", SampleVerdict.NONE, reason, in_silence=True)
    ]
