"""Tests of the user ids of images: what the engine reads, and a server beside a hostile one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import docker
import pytest

from admin.deploy.image_rules import ReservedIds
from tests.chaos.calls import client
from tests.chaos.containers.hostile import DIGITS, SEVEN, USER, Dose, fewer_watches, serving
from tests.support.caller import Answer, Caller
from tests.support.container_server import ContainerServer
from tests.support.engine import base_image, connected, make_image, remove_container
from tests.support.hostile_images import IDS, make_hostile_image
from tests.support.web_servers import web_image_tag

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(180)]

WATCHES_MAX = 200_000
"""Limit on epoll watches, hundreds of times what everything else on a machine has."""
TRICK = """
FROM {base}
RUN echo '10001:x:0:0::/:/bin/sh' >> /etc/passwd && echo 'app:x:0:0::/:/bin/sh' >> /etc/passwd
"""
OWN = 4321
SPELLINGS = (
    *("", "0", "00", "+0", "-0", " 0", "0x0", "0:10001", ":10001", "root", "root:10001", "app"),
    *(str(OWN), f"0{OWN}", f"+{OWN}", f"{OWN}:0", f"{OWN}:", "4294967296", str(2**32 + OWN), "-1"),
    *("10001", "10001:", "10001:root", "10001:0:0", "2147483647", "1_0", "\uff10"),
)
LISTED = "library/*"
"""Images of this machine, which were built without a registry."""
PICTURE = {"Content-Type": "image/png"}
IDENTITY = "import os; print(os.getuid())"


def test_the_engine_gives_no_reserved_id_to_a_user_that_is_let_through(engine: str) -> None:
    """Whatever USER an image names, also one whose passwd(5) has an entry for a number: the engine
    refuses it, or the decision does, or the user id is another one."""
    image = make_image(engine, "fngate-images-passwd", TRICK.format(base=base_image()), {})
    ids = ReservedIds(frozenset({OWN}))
    with connected(engine) as opened:
        found = {user: uid_of(opened.api, image, user) for user in SPELLINGS}

    passed = {user: uid for user, uid in found.items() if not ids.problem(user)}
    assert not {0, OWN} & {*passed.values()}, passed
    assert passed == dict.fromkeys(("10001", "10001:", "10001:root", "10001:0:0"), 10001) | {
        "2147483647": 2147483647
    }
    taken = [user for user, uid in found.items() if uid in (0, OWN)]
    assert {"", "0", "00", "+0", "app", f"0{OWN}", f"+{OWN}"} <= {*taken}


def uid_of(engine: docker.APIClient, image: str, user: str) -> int | None:
    """Return the user id of a container, None if the engine does not start it."""
    config = {
        "Image": image,
        "User": user,
        "Cmd": ["python3", "-c", IDENTITY],
        "HostConfig": {"NetworkMode": "none", "CapDrop": ["ALL"]},
    }
    made: str = engine.create_container_from_config(config)["Id"]
    try:
        engine.start(made)
        engine.wait(made)
        return int(engine.logs(made))
    except docker.errors.APIError:
        return None
    finally:
        remove_container(engine, made)


@dataclass(frozen=True, slots=True)
class Scene:
    """A server with a model and an image, which are called while another image attacks."""

    caller: Caller
    http: aiohttp.ClientSession
    hostile: str

    async def deploy(self, scope: str, user: str = "") -> dict[str, Any]:
        """Deploy the hostile image with a key of this scope; return the ended operation."""
        answer = await self.start(scope, self.hostile, user)
        assert answer.status == 202, answer
        ended: dict[str, Any] = (await self.caller.ended(answer.json())).json()
        return ended

    async def start(self, scope: str, image: str, user: str = "") -> Answer:
        """Begin a deploy of an image with a new key of this scope."""
        made = await self.caller.admin("POST", "/keys", {"scopes": [scope]})
        bearer = {"Authorization": f"Bearer {made.json()['secret']}"}
        lines = f'user = "{user}"\n' if user else ""
        manifest = (
            f'schema = 1\n[server]\nimage = "{image}"\nport = 8000\nready = "/"\n{lines}'
            "stop_grace_s = 0.2\n[device]\nmemory_mib = 512\n[limits]\nmax_s = 120.0\n"
        )
        path = "/admin/v1/functions/hostile/revisions"
        body = {"files": [], "manifest": manifest}
        return await self.caller.request("POST", path, body, bearer)

    async def watch(self) -> int:
        """Take all epoll watches of the hostile image's user; return how many."""
        order = json.dumps({"kinds": ["epoll watches"], "processes": 4}).encode()
        async with self.http.post("/fn/hostile/attack/hoard", data=order) as answer:
            assert answer.status == 200, await answer.text()
            said = json.loads(await answer.read())
        assert said["uid"] == IDS[0], said
        return int(said["taken"]["epoll watches"][0])

    async def check(self, *, cold: bool) -> None:
        """The model, its cold start, the other image and the server's health must be right."""
        if cold:
            await self.caller.admin("POST", "/functions/digits/sleep")
        async with self.http.post("/fn/digits", data=SEVEN, headers=PICTURE) as answer:
            assert answer.status == 200, await answer.text()
        for path in ("/fn/web/", "/healthz"):
            async with self.http.get(path) as answer:
                assert answer.status == 200, await answer.text()

    async def go_on(self, ended: asyncio.Event) -> int:
        """Check until `ended`; return how often."""
        count = 0
        while not ended.is_set():
            await self.check(cold=count % 4 == 0)
            count += 1
        return count


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's user can read; pytest's own is private to this user."""
    with TemporaryDirectory(prefix="fn-images-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@asynccontextmanager
async def scene(server: ContainerServer, hostile: str, web: str) -> AsyncIterator[Scene]:
    limit = aiohttp.ClientTimeout(total=120)
    async with (
        client(server, 120) as caller,
        aiohttp.ClientSession(server.url, timeout=limit, headers=server.headers) as http,
    ):
        made = Scene(caller, http, hostile)
        text = f'schema = 1\n[server]\nimage = "{web}"\nport = 8000\nready = "/"\n'
        await made.caller.deploy({"note.txt": b""}, name="web", manifest=text, min=1)
        await made.caller.deploy(DIGITS, name="digits")
        yield made


@pytest.mark.parametrize("is_root", [True, False], ids=["root", "another user"])
async def test_no_image_of_the_scope_deploy_counts_against_the_server(
    folder: Path, engine: str, runtime_image: str, *, is_root: bool
) -> None:
    """It is refused by an id, in a repository that is not listed, and with each user id that would:
    root's, the server's own, a replica's, a name. With an id of its own it exhausts the epoll
    watches of that id, and everything else goes on: warm calls, cold starts, the other image and
    the server."""
    hostile = make_hostile_image(engine, runtime_image)
    web = web_image_tag(engine, runtime_image)
    own = 0 if is_root else USER
    dose = Dose(7, hostile=2, hoarders=0, is_root=is_root)
    with (
        fewer_watches(WATCHES_MAX),
        serving(folder / "data", dose, engine, runtime_image, FN_IMAGES=LISTED) as server,
    ):
        async with scene(server, hostile, web) as made:
            with connected(engine) as opened:
                id = opened.api.inspect_image(hostile)["Id"]
            for image in (id, id[7:19], "registry.example/app", f"acme/{hostile}"):
                answer = await made.start("deploy", image, "{}:{}".format(*IDS))
                assert (answer.status, answer.problem["code"]) == (403, "wrong_scope")
            for user in ("", "0:0", f"{own}:{own}", "1879048200:1"):
                refused = await made.deploy("deploy", user)
                assert refused["error"]["code"] == "wrong_scope", refused
            done = await made.deploy("deploy", "{}:{}".format(*IDS))
            assert done["state"] == "done", done

            ended = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                calls = group.create_task(made.go_on(ended))
                try:
                    taken = await made.watch()
                    await made.check(cold=True)
                finally:
                    ended.set()

        assert taken > 0.9 * WATCHES_MAX
        assert calls.result() > 0
        assert server.process is not None
        assert server.process.poll() is None
