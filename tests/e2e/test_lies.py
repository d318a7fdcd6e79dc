"""Tests of a handler that writes malformed frames to its links: none of them reaches a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import pytest

from tests.chaos.footprint import descriptors, settled, until
from tests.support.both_drivers import Siege, besieged, siege
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

DOCKER = pytest.param("docker", marks=pytest.mark.docker)
GROWTH_MAX_MIB = 48
"""Memory that one lie may add to a server; the largest lies have 64 MiB, one announces 257 MiB."""
CLOSED_S = 10.0
"""Seconds until passed descriptors are closed."""
REFUSED_DATA = {
    "a length of 4 GiB": "a body of 4294967295 bytes is over the limit of 268435456",
    "an answer over the limit": "a body of 269484032 bytes is over the limit of 268435456",
    "an unknown kind": "unknown frame kind 77",
    "a reserved kind": "unexpected PART on a data link",
    "a control frame": "unexpected PING on a data link",
    "an answer to nobody": "unknown request id",
    "nobody handed back": "unknown request id",
    "a type that is not on the list": "malformed answer meta",
    "times with a header": "malformed answer meta",
    "a time that is missing": "malformed answer meta",
    "a head longer than all": "the JSON part is longer than the answer",
    "a second greeting": "unexpected HELLO of link version 3",
    "half an id": "malformed STARTED",
    "an error that is none": "malformed FAILED",
    "an error without a bottom": "malformed FAILED",
    "an error of 64 MiB": "malformed FAILED",
    "starts of 16 million": "malformed STARTED",
    "starts without end": "10000 frames without an answer",
    "room without end": "10000 frames without an answer",
    "leave without end": "10000 frames without an answer",
    "options without end": "more than 1000 frames of unknown kinds",
}
REFUSED_CONTROL = {
    "a length of 4 GiB": "a body of 4294967295 bytes is over the limit of 1048576",
    "a report of 64 MiB": "a body of 67108866 bytes is over the limit of 1048576",
    "a report without a bottom": "malformed LOADED",
    "an unknown kind": "unknown frame kind 77",
    "an answer": "unexpected RESPONSE on a control link",
    "a second greeting": "unexpected HELLO on a control link",
    "loaded twice": "unexpected LOADED",
    "no limit": "malformed LOADED: limit",
    "a limit below 0": "malformed LOADED: limit",
    "memory that is no number": "malformed LOADED: memory_mib",
    "memory without end": "malformed LOADED: memory_mib",
    "phases without end": "unexpected LOADED",
    "failed after all": "unexpected LOAD_FAILED",
    "failures without end": "unexpected LOAD_FAILED",
    "busy without end": "unexpected NOT_IDLE",
    "answers to no PING": "unexpected PONG",
    "first runs without end": "unexpected FIRST_RUN",
    "refutations without end": "unexpected BATCHING_OFF",
}

REFUSED_SIDE = {
    "a slab that nobody knows": "slab 7 was not announced",
    "a slab that was withdrawn": "slab 1 was not announced",
    "no place": "expected a slab range of 20 bytes, got 0",
    "behind the end": "expected an answer of 1 bytes, got 0",
    "over the end": "expected an answer of 1048576 bytes, got 1048575",
    "an answer over the limit": "an answer at 0 of 67108865 bytes is over the limit",
    "an offset without end": "an answer at 18446744073709551615 of 5 bytes is over the limit",
    "a longer head": "the JSON part is longer than the answer",
    "no seals": "expected a slab sealed against shrinking and growing, got 0x0",
    "a slab that shrinks": "expected a slab sealed against shrinking and growing, got 0x4",
    "huge pages": "expected a slab sealed against shrinking and growing, got 0x0",
    # A file in a tmpfs, as a container's /tmp is, has seals of its own.
    "a regular file": "expected a ",
    "a pipe": "expected a memfd as a slab",
    "its own link": "expected a memfd as a slab",
    "less than was said": "expected a slab of 2097152 bytes, got 1048576",
    "a slab over the limit": "a slab of 68157440 bytes is over the limit",
    "the same twice": "slab 1 is one too many",
    "too many": "slab 2 is one too many",
    "fifty descriptors": "expected a slab's notice with its descriptor, got 12 bytes with 1 or",
    "no descriptor": "expected a slab's notice with its descriptor, got 12 bytes with 0",
    "half a notice": "expected a slab's notice with its descriptor, got 3 bytes with 1",
    "notices without end": "more than 64 notices",
    "an end": "",
}
LARGE = "x" * 200_000


@pytest.fixture(scope="module", params=["process", DOCKER])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with the hostile function, over each driver in turn."""
    data = tmp_path_factory.mktemp("lies") / "data"
    names = ("engine", "runtime_image") if request.param == "docker" else ()
    given = [request.getfixturevalue(name) for name in names]
    with besieged(request.param, data, *given) as server:
        yield server


