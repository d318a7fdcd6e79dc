"""Tests of deploys of images, with an engine in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from admin.deploy.images import _Shown
from admin.deploy.operations import AT_ONCE
from pool_manager.images import PullProgress
from tests.support.caller import Answer
from tests.support.fake_driver.driver import FakeDriver
from tests.support.images import FakeImages, image
from tests.support.server import ServingServer, serving

APP = "registry.example/app:1"
MIB = 2**20


class Rig:
    """A server whose driver has images."""

    def __init__(self, server: ServingServer, images: FakeImages) -> None:
        self.server = server
        self.images = images

    async def start(self, lines: str = "", **request: Any) -> Answer:
        """Send a deploy of APP as `web`."""
        manifest = f'schema = 1\n[server]\nimage = "{APP}"\n{lines}'
        body = {"files": [], "manifest": manifest, "trust": False, **request}
        return await self.server.admin("POST", "/functions/web/revisions", body)

    async def deploy(self, lines: str = "", **request: Any) -> dict[str, Any]:
        """Deploy APP as `web`; return the ended operation."""
        answer = await self.start(lines, **request)
        assert answer.status == 202, answer
        ended: dict[str, Any] = (await self.server.ended(answer.json())).json()
        return ended

    def settings(self, number: int = 1) -> Any:
        return self.server.server.store.catalog.resolve(f"web@{number}").revision.server


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    driver, images = FakeDriver(), FakeImages()
    driver.images = images
    async with serving(tmp_path, driver, standbys=0) as server:
        yield Rig(server, images)


async def test_an_image_that_is_there_is_pinned_without_a_pull(rig: Rig) -> None:
    """The revision keeps id, digest and the exposed port; the result has them."""
    rig.images.there[APP] = image(1, 8080)

    done = await rig.deploy()

    assert done["state"] == "done", done
    found = rig.settings()
    assert (found.image.reference, found.image.id) == (APP, image(1).id)
    assert (found.image.digest, found.port) == (image(1).digest, 8080)
    assert (rig.images.pulls, rig.images.pins) == ([], {image(1).id})
    assert done["result"]["server"]["image"]["digest"] == image(1).digest


async def test_the_same_image_aside_is_told_as_itself(rig: Rig) -> None:
    """A deploy without traffic that equals a revision is done, and says what its server is."""
    rig.images.there[APP] = image(1)
    await rig.deploy()

    again = await rig.deploy(traffic=False)

    assert again["state"] == "done", again["error"]
    assert (again["result"]["created"], again["result"]["revision"]) == (False, "web@1")
    assert again["result"]["server"]["image"]["id"] == image(1).id


async def test_a_missing_image_is_pulled_with_progress(rig: Rig) -> None:
    """The operation's phase shows the share; the pulled image may be pruned later."""
    rig.images.remote[APP] = image(1)
    phases: list[str] = []
    rig.server.server.deploys.runner.subscribe(lambda one: phases.append(one.phase))

    assert (await rig.deploy())["state"] == "done"

    assert rig.images.pulls == [APP]
    shown = [phase for phase in phases if phase.startswith("pull")]
    assert shown[:2] == ["pull", "pull 0 % of 10.0 MiB"]
    assert shown[-1] == "pull 100 % of 10.0 MiB"
    assert phases.index("image") < phases.index(shown[0]) < phases.index("verify")
    assert rig.images.pulled == {image(1).id}


async def test_a_moved_tag_counts_with_pull_only(rig: Rig) -> None:
    """The same reference with another image is a new revision; without --pull the engine's image
    is used, which changes nothing."""
    rig.images.there[APP] = image(1)
    await rig.deploy()
    rig.images.remote[APP] = image(2)

    kept = await rig.deploy()
    moved = await rig.deploy(pull=True)

    assert kept["result"]["created"] is False
    assert moved["result"]["revision"] == "web@2"
    assert rig.settings(2).image.id == image(2).id
    assert rig.images.pins == {image(1).id, image(2).id}


