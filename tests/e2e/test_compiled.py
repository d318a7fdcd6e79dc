"""Tests of compiled models over a real server: builds make way for calls, are swapped in under
load, survive a crash of the server, and are made anew for another version of the engine."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.calls import client
from tests.chaos.footprint import until
from tests.support.caller import Caller
from tests.support.process_server import ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DIGITS = Path(__file__).parents[2] / "functions" / "digits"
DELAY_S = 2.0
UNTIL_S = 60.0
AUTO = '\n[runtime]\nengine = "auto"\n'
SEVEN = (DIGITS / "seven.png").read_bytes()
PICTURE = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose CPU models are compiled slowly, with one slot."""
    with slowly_compiling(tmp_path_factory.mktemp("narrow"), 1) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose CPU models are compiled slowly, with two slots."""
    with slowly_compiling(tmp_path_factory.mktemp("compiled"), 2) as server:
        yield server


@contextmanager
def slowly_compiling(folder: Path, slots: int) -> Iterator[ServerProcess]:
    environment = {"FN_COMPILER": "onnxruntime", "FN_BUILD_DELAY_S": str(DELAY_S)}
    options = ("--cpu-slots", str(slots))
    with server_process(folder / "data", *options, environment=environment) as server:
        yield server
        complaints = list(server.complaints)
    assert complaints == []


@pytest.fixture
async def narrow_caller(narrow: ServerProcess) -> AsyncIterator[Caller]:
    async with client(narrow) as caller:
        yield caller


@pytest.fixture
async def caller(server: ServerProcess) -> AsyncIterator[Caller]:
    async with client(server) as caller:
        yield caller


async def deploy(caller: Caller, name: str, added: str = "") -> None:
    """Deploy the ready-made digits with these further lines in its function.toml."""
    files = {path: (DIGITS / path).read_bytes() for path in ("digits.onnx", "seven.png")}
    manifest = (DIGITS / "function.toml").read_text().replace('name = "digits"', f'name = "{name}"')
    files["function.toml"] = (manifest + added).encode()
    await caller.deploy(files, name=name)


async def build(caller: Caller, name: str = "digits") -> dict[str, Any]:
    found: dict[str, Any] = (await caller.function(name))["build"]
    return found


async def reached(caller: Caller, state: str, attempts: int | None = None) -> dict[str, Any]:
    """Wait until the build of digits is in a state; return it."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        found.update(await build(caller))
        return found["state"] == state and attempts in (None, found["attempts"])

    assert await until(is_there, UNTIL_S), found
    return found


async def sessions(caller: Caller) -> list[str]:
    """Sessions of the serving replicas of the revision that has the traffic of digits."""
    ref = (await caller.function("digits"))["revision"]
    items = (await caller.admin("GET", "/replicas")).json()["items"]
    found = [one for one in items if one["revision"] == ref and one["role"] == "serve"]
    return [one["session"] for one in found if one["state"] == "ready"]


async def started_with(caller: Caller, session: str) -> None:
    """Wait until the newest cold start of digits is stored; it ended with this session."""
    found: list[str] = []

    async def is_stored() -> bool:
        why = (await caller.admin("GET", "/functions/digits/why")).json()
        found[:] = [one["session"] for one in why["cold_starts"][:1]]
        return found == [session]

    assert await until(is_stored, UNTIL_S), found


async def asleep(caller: Caller, name: str) -> None:
    """Stop the replicas of a function."""

    async def is_cold() -> bool:
        await caller.admin("POST", f"/functions/{name}/sleep")
        return (await caller.function(name))["state"] == "cold"

    assert await until(is_cold, UNTIL_S)


async def call(caller: Caller, name: str = "digits") -> str:
    """Classify a picture of a seven; return the answer."""
    answer = await caller.request("POST", f"/fn/{name}", SEVEN, PICTURE)
    assert answer.status == 200, answer.body
    return answer.body.decode()


