"""Tests of refuted batching, which is stored, and of trials for profiles made by older rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admin.deploy import revalidation
from pool_manager.core import events
from registry.model.profiles import Profile
from registry.spec import candidate_of, profile_engine
from registry.store.functions import Functions
from runtime_image.contract.precision import RULES, Optimisation
from runtime_image.contract.rows import PROOF
from runtime_image.verification import contention
from runtime_image.verification.contention import CpuReading
from tests.support.fake_driver.driver import FakeDriver, Script
from tests.support.nouns import optimised
from tests.support.operator import Operator, locked, operating, until

KEY = "default/digits@1"


class Pauses:
    """Sleep that returns at once and counts its calls."""

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
    """Have a replica of the pool report that rows mix."""
    await operator.manager.warm(KEY)
    replica = next(one for one in operator.manager.replicas() if one.pool == KEY)
    operator.manager.submit(events.BatchingRefuted(replica.id, "rows are lost"))


async def test_a_refutation_outlives_restarts_and_trials(tmp_path: Path) -> None:
    """A refutation belongs to the model: it holds for other functions with the bundle, after a
    restart and after a deploy that needs another trial."""
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
    """A refutation that cannot be stored is retried; the replicas have stopped batching by then
    anyway."""
    pauses = Pauses()
    async with server(tmp_path, pause=pauses) as operator:
        await operator.deploy("digits")
        with locked(operator.store.settings.database):
            await refuted(operator)
            await until(lambda: pauses.count > 3)
            assert not profile(operator).refuted_at_runtime
        await until(lambda: bool(profile(operator).refuted_at_runtime))


async def aged(operator: Operator) -> None:
    """Store a profile as an earlier release made it."""
    functions: Functions = operator.store.functions
    await functions.put_profile(replace(profile(operator), proof=0, model="", compared=False))


async def test_only_called_functions_are_tried_again(tmp_path: Path) -> None:
    """An old profile is replaced by a trial in the background, and only once the function is
    called."""
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
    """A failed trial leaves the function running single requests with a reason in `why`, and is not
    repeated."""
    async with server(tmp_path) as operator:
        await operator.deploy("digits")
        await aged(operator)

    driver = FakeDriver(Script(batch=8, refuse_load="no"))
    async with operating(tmp_path, driver, pause=Pauses()) as operator:
        await operator.manager.warm(KEY)
        await until(
            lambda: any(
                one.text.startswith("the trial by current rules failed: ")
                for one in operator.manager.decisions(KEY)
            )
        )
        assert profile(operator).proof == 0


async def with_candidate(operator: Operator, rules: int) -> None:
    """Store a second revision, which a candidate serves that rules of this version chose."""
    await operator.request({"int8": b"int8"})
    await operator.deploy("digits")
    one = operator.store.catalog.resolve("digits")
    revision = replace(one.revision, number=0, optimise=Optimisation("auto", 0.01))
    chosen = optimised(b"int8", revision.model, rules=rules)
    measured = replace(profile(operator), optimised=chosen, engine=profile_engine(revision))
    bundle = operator.store.bundles[revision.bundle]
    await operator.store.functions.deploy(one.function, revision, bundle, measured)


@pytest.mark.parametrize(("rules", "is_tried"), [(RULES - 1, True), (RULES, False)])
async def test_a_candidate_of_weaker_rules_is_judged_again(
    tmp_path: Path, rules: int, is_tried: bool
) -> None:
    """It serves until its function is called and a trial has chosen anew: a fake one reports no
    choice, so it goes on serving, and `why` has the reason."""
    async with server(tmp_path) as operator:
        await with_candidate(operator, rules)

    key, pauses = "default/digits@2", Pauses()
    async with server(tmp_path, pause=pauses) as operator:
        await operator.manager.warm(key)

        def is_noted() -> bool:
            said = [one.text for one in operator.manager.decisions(key)]
            return any(text.startswith("the trial by current rules failed: ") for text in said)

        await until(lambda: is_noted() or not is_tried)
        assert is_noted() is is_tried
        assert candidate_of(operator.store.catalog.resolve("digits@2")) is not None


def make_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a machine whose two CPUs are idle, and is looked at without a pause."""
    readings = (CpuReading(60.0 * n, 0.0, 0.0, 120.0 * n, 2) for n in range(1_000_000))
    monkeypatch.setattr(contention, "read", lambda: next(readings))
    monkeypatch.setattr(revalidation, "LOOK_S", 0.01)


