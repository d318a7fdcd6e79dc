"""Parks of a whole server: engines sleep on stand-in GPUs, wake, and are proved at both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.chaos import park_cycles
from tests.chaos.calls import client
from tests.chaos.footprint import until
from tests.support.caller import Caller
from tests.support.doses import amount
from tests.support.process_server import ServerProcess, server_process
from tests.support.sleepy_engine.memory import FULL_MIB, RESIDUE_MIB
from tests.support.sleepy_engine.sleepers import Sleepers, completion, states

pytestmark = pytest.mark.slow

UNTIL_S = 60.0


@asynccontextmanager
async def serving(folder: Path, gpus: int) -> AsyncIterator[tuple[ServerProcess, Caller, Sleepers]]:
    """Run a server over stand-in GPUs."""
    sleepers = Sleepers(folder, gpus)
    with server_process(folder / "data", environment=sleepers.environment) as server:
        async with client(server) as caller:
            yield server, caller, sleepers


async def only(caller: Caller, name: str) -> tuple[str, str]:
    """Return the id and the state of a function's replica, two "" while there is none."""
    (found,) = (await states(caller)).get(name, {"": ""}).items()
    return found


async def await_state(caller: Caller, name: str, state: str) -> str:
    """Wait until a function's replica is in a state; return its id."""

    async def is_there() -> bool:
        return (await only(caller, name))[1] == state

    assert await until(is_there, UNTIL_S, poll_s=0.02), f"{name} is not {state}"
    return (await only(caller, name))[0]


async def test_functions_take_turns_on_gpus_asleep(tmp_path: Path) -> None:
    """Each is parked for the next one instead of being stopped, and wakes for its next call; the
    same engines serve all the time, also one on two GPUs."""
    async with serving(tmp_path, 2) as (server, caller, sleepers):
        for name, count in {"one": 1, "two": 2}.items():
            tables = "[scaling]\nidle_s = 3600"
            await asyncio.to_thread(sleepers.deploy, server, name, count=count, tables=tables)
        first = {}
        for turn, name in enumerate(("one", "two", "one")):
            assert await completion(caller, name, f"turn {turn}") == (200, "")
            id, state = await only(caller, name)
            assert (first.setdefault(name, id), state) == (id, "ready")
        assert (await only(caller, "two"))[1] == "parked"
        assert sorted(sleepers.used_mib().values()) == [RESIDUE_MIB, RESIDUE_MIB + FULL_MIB]


async def test_a_park_outlives_the_manager(tmp_path: Path) -> None:
    """Killed in each state of a park, it is taken over by the next manager: the same engine
    answers, after it has been proved."""
    async with serving(tmp_path, 1) as (server, caller, sleepers):
        server.port = int(server.url.rpartition(":")[2])
        options = ("--load", "1.5", "--slow", "0.4", "--answer", "0.1")
        tables = "[scaling]\nidle_s = 0.5"
        await asyncio.to_thread(sleepers.deploy, server, "one", *options, tables=tables)
        assert await completion(caller, "one", "the first") == (200, "")
        id = (await only(caller, "one"))[0]
        for state in ("parking", "parked", "unparking", "verifying"):
            cut = None
            if state in ("unparking", "verifying"):
                await await_state(caller, "one", "parked")
                cut = asyncio.create_task(completion(caller, "one", "it is cut off"))
            assert await await_state(caller, "one", state) == id
            await asyncio.to_thread(server.kill)
            if cut is not None:
                with pytest.raises(aiohttp.ClientError):
                    await cut
            await asyncio.to_thread(server.start)
            assert await completion(caller, "one", f"after {state}") == (200, "")
            assert await only(caller, "one") == (id, "ready")
        assert not server.complaints


async def test_no_caller_meets_an_engine_that_woke_wrong(tmp_path: Path) -> None:
    """Sound engines are kept through each cycle, beside loops that use every core; the others are
    ended, and all calls are answered right."""
    small = park_cycles.Dose(20261138, functions=6, cycles=4, faulty_cycles=2)
    dose = amount(small, park_cycles.Dose(20261130))

    ledger = await park_cycles.run(tmp_path, dose)

    assert ledger.violations == []
