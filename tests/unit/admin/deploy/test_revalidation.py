"""Refutations are stored, and functions judged by older rules are tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pool_manager.core import events
from pool_manager.drivers.fake import FakeDriver, Script
from registry.model import Profile
from registry.store.functions import Functions
from runtime_image.contract.rows import PROOF
from tests.support.operator import Operator, locked, operating, until

KEY = "default/digits@1"


class Pauses:
    """Lets time pass at once, and counts."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, _seconds: float) -> None:
        self.count += 1
        await asyncio.sleep(0)


@asynccontextmanager
async def server(folder: Path, **options: Any) -> AsyncIterator[Operator]:
    async with operating(folder, FakeDriver(Script(batch=8)), **options) as operator:
        yield operator


def profile(operator: Operator, ref: str = "digits") -> Profile:
    found = operator.store.catalog.resolve(ref).profile
    assert found is not None
    return found


async def refuted(operator: Operator) -> None:
    """A replica of the pool says that rows mix."""
    await operator.manager.warm(KEY)
    replica = next(one for one in operator.manager.replicas() if one.pool == KEY)
    operator.manager.submit(events.BatchingRefuted(replica.id, "rows are lost"))


async def test_a_refutation_outlives_restarts_and_trials(tmp_path: Path) -> None:
    """It is of the model: other functions with that bundle know it, too, and so does a deploy with
    settings that ask for another trial."""
    async with server(tmp_path) as operator:
        for name in ("digits", "letters"):
            assert (await operator.deploy(name)).state == "done"
        await refuted(operator)
        await until(lambda: bool(profile(operator).refuted_at_runtime))
        assert profile(operator, "letters").refuted_at_runtime == "rows are lost"

    async with server(tmp_path) as operator:
        assert profile(operator).refuted_at_runtime == "rows are lost"
        await operator.deploy("digits", overrides={"memory_mib": 500})
        assert operator.store.catalog.resolve("digits").revision.number == 2
        assert profile(operator).refuted_at_runtime == "rows are lost"


async def test_a_store_that_fails_is_tried_again(tmp_path: Path) -> None:
    """The replicas have stopped by then in any case."""
    pauses = Pauses()
    async with server(tmp_path, pause=pauses) as operator:
        await operator.deploy("digits")
        with locked(operator.store.settings.database):
            await refuted(operator)
            await until(lambda: pauses.count > 3)
            assert not profile(operator).refuted_at_runtime
        await until(lambda: bool(profile(operator).refuted_at_runtime))


async def aged(operator: Operator) -> None:
    """Its profile is that of an earlier release."""
    functions: Functions = operator.store.functions
    await functions.put_profile(replace(profile(operator), proof=0, model="", compared=False))


async def test_only_what_was_called_is_tried_again(tmp_path: Path) -> None:
    """Nobody waits for it, and a function that nobody calls costs nothing."""
    pauses = Pauses()
    async with server(tmp_path) as operator:
        await operator.deploy("digits")
        await aged(operator)

    async with server(tmp_path, pause=pauses) as operator:
        await until(lambda: pauses.count > 3)
        assert profile(operator).proof == 0
        await operator.manager.warm(KEY)
        await until(lambda: profile(operator).proof == PROOF)
        said = [one.text for one in operator.manager.decisions(KEY)]
        assert "batching by current rules: up to 8 rows" in said


async def test_a_trial_that_fails_leaves_the_function_as_it_is(tmp_path: Path) -> None:
    """It runs one request at a time, `why` says why, and it is tried once."""
    async with server(tmp_path) as operator:
        await operator.deploy("digits")
        await aged(operator)

    driver = FakeDriver(Script(batch=8, refuse_load="no"))
    async with operating(tmp_path, driver, pause=Pauses()) as operator:
        await operator.manager.warm(KEY)
        await until(
            lambda: any(
                one.text.startswith("batching could not be analysed: ")
                for one in operator.manager.decisions(KEY)
            )
        )
        assert profile(operator).proof == 0
