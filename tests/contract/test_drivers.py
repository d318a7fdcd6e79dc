"""Contract tests of every driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.core import events
from registry.errors import DriverError
from runtime_image.contract.link import VERSION, Kind, NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.link.frames import pack
from tests.support.fake_driver.driver import Script
from tests.support.replicas import binding
from tests.support.scenes import JSON_RULES, Scenes, a_record

pytestmark = pytest.mark.slow


async def test_a_replica_starts_and_loads(scenes: Scenes) -> None:
    """A started replica connects with its phases, loads its model and reports its limit."""
    stage = await scenes.stage()
    stage.launch("aaaa0001")

    greeted = await stage.next(events.Greeted)
    loaded = await stage.next(events.Loaded)

    assert (greeted.id, greeted.loaded) == ("aaaa0001", False)
    assert {"start", "import"} <= set(greeted.phases)
    assert {"start", "import", "bind", "load"} == set(loaded.phases)
    assert loaded.limit == 2
    assert loaded.memory_mib > 0


@pytest.mark.parametrize("role", ["serve", "trial"])
async def test_a_standby_starts_and_is_bound(scenes: Scenes, role: str) -> None:
    """A standby connects without a model; once bound it reports like any replica, without the
    phases before the binding."""
    stage = await scenes.stage()
    greeted = await stage.standby("aaaa0001")

    stage.assign("aaaa0001", binding(ModelSpec("digits@1", model="add_one.onnx")), role=role)
    loaded = await stage.next(events.Loaded)

    assert greeted == events.Greeted("aaaa0001", {})
    assert {"place", "bind", "load"} == set(loaded.phases)
    assert loaded.phases["place"] >= 1.5
    assert (loaded.limit, bool(loaded.report)) == ((2, False) if role == "serve" else (0, True))


async def test_a_standby_obeys_term(scenes: Scenes) -> None:
    """A standby exits on TERM; one that has just connected may not handle the signal itself yet."""
    stage = await scenes.stage()
    await stage.standby("aaaa0001")

    await stage.driver.terminate("aaaa0001")

    assert await stage.exit("aaaa0001") in ("exited with code 0", "was killed by SIGTERM")


async def test_limits_of_a_missing_replica_are_an_error(scenes: Scenes) -> None:
    """Setting limits of a replica that does not run raises DriverError."""
    stage = await scenes.ready("aaaa0001")
    record = stage.launcher.folders.read_records()["aaaa0001"]
    assert record is not None
    await stage.driver.limit(record)
    await stage.driver.terminate("aaaa0001")
    await stage.exit("aaaa0001")

    for gone in (record, a_record()):
        with pytest.raises(DriverError, match=f"cannot limit {gone.id}: it does not run"):
            await stage.driver.limit(gone)


async def test_a_request_is_answered(scenes: Scenes) -> None:
    """A data link reports revision and limit, and a request gets its answer."""
    stage = await scenes.ready("aaaa0001")
    link = await stage.link("aaaa0001")

    answer = await link.call(7)

    assert link.hello == {"revision": "digits@1", "limit": 2}
    assert Kind.RESPONSE is answer.kind
    assert b'"revision":' in answer.body
    assert (await stage.next(events.FirstRun)).ms >= 0
    await link.close()


async def test_an_idle_replica_drains(scenes: Scenes) -> None:
    """An idle replica that is drained sends GOAWAY and exits with code 0."""
    stage = await scenes.ready("aaaa0001")
    link = await stage.link("aaaa0001")

    control = stage.launcher.control("aaaa0001")
    assert control is not None
    control.drain(None)

    await link.next(Kind.GOAWAY)
    assert await stage.exit("aaaa0001") == "exited with code 0"
    assert stage.exits == [("aaaa0001", "exited with code 0")]
    await link.close()


async def test_a_busy_replica_refuses_an_idle_drain(scenes: Scenes) -> None:
    """A replica with a running request refuses to drain if idle."""
    stage = await scenes.ready("aaaa0001", Script(hang_at="run"), model="slow.onnx")
    link = await stage.link("aaaa0001")
    link.request(1)
    await link.next(Kind.STARTED)

    control = stage.launcher.control("aaaa0001")
    assert control is not None
    control.drain(0.001)

    assert (await stage.next(events.NotIdle)).idle_s == 0
    await link.close()


async def test_termination_returns_waiting_requests(scenes: Scenes) -> None:
    """On TERM a busy replica first returns its unstarted requests."""
    stage = await scenes.ready("aaaa0001", Script(hang_at="run"), model="slow.onnx")
    link = await stage.link("aaaa0001")
    link.request(1)
    await link.next(Kind.STARTED)
    link.request(2)
    # Answered only after request 2 has been read: TERM must not overtake it.
    link.send(pack(Kind.HELLO, aux=VERSION))
    await link.next(Kind.HELLO)

    await stage.driver.terminate("aaaa0001")

    handed_back = await link.next(Kind.GOAWAY), await link.next(Kind.NOT_STARTED)
    assert [handed_back[1].id, handed_back[1].aux] == [2, NotStarted.DRAINING]
    await link.close()


async def test_an_idle_replica_obeys_term(scenes: Scenes) -> None:
    """An idle replica exits with code 0 on TERM."""
    stage = await scenes.ready("aaaa0001")

    await stage.driver.terminate("aaaa0001")

    assert await stage.exit("aaaa0001") == "exited with code 0"


async def test_a_crash_is_reported_once(scenes: Scenes) -> None:
    """A replica that dies during a request is reported once and is no longer listed."""
    script = Script(crash_at="run")
    stage = await scenes.ready("aaaa0001", script, handler="dies.py", inputs=JSON_RULES)
    link = await stage.link("aaaa0001")
    link.request(1)

    await link.next(Kind.STARTED)
    await link.lost
    how = await stage.exit("aaaa0001")
    living = await stage.driver.list()
    await stage.release("aaaa0001")

    assert how in ("crashed", "exited with code 3")
    assert living == set()
    assert stage.exits == [("aaaa0001", how)]


async def test_release_leaves_nothing(scenes: Scenes) -> None:
    """Releasing a busy replica ends it, its links and its folders; a second release has no
    effect."""
    stage = await scenes.ready("aaaa0001", Script(hang_at="run"), model="slow.onnx")
    link = await stage.link("aaaa0001")
    link.request(1)
    await link.next(Kind.STARTED)

    await stage.release("aaaa0001")
    await link.lost
    await stage.driver.release("aaaa0001")
    await stage.driver.terminate("aaaa0001")

    assert await stage.driver.list() == set()
    assert list(stage.settings.run_dir.iterdir()) == []
    assert list(stage.settings.model_dir.iterdir()) == []


async def test_the_list_names_running_replicas(scenes: Scenes) -> None:
    """The list has exactly the running replicas."""
    stage = await scenes.ready("aaaa0001")
    await stage.ready("aaaa0002")

    both = await stage.driver.list()
    await stage.release("aaaa0001")

    assert both == {"aaaa0001", "aaaa0002"}
    assert await stage.driver.list() == {"aaaa0002"}


async def test_a_failed_start_is_an_error(scenes: Scenes, tmp_path: Path) -> None:
    """If a file or folder is missing, the start fails with the reason and no replica runs."""
    driver = (await scenes.stage()).driver

    with pytest.raises(DriverError, match=r"No such file|source path does not exist"):
        await driver.start(a_record(), tmp_path, tmp_path / "missing" / "log")

    assert await driver.list() == set()