@pytest.mark.parametrize(
    ("ports", "listed"),
    [
        ((), "none"),
        ((80, 443), "80, 443"),
        (tuple(range(1, 101)), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 90 more"),
    ],
)
async def test_a_port_must_be_named_unless_one_is_exposed(
    rig: Rig, ports: tuple[int, ...], listed: str
) -> None:
    """No port, or several: the refusal lists them, and leaves no pin."""
    rig.images.there[APP] = image(1, ports=ports)

    failed = await rig.deploy()

    assert failed["error"]["detail"] == (
        f"server.port: expected a port, as {APP} exposes {listed}; name one: --port N"
    )
    await rig.server.until(lambda: _has_no_pins(rig))
    assert (await rig.deploy("port = 443\n"))["state"] == "done"
    assert rig.settings().port == 443


async def test_hidden_volumes_are_said(rig: Rig) -> None:
    """Volumes that no mount covers are empty folders in memory."""
    rig.images.there[APP] = image(1, volumes=("/data", "/models"))

    done = await rig.deploy()

    assert done["result"]["server"]["hidden"] == ["/data", "/models"]


async def test_a_failed_pull_refuses_the_deploy(rig: Rig) -> None:
    """The reason is the engine's; nothing was changed."""
    rig.images.refusal = "the engine says: no space left on device"

    failed = await rig.deploy()

    assert (failed["state"], failed["error"]["code"]) == ("failed", "refused")
    assert failed["error"]["detail"].startswith(f"server.image: cannot pull {APP}: the engine says")
    assert (await rig.server.admin("GET", "/functions")).json()["items"] == []


async def test_a_cancelled_deploy_cancels_its_pull(rig: Rig) -> None:
    """The pull ends with the operation, and no pin is left."""
    rig.images.remote[APP] = image(1)
    rig.images.gate.clear()
    answer = await rig.start()
    id = answer.json()["id"]
    await rig.server.until(lambda: _is_pulling(rig, id))

    ended = (await rig.server.admin("DELETE", f"/operations/{id}")).json()

    assert ended["state"] == "cancelled"
    assert rig.images.cancelled == 1
    await rig.server.until(lambda: _has_no_pins(rig))


async def test_an_image_that_becomes_needed_keeps_its_pin(rig: Rig) -> None:
    """Tags that nothing needs are removed while a deploy finds its image: the new pin is not among
    those that are removed."""
    rig.images.there[APP] = image(1)
    rig.images.tags.clear()
    sweep = asyncio.ensure_future(rig.server.server.deploys.sweep())
    await rig.server.until(lambda: _is_tagging(rig))
    answer = await rig.start()
    await rig.server.until(lambda: _is_finding(rig, answer.json()["id"]))

    rig.images.tags.set()
    await sweep
    ended = (await rig.server.ended(answer.json())).json()

    assert ended["state"] == "done", ended
    assert rig.images.pins == {image(1).id}


async def test_a_deploy_that_is_cancelled_at_its_pin_leaves_none(rig: Rig) -> None:
    """The engine may be slow to write the tag: the pin goes after it has come, and the image can
    be pruned."""
    rig.images.remote[APP] = image(1)
    rig.images.tags.clear()
    answer = await rig.start()
    id = answer.json()["id"]
    await rig.server.until(lambda: _is_tagging(rig))

    cancelled = asyncio.ensure_future(rig.server.admin("DELETE", f"/operations/{id}"))
    await rig.server.until(lambda: _is_asked_to_end(rig, id))
    rig.images.tags.set()

    assert (await cancelled).json()["state"] == "cancelled"
    assert rig.images.pins == set()
    removed = (await rig.server.admin("POST", "/images/prune")).json()["removed"]
    assert [one["id"] for one in removed] == [image(1).id]


async def test_an_image_that_was_there_is_not_pruned(rig: Rig) -> None:
    """A pull that brings nothing new makes the operator's image no image of ours."""
    rig.images.there[APP] = rig.images.remote[APP] = image(1)

    assert (await rig.deploy(pull=True))["state"] == "done"

    assert (rig.images.pulls, rig.images.pulled) == ([APP], set())


async def test_a_removed_function_ends_the_pull_of_its_image(rig: Rig) -> None:
    """`warm` pulls a lost image; with the function the pull goes, and the caller is told."""
    rig.images.there[APP] = rig.images.remote[APP] = image(1)
    await rig.deploy()
    await rig.server.until_pools(lambda: not rig.server.bound())
    rig.images.there.clear()
    rig.images.gate.clear()
    warm = asyncio.ensure_future(rig.server.admin("POST", "/functions/web/warm?wait=30"))
    await rig.server.until(lambda: _has_pulled(rig))

    assert (await rig.server.admin("DELETE", "/functions/web")).status == 200

    answer = await warm
    assert "was cancelled" in answer.problem["detail"]
    assert (rig.images.cancelled, rig.images.pins) == (1, set())


async def test_pulls_hold_up_no_other_operation(rig: Rig) -> None:
    """However many deploys wait for their images, a rollback is not queued behind them."""
    rig.images.there[APP] = image(1)
    await rig.deploy()
    rig.images.there |= {"the first": image(1), APP: image(2)}
    await rig.deploy()
    rig.images.gate.clear()
    rig.images.remote["registry.example/slow:1"] = image(3)
    slow = 'schema = 1\n[server]\nimage = "registry.example/slow:1"\n'
    for number in range(AT_ONCE + 1):
        body = {"files": [], "manifest": slow}
        path = f"/functions/slow{number}/revisions"
        assert (await rig.server.admin("POST", path, body)).status == 202

    back = await rig.server.admin("POST", "/functions/web/rollback", {})
    ended = (await rig.server.ended(back.json())).json()

    assert ended["result"]["revision"] == "web@1"
    rig.images.gate.set()
    for one in rig.server.server.deploys.runner.running():
        await rig.server.ended({"id": one.id})
    states = [one.state for one in await rig.server.server.deploys.runner.newest()]
    assert states == ["done"] * (AT_ONCE + 4)


async def _is_tagging(rig: Rig) -> bool:
    return rig.images.tagging > 0


async def _is_finding(rig: Rig, id: str) -> bool:
    return rig.server.server.deploys.runner.running()[0].phase == "image"


async def _is_asked_to_end(rig: Rig, id: str) -> bool:
    return id in rig.server.server.deploys.runner._cancelled


async def _has_pulled(rig: Rig) -> bool:
    return bool(rig.images.pulls)


async def _has_no_pins(rig: Rig) -> bool:
    return not rig.images.pins


async def _is_pulling(rig: Rig, id: str) -> bool:
    phase = (await rig.server.admin("GET", f"/operations/{id}")).json()["phase"]
    return str(phase).startswith("pull")


async def test_a_pin_goes_with_its_last_revision(rig: Rig) -> None:
    """A removed function leaves its image to `prune`, which reports it."""
    rig.images.remote[APP] = image(1)
    await rig.deploy()
    assert (await rig.server.admin("POST", "/images/prune")).json() == {"removed": []}

    await rig.server.admin("DELETE", "/functions/web")
    assert rig.images.pins == set()
    removed = (await rig.server.admin("POST", "/images/prune")).json()["removed"]
    assert removed == [{"id": image(1).id, "names": [APP], "size_bytes": 10 * MIB}]


async def test_a_lost_image_fails_calls_and_warm_pulls_it(rig: Rig) -> None:
    """A call never pulls: the function is failing and says the commands. `warm` pulls by digest."""
    rig.images.there[APP] = image(1)
    rig.images.remote[APP] = image(1)
    await rig.deploy()
    await rig.server.until_pools(lambda: not rig.server.bound())
    rig.images.there.clear()

    called = await rig.server.get("/fn/web/")
    assert called.status == 503
    assert f"pull it: docker pull {image(1).digest}, or fnctl warm web" in called.problem["detail"]
    assert rig.images.pulls == []

    warm = await rig.server.admin("POST", "/functions/web/warm?wait=30")
    assert (warm.status, rig.images.pulls) == (200, [image(1).digest])


async def test_a_slow_pull_outlives_the_request_to_warm(rig: Rig) -> None:
    """The answer says that the pull goes on; the next request finds it done."""
    rig.images.there[APP] = image(1)
    rig.images.remote[APP] = image(1)
    await rig.deploy()
    await rig.server.until_pools(lambda: not rig.server.bound())
    rig.images.there.clear()
    rig.images.gate.clear()

    slow = await rig.server.admin("POST", "/functions/web/warm?wait=1")
    assert (slow.status, slow.problem["code"]) == (503, "no_room")
    assert "takes more than 1 s, and goes on" in slow.problem["detail"]
    rig.images.gate.set()
    assert (await rig.server.admin("POST", "/functions/web/warm?wait=30")).status == 200
    assert rig.images.pulls == [image(1).digest]


async def test_a_rollback_pulls_a_lost_image(rig: Rig) -> None:
    """A rollback is the operator's, as `warm` is: the earlier image is pulled by its digest."""
    rig.images.there[APP] = image(1)
    await rig.deploy()
    rig.images.there[APP] = image(2)
    await rig.deploy()
    rig.images.remote[APP] = image(1)

    back = await rig.server.admin("POST", "/functions/web/rollback", {})
    ended = (await rig.server.ended(back.json())).json()

    assert ended["result"]["revision"] == "web@1"
    assert rig.images.pulls == [image(1).digest]


async def test_an_image_that_was_built_here_cannot_be_pulled_again(rig: Rig) -> None:
    """Without a digest, `warm` says to build and deploy it anew."""
    rig.images.there[APP] = image(1, digest="")
    await rig.deploy()
    await rig.server.until_pools(lambda: not rig.server.bound())
    rig.images.there.clear()

    warm = await rig.server.admin("POST", "/functions/web/warm?wait=30")

    assert warm.status == 503
    assert "was built on this machine and is gone; build it again" in warm.problem["detail"]


async def test_a_refused_pull_of_warm_is_said_to_everybody(rig: Rig) -> None:
    """Requests that wait for one pull get its error; the next request pulls again."""
    rig.images.there[APP] = image(1)
    await rig.deploy()
    await rig.server.until_pools(lambda: not rig.server.bound())
    rig.images.there.clear()
    rig.images.refusal = "no basic auth credentials"

    async with asyncio.TaskGroup() as group:
        both = [
            group.create_task(rig.server.admin("POST", "/functions/web/warm?wait=30"))
            for _ in range(2)
        ]

    assert all("no basic auth" in task.result().problem["detail"] for task in both)


def test_phases_of_a_pull_never_go_back() -> None:
    """The total grows while the engine learns of layers; a share that would fall is not shown."""
    shown = _Shown()
    told = [
        shown.next(PullProgress(is_waiting=True)),
        shown.next(PullProgress()),
        shown.next(PullProgress(50 * MIB, 100 * MIB)),
        shown.next(PullProgress(52 * MIB, 100 * MIB)),
        shown.next(PullProgress(60 * MIB, 1000 * MIB)),
        shown.next(PullProgress(600 * MIB, 1000 * MIB)),
    ]

    assert told == [
        "pull waits for another one",
        "pull",
        "pull 50 % of 100.0 MiB",
        "",
        "",
        "pull 60 % of 1000.0 MiB",
    ]


async def test_drivers_without_images_refuse_them(tmp_path: Path) -> None:
    """The refusal names the driver that runs images; there is nothing to prune."""
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        refused = await Rig(server, FakeImages()).start()
        assert refused.problem["detail"].startswith("server.image: expected the driver docker")
        pruned = await server.admin("POST", "/images/prune")
        assert pruned.problem["code"] == "refused"
