"""The data plane of a fake replica."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from structlog.testing import capture_logs

from registry.tasks import Tasks
from runtime_image.contract.link import VERSION, Flag, Kind, NotStarted
from runtime_image.link.frames import pack
from tests.support.fake_driver import service as fake_service
from tests.support.fake_driver.service import FakeService, Script
from tests.support.replicas import GatewayLink, ids


class Rig:
    """A service whose runs each wait until the test lets them go."""

    def __init__(self, folder: Path, script: Script) -> None:
        self.path = folder / "s"
        self.first_runs: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._listener.setblocking(False)
        self._tasks = Tasks("rig")
        self._gate = asyncio.Semaphore(0)
        self.service = FakeService(
            self._listener,
            script,
            "digits@1",
            run=self._run,
            first_run=self.first_runs.append,
        )
        self._tasks.spawn("accept", self.service.accept())
        self._tasks.spawn("work", self.service.work())
        self._links: list[GatewayLink] = []

    async def _run(self) -> None:
        await self._gate.acquire()

    def let_go(self, runs: int = 1) -> None:
        for _ in range(runs):
            self._gate.release()

    async def link(self) -> GatewayLink:
        link = GatewayLink()
        await link.open(self.path)
        self._links.append(link)
        return link

    async def close(self) -> None:
        await self._tasks.close()
        await self.service.close()
        for link in self._links:
            await link.close()
        self._listener.close()


@pytest.fixture
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A service with the fixture's script, by default one that batches two requests."""
    script = getattr(request, "param", Script(run_s=0.25, batch=2))
    with TemporaryDirectory(prefix="fn-") as folder:
        made = Rig(Path(folder), script)
        yield made
        await made.close()


async def test_an_answer_tells_how_long_the_body_was(rig: Rig) -> None:
    """The first answer is marked and reported with the run's time in microseconds."""
    link = await rig.link()
    rig.let_go(2)

    first = await link.call(1, b"x" * 10)
    second = await link.call(2, b"")

    assert json.loads(first.body) == {"outputs": {"body_bytes": 10}, "revision": "digits@1"}
    assert json.loads(second.body)["outputs"] == {"body_bytes": 0}
    assert (first.flags, second.flags) == (Flag.FIRST, 0)
    assert rig.first_runs == [250_000]


async def test_what_arrives_during_a_run_is_the_next_batch(rig: Rig) -> None:
    """STARTED is sent at the beginning of each batch; a request sent alone runs alone."""
    link = await rig.link()
    link.request(1)
    first = await link.next(Kind.STARTED)
    link.request(2)
    link.request(3, alone=True)
    link.request(4)
    link.send(pack(Kind.HELLO, aux=VERSION))
    await link.next(Kind.HELLO)

    batches = [ids(first)]
    for _ in range(3):
        rig.let_go()
        while (frame := await link.frames.get()).kind is not Kind.STARTED:
            pass
        batches.append(ids(frame))
    rig.let_go()

    assert batches == [[1], [2], [3], [4]]
    assert (await link.next(Kind.RESPONSE)).id == 4


async def test_the_limit_is_kept(rig: Rig) -> None:
    """A request above the limit is handed back, and its link gets WINDOW when there is room."""
    full, turned_away = await rig.link(), await rig.link()
    for id in range(1, 5):
        full.request(id)
    await full.next(Kind.STARTED)
    full.send(pack(Kind.HELLO, aux=VERSION))
    await full.next(Kind.HELLO)
    turned_away.request(1)

    refused = await turned_away.next(Kind.NOT_STARTED)
    rig.let_go()

    assert (refused.id, refused.aux) == (1, NotStarted.FULL)
    assert await turned_away.next(Kind.WINDOW)
    rig.let_go()


async def test_a_drain_finishes_and_refuses(rig: Rig) -> None:
    """A drain answers accepted requests and refuses later ones; then `drained` is set."""
    link = await rig.link()
    link.request(1)
    await link.next(Kind.STARTED)

    rig.service.drain(hand_back=False)
    goodbye = await link.next(Kind.GOAWAY)
    late = await rig.link()
    link.request(2)
    refused = await link.next(Kind.NOT_STARTED)
    rig.let_go()
    answer = await link.next(Kind.RESPONSE)
    await rig.service.drained.wait()

    assert (goodbye.aux, refused.aux, answer.id) == (1, NotStarted.DRAINING, 1)
    assert (await late.next(Kind.GOAWAY)).aux == 0