def reasons(siege: Siege, mark: str) -> list[str]:
    """Return the reasons of links that ended since the mark."""
    lines = siege.log_since(mark)
    return [line["reason"] for line in lines if line["event"] == "a link broke the protocol"]


def complaints(siege: Siege) -> list[str]:
    """Return errors and tracebacks of the server, which a lie must not cause."""
    return list(siege.server.complaints)


@pytest.mark.parametrize("lie", REFUSED_DATA)
async def test_a_lie_to_the_gateway_ends_the_data_link(server: ServerProcess, lie: str) -> None:
    """A malformed frame on the data link is a 502 for its client only, with the reason in the log;
    the function answers at once over a new link."""
    async with siege(server) as besieger:
        assert (await besieger.call()).said == "nothing"
        mark, before_mib = besieger.mark, besieger.rss_mib

        met = await besieger.attack("data_lie", lie=lie)
        after = await besieger.call()

        assert (met.status, met.code) == (502, "replica_died"), met.body
        assert "Set-Cookie" not in met.headers
        assert any(why.startswith(REFUSED_DATA[lie]) for why in reasons(besieger, mark))
        assert after.said == "nothing"
        assert besieger.rss_mib < before_mib + GROWTH_MAX_MIB
        assert complaints(besieger) == []


@pytest.mark.parametrize("lie", REFUSED_SIDE)
async def test_a_lie_about_shared_memory_ends_the_data_link(
    server: ServerProcess, lie: str
) -> None:
    """A false message about shared memory ends the data link too, and no passed descriptor stays
    open."""
    assert server.process is not None
    async with siege(server) as besieger:
        assert (await besieger.call()).said == "nothing"
        pid = server.process.pid
        before = open_memory(pid)
        mark, before_mib = besieger.mark, besieger.rss_mib

        async def is_closed() -> bool:
            # More while a standby starts, which may be just now.
            return open_memory(pid) <= before

        met = await besieger.attack("side_lie", lie=lie)
        after = await besieger.call()

        assert (met.status, met.code) == (502, "replica_died"), met.body
        told = [line for line in reasons(besieger, mark) if line.startswith(REFUSED_SIDE[lie])]
        assert told or lie == "an end"
        assert after.said == "nothing"
        assert await until(is_closed, CLOSED_S), (before, open_memory(pid))
        assert besieger.rss_mib < before_mib + GROWTH_MAX_MIB
        assert complaints(besieger) == []


async def test_the_memory_of_requests_cannot_be_written(server: ServerProcess) -> None:
    """A replica can read its function's large requests but not change them."""
    async with siege(server) as besieger:
        met = await besieger.attack("scribble", padding=LARGE)

        assert met.said["rights"] == "r--s"
        assert {name: "refused" in how for name, how in met.said["tried"].items()} == dict.fromkeys(
            ["directly", "made writable", "through /proc/self/mem", "opened anew", "cut"], True
        )
        assert (await besieger.call(padding=LARGE)).said == "nothing"


async def test_an_answer_of_nothing_costs_no_more_than_one_of_something(
    server: ServerProcess,
) -> None:
    """Pages of an answer that the replica never wrote are read as zeros, up to the limit, and
    released."""
    async with siege(server) as besieger:
        assert (await besieger.call()).said == "nothing"
        before_mib = besieger.rss_mib

        met = await besieger.attack("endless", mib=64)

        assert (met.status, met.body) == (200, bytes(64 * 2**20))
        assert (await besieger.call()).said == "nothing"
        assert besieger.rss_mib < before_mib + GROWTH_MAX_MIB + 64


