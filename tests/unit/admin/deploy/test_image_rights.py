"""Tests of what a deploy may run as an image, by the scopes of its caller, through the admin API
and over restarts, with an engine in memory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from admin.built_images import FILE, read_built, record_built
from admin.deploy.image_rules import UNKNOWN_USER, ImageRules, ReservedIds
from registry.errors import WrongScope
from registry.model.servers import ServerImage
from tests.support.caller import Answer
from tests.support.fake_driver.driver import FakeDriver
from tests.support.images import FakeImages, image
from tests.support.operator import Operator, operating
from tests.support.server import ServingServer, serving

APP = "registry.example/team/app:1"
LISTED = "registry.example/team/*"
OWN = f'user = "{os.getuid()}"\n'


class Rig:
    """A server whose driver has images, and a key of the scope deploy."""

    def __init__(self, server: ServingServer, images: FakeImages, secret: str) -> None:
        self.server = server
        self.images = images
        self.keys = {"admin": server.token, "deploy": secret}

    async def start(self, scope: str, lines: str = "", reference: str = APP, **more: Any) -> Answer:
        """Send a deploy of an image as `web`."""
        manifest = f'schema = 1\n[server]\nimage = "{reference}"\n{lines}'
        bearer = {"Authorization": f"Bearer {self.keys[scope]}"}
        path = "/admin/v1/functions/web/revisions"
        body = {"files": [], "manifest": manifest, **more}
        return await self.server.request("POST", path, body, bearer)

    async def deploy(self, scope: str, lines: str = "", **more: Any) -> dict[str, Any]:
        """Deploy an image as `web`; return the ended operation."""
        answer = await self.start(scope, lines, **more)
        assert answer.status == 202, answer
        ended: dict[str, Any] = (await self.server.ended(answer.json())).json()
        return ended

    async def is_unpinned(self) -> bool:
        """Whether no image is pinned."""
        return not self.images.pins

    async def reserved_user(self) -> str:
        """Return what the list of functions says about the user of `web`."""
        [item] = (await self.server.admin("GET", "/functions")).json()["items"]
        return str(item["reserved_user"])


@asynccontextmanager
async def rigged(folder: Path, **settings: Any) -> AsyncIterator[Rig]:
    """Run a server with the images of an engine in memory."""
    driver, images = FakeDriver(), FakeImages()
    driver.images, driver.is_contained = images, True
    async with serving(folder, driver, standbys=0, **settings) as server:
        made = await server.admin("POST", "/keys", {"scopes": ["deploy"]})
        yield Rig(server, images, made.json()["secret"])


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path, images=LISTED) as rig:
        yield rig


@pytest.mark.parametrize(
    ("user", "lines", "got"),
    [
        ("", "", "root (user id 0), as the image names no user"),
        ("0:0", "", "root (user id 0)"),
        ("app", "", "the user 'app', which may be any user id"),
        ("10001", 'user = "0:10001"\n', "root (user id 0)"),
        ("10001", OWN, ""),
        (str(1879048192 + 65535), "", "FN_REPLICA_UIDS"),
    ],
)
async def test_a_reserved_user_id_needs_admin(rig: Rig, user: str, lines: str, got: str) -> None:
    """The scope deploy is refused after the image was found, with nothing left pinned; the scope
    admin deploys it, and the list of functions tells."""
    rig.images.there[APP] = image(1, user=user)

    refused = await rig.deploy("deploy", lines)

    assert (refused["state"], refused["error"]["code"]) == ("failed", "wrong_scope")
    assert got in refused["error"]["detail"]
    assert 'set user = "' in refused["error"]["detail"]
    await rig.server.until(rig.is_unpinned)
    assert (await rig.deploy("admin", lines))["state"] == "done"
    assert got in await rig.reserved_user()
    assert await rig.reserved_user() != ""


async def test_another_user_id_needs_deploy(rig: Rig) -> None:
    """An id of the image or of the manifest that is not reserved is all that the scope needs. What
    the image names is stored, and nothing is told."""
    rig.images.remote[APP] = image(1, user="10001")
    assert (await rig.deploy("deploy"))["state"] == "done"
    server = rig.server.server.store.catalog.resolve("web").revision.server
    assert server is not None
    assert server.image is not None
    assert (server.image.reference, server.image.user) == (APP, "10001")

    rig.images.there[APP] = image(2, user="root")
    done = await rig.deploy("deploy", 'user = "10002:5"\n')

    assert (done["state"], done["result"]["revision"]) == ("done", "web@2")
    assert await rig.reserved_user() == ""


async def test_the_image_that_is_pinned_is_the_one_that_is_judged(rig: Rig) -> None:
    """A tag that moves during the pull is refused by what it then is; one that moves after the
    deploy changes nothing."""
    rig.images.there[APP] = image(1, user="10001")
    rig.images.remote[APP] = image(2, user="")

    refused = await rig.deploy("deploy", pull=True)
    rig.images.there[APP] = image(1, user="10001")
    done = await rig.deploy("deploy")
    rig.images.there[APP] = image(2, user="")

    assert refused["error"]["code"] == "wrong_scope"
    assert done["state"] == "done"
    server = rig.server.server.store.catalog.resolve("web").revision.server
    assert server is not None
    assert server.image == ServerImage(APP, image(1).id, image(1).digest)


@pytest.mark.parametrize(
    "reference",
    ["postgres:17", "registry.example/team", "registry.example/other/app:1", "0123456789ab"],
)
@pytest.mark.parametrize("is_there", [False, True])
async def test_an_image_that_is_not_listed_is_not_looked_for(
    rig: Rig, reference: str, *, is_there: bool
) -> None:
    """The request is refused in the same words whether or not the engine has the image, which is
    not asked; with the scope admin it is deployed."""
    if is_there:
        rig.images.there[reference] = image(1, user="10001")
    before = list(rig.images.asked)

    answer = await rig.start("deploy", reference=reference)

    assert (answer.status, answer.problem["code"]) == (403, "wrong_scope")
    assert f"expected one of {LISTED} (FN_IMAGES), got " in answer.problem["detail"]
    assert "needs the scope admin, the key has deploy" in answer.problem["detail"]
    assert (rig.images.asked, rig.images.pulls) == (before, [])
    assert (await rig.server.admin("GET", "/operations")).json()["items"] == []
    if is_there:
        assert (await rig.deploy("admin", reference=reference))["state"] == "done"


async def test_without_a_list_only_images_that_were_built_here(tmp_path: Path) -> None:
    """Images of `fnctl image build` by their id, and those that the settings name for replicas, as
    the engine has them; neither is ever pulled. Labels and names of others do not count."""
    data, rt = tmp_path / "data", "acme/rt:1"
    async with rigged(tmp_path, image_cpu="acme/cpu:1") as rig:
        there = rig.images.there
        there["docker.io/acme/rt:1"] = there["acme/evil:1"] = image(1, user="10001")
        there["docker.io/acme/cpu:1"] = image(2, user="10001")
        early = await rig.start("deploy", reference=rt)
        record_built(data, rt, image(1).id)
        record_built(data, "acme/gone:1", image(3).id)
        rig.images.remote["docker.io/acme/gone:1"] = image(3, user="10001")

        built = await rig.deploy("deploy", reference=rt, pull=True)
        of_replicas = await rig.deploy("deploy", reference="acme/cpu:1", pull=True)
        gone = await rig.deploy("deploy", reference="acme/gone:1", pull=True)
        evil = await rig.start("deploy", reference="acme/evil:1")
        there["docker.io/acme/rt:1"] = image(4, user="10001")
        moved = await rig.deploy("deploy", reference=rt)

    assert early.status == evil.status == 403
    assert (
        "expected an image of fnctl image build, got docker.io/acme/rt" in early.problem["detail"]
    )
    assert (built["state"], of_replicas["state"]) == ("done", "done")
    assert rig.images.pulls == []
    assert "the engine has no image" in gone["error"]["detail"]
    assert moved["error"]["code"] == "wrong_scope"
    assert "got another image of that name" in moved["error"]["detail"]


def rules(*patterns: str) -> ImageRules:
    return ImageRules(ReservedIds(frozenset({1000})), patterns)


MANIFEST = f'schema = 1\n[server]\nimage = "{APP}"\n'


async def interrupted(folder: Path, images: FakeImages, scopes: tuple[str, ...]) -> str:
    """Begin a deploy of APP whose pull the server's end interrupts; return the operation's id."""
    images.remote[APP] = image(1, user="app")
    images.gate.clear()
    async with opened(folder, images) as operator:
        operation = await operator.start("web", scopes, files={}, manifest=MANIFEST)
        await operator.reached(operation.id, "pull 0 % of 10.0 MiB")
    images.gate.set()
    return operation.id


@asynccontextmanager
async def opened(folder: Path, images: FakeImages, *patterns: str) -> AsyncIterator[Operator]:
    driver = FakeDriver()
    driver.images, driver.is_contained = images, True
    async with operating(folder, driver, rules=rules(*(patterns or (LISTED,)))) as operator:
        yield operator


@pytest.mark.parametrize(
    ("scopes", "pattern", "said"),
    [
        (("admin",), LISTED, ""),
        (("admin",), "other/*", ""),
        (("deploy",), LISTED, "got the user 'app'"),
        (("read", "deploy"), "other/*", "expected one of other/* (FN_IMAGES)"),
    ],
)
async def test_a_resumed_deploy_has_the_rights_of_its_request(
    tmp_path: Path, scopes: tuple[str, ...], pattern: str, said: str
) -> None:
    """There is no request any more: what the key allowed is stored with the operation, and the
    settings are those of the server that resumes it."""
    images = FakeImages()
    id = await interrupted(tmp_path, images, scopes)

    async with opened(tmp_path, images, pattern) as operator:
        ended = await operator.ended(id)

    assert ended.state == ("failed" if said else "done"), ended
    assert said in ended.error.get("detail", "")


async def test_an_operation_of_an_earlier_release_has_the_scope_deploy(tmp_path: Path) -> None:
    """A record without scopes is resumed as one of the least of those that may deploy."""
    images = FakeImages()
    id = await interrupted(tmp_path, images, ("admin",))
    await _without_scopes(tmp_path, id)

    async with opened(tmp_path, images) as operator:
        ended = await operator.ended(id)

    assert ended.error["code"] == "wrong_scope"


async def _without_scopes(folder: Path, id: str) -> None:
    with sqlite3.connect(folder / "data" / "fngate.db") as database:
        changed = database.execute(
            "UPDATE operations SET record = json_remove(record, '$.scopes') WHERE id = ?", (id,)
        )
        assert changed.rowcount == 1
    database.close()


async def test_deploys_of_every_way_are_checked(tmp_path: Path) -> None:
    """The scope is checked where deploys start and where they are resumed, not in the API alone."""
    text = f'{MANIFEST}capabilities = ["CHOWN"]\n'
    async with opened(tmp_path, FakeImages()) as operator:
        with pytest.raises(WrongScope, match=r"server\.capabilities"):
            await operator.start("web", ("deploy",), files={}, manifest=text)


async def test_stored_revisions_keep_what_they_have(tmp_path: Path) -> None:
    """A revision of an admin, of another list or of an earlier release starts, and a rollback to it
    needs no more than the scope of rollbacks. What an earlier release did not store is asked of the
    engine, and not known while that lacks the image."""
    images = FakeImages()
    images.there[APP] = image(1, user="")
    async with opened(tmp_path, images) as operator:
        assert (await operator.deploy("web", files={}, manifest=MANIFEST)).state == "done"
        stored = operator.store.catalog.resolve("web").revision
        assert stored.server is not None
        assert stored.server.image is not None
        old = replace(stored.server, image=replace(stored.server.image, user=None))
        revision = replace(stored, server=old)
        root = operator.deploys.pins.reserved_user(stored)
        learnt = operator.deploys.pins.reserved_user(revision)
    assert (root, learnt) == ("root (user id 0), as the image names no user", UNKNOWN_USER)


async def test_users_of_earlier_deploys_are_asked_of_the_engine(tmp_path: Path) -> None:
    """An earlier release stored no user of the image: the next start finds it, and the same deploy
    is no new revision."""
    images = FakeImages()
    images.there[APP] = image(1, user="0")
    async with opened(tmp_path, images) as operator:
        await operator.deploy("web", files={}, manifest=MANIFEST)
    with sqlite3.connect(tmp_path / "data" / "fngate.db") as database:
        changed = database.execute(
            "UPDATE revisions SET record = json_remove(record, '$.server.image.user')"
        )
        assert changed.rowcount == 1
    database.close()

    async with opened(tmp_path, images) as operator:
        revision = operator.store.catalog.resolve("web").revision
        assert revision.server is not None
        assert revision.server.image is not None
        assert revision.server.image.user is None
        told = operator.deploys.pins.reserved_user(revision)
        again = await operator.deploy("web", files={}, manifest=MANIFEST)

    assert told == "root (user id 0)"
    assert again.result["created"] is False


def test_the_record_of_builds_takes_nothing_else(tmp_path: Path) -> None:
    """Lines that are damaged are left out, the last one of a name counts, and a file that cannot be
    read has none."""
    data = tmp_path / "new" / "data"
    record_built(data, "rt:1", image(1).id)
    record_built(data, "rt:1", image(2).id)
    with (data / FILE).open("ab") as file:
        file.write(b"sha256:12 docker.io/library/x:1\n\xff\xfe\n" + b"y" * 100)

    assert read_built(data) == {"docker.io/library/rt:1": image(2).id}
    assert read_built(tmp_path / "none") == {}