async def test_a_hurried_drain_hands_back(rig: Rig) -> None:
    """A drain with `hand_back` returns waiting requests; a second one sends no second GOAWAY."""
    link = await rig.link()
    link.request(1)
    await link.next(Kind.STARTED)
    link.request(2)
    link.send(pack(Kind.HELLO, aux=VERSION))
    await link.next(Kind.HELLO)

    rig.service.drain(hand_back=False)
    rig.service.drain(hand_back=True)
    await link.next(Kind.GOAWAY)
    handed_back = await link.next(Kind.NOT_STARTED)
    rig.let_go()

    assert (handed_back.id, handed_back.aux) == (2, NotStarted.DRAINING)
    assert (await link.next(Kind.RESPONSE)).id == 1


async def test_idle_is_when_nothing_is_owed(rig: Rig) -> None:
    """A running request makes the service busy; afterwards idle time counts from its end."""
    link = await rig.link()
    link.request(1)
    await link.next(Kind.STARTED)
    busy = rig.service.idle_s
    rig.let_go()
    await link.next(Kind.RESPONSE)

    assert busy == 0.0
    assert rig.service.idle_s >= 0.0


async def test_cancelled_requests_are_told(rig: Rig) -> None:
    """A waiting request is cancelled at once, a running one after its run, an unknown one is
    ignored."""
    link = await rig.link()
    link.request(1)
    await link.next(Kind.STARTED)
    link.request(2)

    for id in (9, 2, 1):
        link.send(pack(Kind.CANCEL, id))
    waiting = await link.next(Kind.CANCELLED)
    rig.let_go()
    running = await link.next(Kind.CANCELLED)

    assert (waiting.id, running.id) == (2, 1)


async def test_a_lost_gateway_frees_its_places(rig: Rig) -> None:
    """The requests of a lost gateway are cancelled, and others are served."""
    gone, other = await rig.link(), await rig.link()
    for id in (1, 2, 3):
        gone.request(id)
    await gone.next(Kind.STARTED)
    await gone.close()
    rig.let_go(2)

    assert (await other.call(1)).kind is Kind.RESPONSE


@pytest.mark.parametrize("rig", [Script(fail_run="out of luck")], indirect=True)
async def test_every_run_may_fail(rig: Rig) -> None:
    """A script's failure is the function's, with its reason."""
    link = await rig.link()
    rig.let_go()

    failed = await link.call(1)

    assert failed.kind is Kind.FAILED
    assert json.loads(failed.body) == {"code": "function_failed", "message": "out of luck"}


@pytest.mark.parametrize(
    "frame", [pack(Kind.HELLO, aux=VERSION + 1), pack(Kind.PING)], ids=["version", "kind"]
)
async def test_a_broken_protocol_ends_the_link(rig: Rig, frame: list[bytes]) -> None:
    """A wrong version or an unexpected frame ends its link and no other."""
    bad, good = await rig.link(), await rig.link()

    with capture_logs():
        bad.send(list(frame))
        await bad.lost

    rig.let_go()
    assert (await good.call(1)).kind is Kind.RESPONSE


async def test_an_id_in_use_ends_the_link(rig: Rig) -> None:
    """A second request with an id in use ends the link."""
    link = await rig.link()

    with capture_logs():
        link.request(1)
        link.request(1)
        await link.lost


async def test_links_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link above LINKS_MAX is closed at once."""
    monkeypatch.setattr(fake_service, "LINKS_MAX", 1)
    first = await rig.link()
    extra = socket.socket(socket.AF_UNIX)
    extra.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(extra, str(rig.path))

    assert await loop.sock_recv(extra, 10) == b""
    extra.close()
    rig.let_go()
    assert (await first.call(1)).kind is Kind.RESPONSE


def test_a_plain_script_has_no_fault() -> None:
    """The default script has no delays and faults."""
    script = Script()

    assert (script.start_s, script.load_s, script.run_s, script.batch) == (0.0, 0.0, 0.0, 1)
    assert (script.crash_at, script.hang_at, script.refuse_load, script.fail_run) == (
        None,
        None,
        "",
        "",
    )
    assert script.signature.kind == "json"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (
            "crash_at",
            "lunch",
            "crash_at: expected None or one of start, load, run, build, got 'lunch'",
        ),
        ("hang_at", "", "hang_at: expected None or one of start, load, run, build, got ''"),
        ("load_s", -1.0, "load_s: expected at least 0, got -1.0"),
        ("batch", 0, "batch: expected at least 1, got 0"),
        ("crash_count", -1, "crash_count: expected at least 0, got -1"),
    ],
)
def test_an_impossible_script_is_refused(field: str, value: Any, reason: str) -> None:
    """An out-of-range value is refused with its name and the expected range."""
    with pytest.raises(ValueError, match=reason):
        Script(**{field: value})