async def test_a_build_makes_way(narrow: ServerProcess, narrow_caller: Caller) -> None:
    """A call of another function gets the device of a build at once. After three times the build
    waits for `fnctl prepare --now`, which follows it to its end."""
    caller = narrow_caller
    await deploy(caller, "other")
    await deploy(caller, "digits", AUTO)
    for attempt in (1, 2, 3):
        running = await reached(caller, "building", attempt)
        assert running["elapsed_s"] < DELAY_S
        assert '"7"' in await call(caller, "other")
        assert (await build(caller))["state"] != "building"
        await asleep(caller, "other")
    given_up = await reached(caller, "given_up")
    assert "other" in given_up["reason"], given_up

    done = await asyncio.to_thread(narrow.fnctl, "prepare", "digits", "--now")

    assert done.returncode == 0, done.stderr
    assert "digits: by onnxruntime for cpu, the whole graph is compiled, built in" in done.stdout
    assert "building: " in done.stderr
    assert done.stderr.endswith("next: fnctl show digits\n")
    shown = await asyncio.to_thread(narrow.fnctl, "show", "digits")
    assert re.search(r"image 1x8x8 to \d+x8x8; others run uncompiled", shown.stdout)
    assert "largest relative difference" in shown.stdout


async def test_a_cold_start_uses_the_compiled_model(
    narrow: ServerProcess, narrow_caller: Caller
) -> None:
    """A replica that starts serves with the compiled session, and the receipt says so; answers are
    those of the ordinary session."""
    caller = narrow_caller
    await asleep(caller, "digits")

    label = await call(caller)

    assert await sessions(caller) == ["compiled"]
    await started_with(caller, "compiled")
    why = await asyncio.to_thread(narrow.fnctl, "why", "digits")
    assert "ready  compiled" in why.stdout
    assert '"7"' in label


async def test_a_swap_fails_no_call(caller: Caller) -> None:
    """A revision that is compiled while it answers calls goes over to the compiled session without
    a failed call, and all answers are the same."""
    await deploy(caller, "digits", f"{AUTO}[batching]\nmax_size = 4\n")
    ended = asyncio.Event()
    answers: set[str] = set()
    seen: set[str] = set()

    async def one() -> None:
        while not ended.is_set():
            answers.add(await call(caller))

    async def is_swapped() -> bool:
        seen.update(await sessions(caller))
        return "compiled" in seen

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(one())
        try:
            assert await until(is_swapped, UNTIL_S), (seen, await build(caller))
        finally:
            ended.set()

    assert seen == {"original", "compiled"}
    assert len(answers) == 1
    assert (await build(caller))["state"] == "done"


async def test_a_killed_server_builds_again(server: ServerProcess, caller: Caller) -> None:
    """The next server counts the build that the crash ended, removes its replica and builds. Then a
    compiled model of another engine version is not used: the ordinary session serves, until a new
    build is done."""
    await asleep(caller, "digits")
    await deploy(caller, "digits", f"{AUTO}[batching]\nmax_size = 2\n")
    await reached(caller, "building", 1)
    before = server.replica_pids("build")
    ids = [id for id, pid in server.replica_processes().items() if pid in before]
    assert len(ids) == 1

    server.kill()
    server.start()

    async with client(server) as again:
        await reached(again, "building", 2)
        done = await reached(again, "done")
        assert done["compiled_ms"].keys() == done["ordinary_ms"].keys() != set()
    assert set(before).isdisjoint(server.replica_pids())
    assert server.replica_pids("build") == []
    assert [path for id in ids for path in server.data.rglob(id) if path.is_dir()] == []

    server.stop()
    _as_of_another_version(server.data / "fngate.db")
    server.start()
    async with client(server) as again:
        await _is_built_anew(again)
    server.stop()


async def _is_built_anew(caller: Caller) -> None:
    assert (await build(caller))["state"] == "done"
    assert '"7"' in await call(caller)
    decisions = (await caller.admin("GET", "/functions/digits/why")).json()["decisions"]
    assert any("another key" in one["text"] for one in decisions), decisions
    await reached(caller, "done")

    async def is_compiled() -> bool:
        return await sessions(caller) == ["compiled"]

    assert await until(is_compiled, UNTIL_S)
    await started_with(caller, "original")


def _as_of_another_version(database: Path) -> None:
    """Change the key of every stored compiled model."""
    with closing(sqlite3.connect(database)) as connection:
        for target, text in connection.execute("SELECT target, record FROM compiled").fetchall():
            record = json.loads(text)
            record["model"]["key"] = "onnxruntime 1.0.0"
            connection.execute(
                "UPDATE compiled SET record = ? WHERE target = ?", (json.dumps(record), target)
            )
        connection.commit()
