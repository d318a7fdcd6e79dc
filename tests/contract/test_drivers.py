"""What every driver does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool_manager.core import events
from pool_manager.drivers.fake import Script
from registry.errors import DriverError
from runtime_image.contract.link import VERSION, Kind, NotStarted
from runtime_image.contract.model import ModelSpec
from runtime_image.link.frames import pack
from tests.support.replicas import binding
from tests.support.scenes import JSON_RULES, Scenes, a_record

pytestmark = pytest.mark.slow


async def test_a_replica_comes_to_life(scenes: Scenes) -> None:
    """A started replica greets with the phases it went through, loads what it is bound to and
    says how many requests it takes."""
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
async def test_a_standby_comes_to_life(scenes: Scenes, role: str) -> None:
    """A replica without a model greets, and once it is given one it says the same as any other,
    without the phases that nobody waited for."""
    stage = await scenes.stage()
    greeted = await stage.standby("aaaa0001")

    stage.assign("aaaa0001", binding(ModelSpec("digits@1", model="add_one.onnx")), role=role)
    loaded = await stage.next(events.Loaded)

    assert greeted == events.Greeted("aaaa0001", {})
    assert {"place", "bind", "load"} == set(loaded.phases)
    assert loaded.phases["place"] >= 1.5
    assert (loaded.limit, bool(loaded.report)) == ((2, False) if role == "serve" else (0, True))


async def test_a_standby_obeys_term(scenes: Scenes) -> None:
    """Without a model there is nothing to finish; one that has only just greeted may not have
    come to heed TERM itself."""
    stage = await scenes.stage()
    await stage.standby("aaaa0001")

    await stage.driver.terminate("aaaa0001")

    assert await stage.exit("aaaa0001") in ("exited with code 0", "was killed by SIGTERM")


async def test_limits_of_nobody_are_an_error(scenes: Scenes) -> None:
    """What does not run cannot be limited, and whoever asked is told."""
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
    """A gateway's link says what is served, and a request gets its answer."""
    stage = await scenes.ready("aaaa0001")
    link = await stage.link("aaaa0001")

    answer = await link.call(7)

    assert link.hello == {"revision": "digits@1", "limit": 2}
    assert Kind.RESPONSE is answer.kind
    assert b'"revision":' in answer.body
    assert (await stage.next(events.FirstRun)).ms >= 0
    await link.close()


async def test_an_idle_replica_drains(scenes: Scenes) -> None:
    """Asked to go while it has nothing to do, a replica says goodbye and exits by itself."""
    stage = await scenes.ready("aaaa0001")
    link = await stage.link("aaaa0001")

    control = stage.launcher.control("aaaa0001")
    assert control is not None
    control.drain(None)

    await link.next(Kind.GOAWAY)
    assert await stage.exit("aaaa0001") == "exited with code 0"
    assert stage.exits == [("aaaa0001", "exited with code 0")]
    await link.close()


async def test_a_busy_replica_is_not_idle(scenes: Scenes) -> None:
    """Asked to go if it has been idle, a replica with a running request refuses."""
    stage = await scenes.ready("aaaa0001", Script(hang_at="run"), model="slow.onnx")
    link = await stage.link("aaaa0001")
    link.request(1)
    await link.next(Kind.STARTED)

    control = stage.launcher.control("aaaa0001")
    assert control is not None
    control.drain(0.001)

    assert (await stage.next(events.NotIdle)).idle_s == 0
    await link.close()


async def test_termination_hands_back_what_waits(scenes: Scenes) -> None:
    """TERM ends a replica with nothing to do; a busy one first gives back what has not begun."""
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
    """TERM makes a replica with nothing to do exit in good order."""
    stage = await scenes.ready("aaaa0001")

    await stage.driver.terminate("aaaa0001")

    assert await stage.exit("aaaa0001") == "exited with code 0"


async def test_a_crash_is_reported_once(scenes: Scenes) -> None:
    """A replica that dies under a request is reported once, and is on the list no more."""
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
    """Releasing a busy replica ends it, its links and its folders; doing it again is harmless."""
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


async def test_the_list_names_who_lives(scenes: Scenes) -> None:
    """The list holds every replica that runs and no other."""
    stage = await scenes.ready("aaaa0001")
    await stage.ready("aaaa0002")

    both = await stage.driver.list()
    await stage.release("aaaa0001")

    assert both == {"aaaa0001", "aaaa0002"}
    assert await stage.driver.list() == {"aaaa0002"}


async def test_a_start_that_cannot_be_made_is_an_error(scenes: Scenes, tmp_path: Path) -> None:
    """Where a file or folder is missing the start fails with the reason, and nothing runs."""
    driver = (await scenes.stage()).driver

    with pytest.raises(DriverError, match=r"No such file|source path does not exist"):
        await driver.start(a_record(), tmp_path, tmp_path / "missing" / "log")

    assert await driver.list() == set()
