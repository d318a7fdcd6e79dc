"""Tests of the lives of a server function's processes: starts that fail, servers that refuse to
end, orphans, deaths, memory, logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.chaos.calls import client
from tests.chaos.footprint import pause, until
from tests.support import faulty_server
from tests.support.process_server import ServerProcess, server_process
from tests.support.raw_http import Got, ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LIFE = "start_s = 20\nstop_grace_s = 0.6"
LOG_MAX = 16 << 20
ENDS_S = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of data and bundles."""
    return tmp_path_factory.mktemp("lives")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server with one innocent function, `beside`."""
    with server_process(folder / "data", "--cpu-slots", "3") as server:
        faulty_server.deploy(server, folder, "beside", life=LIFE)
        yield server
        complaints = list(server.complaints)
    assert complaints == []
    assert faulty_server.survivors(server.data) == {}


@pytest.fixture
async def port(server: ServerProcess) -> AsyncIterator[int]:
    """The server's port. After the test the innocent function answers."""
    port = urlsplit(server.url).port
    assert port is not None
    yield port
    assert (await ask(port, "GET", "/fn/beside/")).status == 200


async def gone(server: ServerProcess, name: str) -> None:
    """Remove a function; all its processes must end."""
    async with client(server) as caller:
        done = await caller.admin("DELETE", f"/functions/{name}")
    assert done.status == 200, done.body
    await ended(server, name)


async def put_to_sleep(server: ServerProcess, name: str) -> None:
    """Send a function to sleep; all its processes must end. A replica that has just been called
    stays awake, so the request is repeated."""

    async with client(server) as caller:

        async def is_over() -> bool:
            done = await caller.admin("POST", f"/functions/{name}/sleep")
            assert done.status == 200, done.body
            return not faulty_server.survivors(mark(server, name))

        assert await until(is_over, ENDS_S), faulty_server.survivors(mark(server, name))


async def ended(server: ServerProcess, name: str) -> None:
    """Wait until no process of a function is left."""

    async def is_over() -> bool:
        return not faulty_server.survivors(mark(server, name))

    assert await until(is_over, ENDS_S), faulty_server.survivors(mark(server, name))


def mark(server: ServerProcess, name: str) -> str:
    """Return the mark of one function's processes."""
    return f"{server.data}/{name}"


def bundle(server: ServerProcess, folder: Path, name: str, *options: str, **tables: str) -> Path:
    """Write a bundle whose processes have a mark of their own."""
    tables.setdefault("life", LIFE)
    return faulty_server.bundle(folder, name, *options, mark=mark(server, name), **tables)


async def deployed(
    server: ServerProcess, folder: Path, name: str, *options: str, **tables: str
) -> None:
    """Deploy a server with faults of its life; it must become ready."""
    path = bundle(server, folder, name, *options, **tables)
    done = await asyncio.to_thread(server.fnctl, "deploy", str(path), "--trust")
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize(
    ("options", "life", "reason"),
    [
        (("--exit", "3"), LIFE, "3"),
        (("--exit", "0"), LIFE, "exit"),
        (("--never-ready",), "start_s = 2\nstop_grace_s = 1", "503"),
        (("--elsewhere",), "start_s = 2\nstop_grace_s = 1", "ready"),
        (("--listen-after", "60"), "start_s = 2\nstop_grace_s = 1", "ready"),
    ],
)
async def test_a_server_that_never_gets_ready_is_not_deployed(
    server: ServerProcess,
    folder: Path,
    port: int,
    options: tuple[str, ...],
    life: str,
    reason: str,
) -> None:
    """The deploy fails with the reason, and leaves no process."""
    path = bundle(server, folder, "never", *options, life=life)
    done = await asyncio.to_thread(server.fnctl, "deploy", str(path), "--trust")

    assert done.returncode != 0
    assert reason in done.stderr + done.stdout
    await ended(server, "never")
    assert (await ask(port, "GET", "/fn/never/")).status == 404


async def test_calls_wait_for_a_slow_start(server: ServerProcess, folder: Path, port: int) -> None:
    """Calls of a cold function are held until its server answers its probe, and are then answered
    by it."""
    await deployed(server, folder, "slow", "--listen-after", "0.5", "--ready-after", "1")
    await put_to_sleep(server, "slow")

    answers = await asyncio.gather(
        *(ask(port, "GET", "/fn/slow/show", fields={"Token": str(n)}) for n in range(20))
    )

    assert [got.status for got in answers] == [200] * 20
    assert len({got.json()["instance"] for got in answers}) == 1
    for number, got in enumerate(answers):
        assert ["token", str(number)] in got.json()["fields"]
    await gone(server, "slow")