async def make_due(operator: Operator) -> None:
    """Have the pause before the next measurement be over."""
    found = profile(operator)
    due = replace(found, contention=replace(found.contention, again_s=1.0))
    await operator.store.functions.put_profile(due)


async def test_a_busy_measurement_is_repeated_on_an_idle_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server measures the function again without a call, and its revision stays."""
    busy = FakeDriver(Script(batch=2, contention="busy"))
    async with operating(tmp_path, busy) as operator:
        await operator.deploy("digits")
        assert profile(operator).contention.again_s > 0
        await make_due(operator)

    make_idle(monkeypatch)
    async with operating(tmp_path, FakeDriver(Script(batch=8, contention="none"))) as operator:
        await until(lambda: profile(operator).contention.state == "none")
        assert profile(operator).batch_max == 8
        assert profile(operator).contention.again_s == 0
        assert operator.store.catalog.resolve("digits").revision.number == 1
        said = [one.text for one in operator.manager.decisions(KEY)]
        assert "measured again: up to 8 rows" in said


async def test_a_measurement_gives_way_to_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cold start ends the trial; the attempt does not count and gets a time of its own."""
    async with operating(tmp_path, FakeDriver(Script(batch=2, contention="busy"))) as operator:
        await operator.deploy("digits")
        await make_due(operator)

    make_idle(monkeypatch)
    monkeypatch.setattr(revalidation, "GIVE_WAY_S", 0.01)
    driver = FakeDriver(Script(batch=8, load_s=0.5))
    async with operating(tmp_path, driver) as operator:
        await until(lambda: profile(operator).contention.attempts == 1)
        await operator.manager.warm(KEY)
        await until(lambda: profile(operator).contention.attempts == 0)
        assert profile(operator).batch_max == 2
        assert profile(operator).contention.again_s > 1
        assert not [one for one in operator.manager.replicas() if one.role == "trial"]


async def test_a_deploy_measures_again_on_request(tmp_path: Path) -> None:
    """With `measure` the same files and settings are measured anew; without it they are not."""
    async with operating(tmp_path, FakeDriver(Script(batch=2, contention="busy"))) as operator:
        await operator.deploy("digits")

    async with operating(tmp_path, FakeDriver(Script(batch=8, contention="none"))) as operator:
        await operator.deploy("digits")
        assert profile(operator).batch_max == 2
        done = await operator.deploy("digits", measure=True)
        assert done.result["batching"] == "up to 8 rows"
        assert not done.result["created"]
        assert profile(operator).batch_max == 8


@pytest.mark.parametrize("now", [True, False])
async def test_an_operator_has_a_model_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: bool
) -> None:
    """At once on a machine as busy as it is, or once it is idle; once for each request."""
    async with operating(tmp_path, FakeDriver(Script(batch=2, contention="none"))) as operator:
        await operator.deploy("digits")

    make_idle(monkeypatch)
    monkeypatch.setattr(contention, "is_free", lambda *_: not now)
    driver = FakeDriver(Script(batch=8, contention="none"))
    async with operating(tmp_path, driver) as operator:
        one = operator.store.catalog.resolve("digits")
        operator.deploys.measure_again(one, now=now)
        await until(lambda: profile(operator).batch_max == 8)
        assert profile(operator).contention.attempts == 1
        assert operator.deploys._revalidation._asked == {}
