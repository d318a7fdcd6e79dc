"""Contract tests of the drivers that run real replicas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pool_manager.core import events
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec
from tests.support.replicas import binding
from tests.support.scenes import JSON_RULES, Scenes

pytestmark = pytest.mark.slow


async def test_another_driver_adopts(real: Scenes) -> None:
    """A new driver finds the replica of an earlier one, which keeps serving, and can release it."""
    stage = await real.ready("aaaa0001")
    link = await stage.link("aaaa0001")
    await stage.driver.close()
    stage.forget("aaaa0001")

    later = await real.driver()
    found = await later.list()
    answer = await link.call(1)
    await later.release("aaaa0001")
    await link.lost

    assert found == {"aaaa0001"}
    assert answer.kind is Kind.RESPONSE
    assert await later.list() == set()
    await later.close()


async def test_a_driver_finds_only_its_own(real: Scenes, tmp_path: Path) -> None:
    """Replicas of another data directory are not adopted."""
    await real.ready("aaaa0001")

    folders = {name: tmp_path / name for name in ("run_dir", "model_dir", "log_dir")}
    stranger = await real.driver(settings=replace(real.settings, **folders))

    assert await stranger.list() == set()
    await stranger.close()


async def test_a_model_over_the_memory_cap_is_refused(real: Scenes) -> None:
    """A model that exceeds the memory cap ends its load with a reason and does not hang."""
    stage = await real.stage()
    spec = ModelSpec("digits@1", model="big.onnx")

    stage.launch("aaaa0001", replace(binding(spec), memory_mib=160))

    assert (await stage.next(events.Lost)).reason != ""


async def test_a_standby_has_the_cap_of_its_function(real: Scenes) -> None:
    """A standby started without a cap refuses a model that exceeds its function's cap."""
    stage = await real.stage()
    await stage.standby("aaaa0001")

    spec = ModelSpec("digits@1", model="big.onnx")
    stage.assign("aaaa0001", replace(binding(spec), memory_mib=100))

    assert "its memory cap is 100 MiB" in (await stage.next(events.Lost)).reason


async def test_a_standbys_output_moves_to_the_log(real: Scenes) -> None:
    """A handler's output is in its function's log, also if the process started as a standby."""
    stage = await real.stage()
    await stage.standby("aaaa0001")

    spec = ModelSpec("digits@1", handler="talks.py", inputs=JSON_RULES)
    stage.assign("aaaa0001", binding(spec))
    await stage.next(events.Loaded)

    assert await stage.output("digits", b"19999 " + b"-" * 40 + b"\n")


async def test_output_goes_to_the_log(real: Scenes) -> None:
    """A handler's output is kept up to the limit; output after a cut is kept too."""
    stage = await real.ready("aaaa0001", handler="talks.py", inputs=JSON_RULES)
    link = await stage.link("aaaa0001")

    await stage.launcher.output.bound()
    [(_, bounded)] = await stage.launcher.output.kept("digits")
    await link.call(1)

    assert len(bounded) <= stage.settings.log_bytes + 100
    assert await stage.output("digits", b"19999 " + b"-" * 40 + b"\nthe last word\n")
    await link.close()


async def test_the_last_output_of_a_replica_is_reported(real: Scenes) -> None:
    """Output before a failed load is reported with the failure and stays in the log after the
    release."""
    stage = await real.stage()
    spec = ModelSpec("digits@1", handler="fails.py", inputs=JSON_RULES)
    stage.launch("aaaa0001", binding(spec))

    lost = await stage.next(events.Lost)
    await stage.release("aaaa0001")

    assert "weights are missing" in lost.reason
    assert "looking for the weights" in lost.log_tail
    assert lost.log_tail[-1] == "RuntimeError: weights are missing"
    assert b"looking for the weights\n" in (await stage.launcher.output.kept("digits"))[0][1]