def open_memory(pid: int) -> int:
    """Return the number of descriptors of shared memory, and of other kinds that a replica may
    pass. The server's own slabs, and its connections to the database, come and go."""
    found = descriptors(pid)
    kinds = ("/memfd:lie", "/tmp/lie", "pipe")
    return sum(count for name, count in found.items() if name.startswith(kinds))


@pytest.mark.parametrize("lie", REFUSED_CONTROL)
async def test_a_lie_to_the_manager_ends_the_replica(server: ServerProcess, lie: str) -> None:
    """A malformed frame on the control link ends the replica; nothing of it is kept, and the next
    call has a new one."""
    async with siege(server) as besieger:
        assert (await besieger.call()).said == "nothing"
        mark, before_mib = besieger.mark, besieger.rss_mib

        met = await besieger.attack("control_lie", lie=lie, seconds=30)
        after = await besieger.call()

        assert (met.status, met.code) == (502, "replica_died"), met.body
        assert any(why.startswith(REFUSED_CONTROL[lie]) for why in reasons(besieger, mark))
        assert after.said == "nothing"
        assert besieger.rss_mib < before_mib + GROWTH_MAX_MIB
        assert complaints(besieger) == []


@pytest.mark.parametrize("server", ["process"], indirect=True)
async def test_a_half_answer_costs_its_own_link_only(server: ServerProcess) -> None:
    """An answer that is begun and never finished is a timeout for its client; some seconds later
    the link is closed and the function answers again."""
    async with siege(server) as besieger:
        assert (await besieger.call()).said == "nothing"
        mark = besieger.mark

        met = await besieger.attack("stall", seconds=0.1)
        after = await besieger.call()

        assert (met.status, met.code) == (504, "execution_timeout")
        assert after.said == "nothing"
        ended = [line for line in besieger.log_since(mark) if line["event"] == "a data link ended"]
        assert ended[0]["reason"] == "the replica does not release a request"


@pytest.mark.parametrize(
    ("link", "seconds", "code"), [("data", 0, ""), ("control", 30, "replica_died")]
)
async def test_descriptors_beside_frames_come_to_nothing(
    server: ServerProcess, link: str, seconds: float, code: str
) -> None:
    """The kernel closes descriptors that are not received; an unexpected frame ends the replica."""
    assert server.process is not None
    async with siege(server) as besieger:
        assert (await besieger.call()).said == "nothing"
        pid = server.process.pid
        before = descriptors(pid).get("/dev/null", 0)

        met = await besieger.call(attack="descriptors", link=link, seconds=seconds)

        async def is_closed() -> bool:
            # The server itself has one more while it starts a replica.
            return descriptors(pid).get("/dev/null", 0) <= before

        assert met.code == code
        assert await until(is_closed, CLOSED_S)
        assert (await besieger.call()).said == "nothing"


async def test_a_link_carries_only_its_own_functions_requests(server: ServerProcess) -> None:
    """A handler can only answer simultaneous calls of its own function, never those of another."""
    async with siege(server) as besieger, aiohttp.ClientSession() as session:
        assert (await besieger.call()).said == "nothing"
        caller = Caller(server.url, server.token, session)
        async with asyncio.TaskGroup() as group:
            group.create_task(besieger.attack("usurp", seconds=1.5))
            await caller.until_shown("hostile", in_flight=1)
            victim = group.create_task(besieger.call())

        assert victim.result().said == "usurped"
        assert (await besieger.call()).said == "nothing"


async def test_the_server_holds_nothing_afterwards(server: ServerProcess) -> None:
    """After the attacks the server has as many descriptors, tasks and processes as after one
    call."""
    assert server.process is not None
    pid = server.process.pid
    async with siege(server) as besieger:
        await besieger.attack()
    async with aiohttp.ClientSession() as session:
        caller = Caller(server.url, server.token, session)
        before = await settled(caller, pid, None)
        async with siege(server) as besieger:
            for lie in ("a length of 4 GiB", "starts without end", "an answer to nobody"):
                await besieger.attack("data_lie", lie=lie)
            await besieger.attack("control_lie", lie="failures without end", seconds=30)
            assert (await besieger.call()).said == "nothing"
        after = await settled(caller, pid, before)

    assert after.counts == before.counts