@pytest.mark.parametrize(
    "options",
    [("--deaf",), ("--slow-end", "0.3"), ("--orphans", "3"), ("--deaf", "--orphans", "2")],
)
async def test_every_process_ends_with_its_replica(
    server: ServerProcess, folder: Path, port: int, options: tuple[str, ...]
) -> None:
    """Sleep ends servers that ignore TERM, and processes that left their session."""
    await deployed(server, folder, "clings", *options)
    assert (await ask(port, "GET", "/fn/clings/")).status == 200
    assert len(faulty_server.survivors(mark(server, "clings"))) > int(options[-1] == "3")

    await put_to_sleep(server, "clings")

    assert (await ask(port, "GET", "/fn/clings/")).status == 200
    await gone(server, "clings")


async def test_a_server_that_forks_away_leaves_nothing(
    server: ServerProcess, folder: Path, port: int
) -> None:
    """A command that exits while a process of another session serves is refused or served, but
    leaves nothing either way."""
    path = bundle(server, folder, "away", "--away", life="start_s = 5\nstop_grace_s = 1")
    done = await asyncio.to_thread(server.fnctl, "deploy", str(path), "--trust")

    if done.returncode == 0:
        assert (await ask(port, "GET", "/fn/away/")).status == 200
        await gone(server, "away")
    await ended(server, "away")


async def test_a_crash_is_told_and_the_next_call_is_answered(
    server: ServerProcess, folder: Path, port: int
) -> None:
    """A server that dies gives 502 to its callers, also in the middle of an answer, and the next
    call a new server."""
    await deployed(server, folder, "dies")
    first = (await ask(port, "GET", "/fn/dies/show")).json()["instance"]

    died = await ask(port, "POST", "/fn/dies/crash", b"x")
    again = await ask(port, "GET", "/fn/dies/show")
    broken = await ask(port, "GET", "/fn/dies/crash-body")
    third = await ask(port, "GET", "/fn/dies/show")

    assert (died.status, died.code in ("replica_died", "upstream_failed")) == (502, True), died
    assert (again.status, again.json()["instance"] != first) == (200, True)
    assert (broken.status, broken.end in ("cut", "reset")) == (200, True), broken
    assert third.status == 200
    await gone(server, "dies")


async def test_memory_over_the_cap_ends_only_its_own_server(
    server: ServerProcess, folder: Path, port: int
) -> None:
    """A server over its memory cap is ended; `why` says so, and the next call is answered."""
    more = "[device]\nmemory_mib = 256"
    await deployed(server, folder, "eats", more=more)

    got = await ask(port, "POST", "/fn/eats/eat?mib=600&ms=5000", b"")
    after = await ask(port, "GET", "/fn/eats/")

    assert got.status == 502, got
    assert after.status == 200
    why = (await asyncio.to_thread(server.fnctl, "why", "eats")).stdout
    assert "memory" in why
    assert "256 MiB" in why
    await gone(server, "eats")


async def test_memory_over_the_cap_at_the_start_is_the_reason(
    server: ServerProcess, folder: Path, port: int
) -> None:
    """A server that starts with more memory than its cap is not deployed, and the reason names
    it."""
    more = "[device]\nmemory_mib = 128"
    path = bundle(server, folder, "greedy", "--eats", "600", "--listen-after", "20", more=more)
    done = await asyncio.to_thread(server.fnctl, "deploy", str(path), "--trust")

    assert done.returncode != 0
    assert "memory" in done.stderr + done.stdout
    assert "128 MiB" in done.stderr + done.stdout
    await ended(server, "greedy")


async def test_answers_before_requests_are_told_or_taken(
    server: ServerProcess, folder: Path, port: int
) -> None:
    """A server that answers each connection before its request gives 502, or that answer; the next
    caller does not get the answer that comes too late, and the gateway keeps its descriptors.

    Between the calls is a pause: an answer that comes while the next call waits for its own cannot
    be told from that.
    """
    await deployed(server, folder, "hasty", "--answers-first")
    for number in range(30):
        got = await ask(port, "GET", "/fn/hasty/show", fields={"Token": f"t{number}"})
        assert (got.status, bytes(got.body)) == (200, b"unasked!") or got.status == 502, got
        await pause(0.05)
    await gone(server, "hasty")


async def test_output_without_end_is_bounded(
    server: ServerProcess, folder: Path, port: int
) -> None:
    """Of output without end a bounded part is kept, and the server answers."""
    await deployed(server, folder, "talks", "--talks")
    said: list[Got] = [await ask(port, "POST", "/fn/talks/talk?mib=20", b"") for _ in range(3)]

    assert [got.status for got in said] == [200] * 3

    async def is_bounded() -> bool:
        paths = (server.data / "logs").rglob("*.log*")
        return sum(path.stat().st_blocks * 512 for path in paths) < LOG_MAX

    assert await until(is_bounded, ENDS_S)
    assert (await asyncio.to_thread(server.fnctl, "logs", "talks")).stdout
    await gone(server, "talks")
