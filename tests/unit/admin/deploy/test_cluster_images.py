"""Deploys of images for hosts of a cluster, which pull them: this server has no engine for them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from admin.deploy.image_rules import ImageRules
from admin.deploy.images import ImagePins
from admin.deploy.plan import Plan, are_images_given, check_code
from admin.deploy.verify import _with_report
from pool_manager.core.hosts import HostState
from pool_manager.host import HostView
from pool_manager.image_names import IMAGE_DIGEST, pinned_by
from registry.errors import Refused, WrongScope
from registry.model.hosts import Ability
from registry.model.revisions import DeviceNeed
from registry.model.servers import Mount, ServerImage, ServerSettings
from tests.support.fake_driver.driver import FakeDriver
from tests.support.fake_driver.opening import hosts_with
from tests.support.nouns import EMPTY, function, server_revision
from tests.support.server import ServingServer, serving

APP = "registry.example/team/app:1"
DIGEST = f"sha256:{'a' * 64}"
NODE = HostView(
    "prod/node-1",
    driver="kubernetes",
    labels={"zone": "a"},
    abilities=frozenset({Ability.IMAGE}),
    is_contained=True,
    pulls_images=True,
)
IMAGES = ServerSettings((), image=ServerImage(APP), port=8000)


def planned(server: ServerSettings, **labels: str) -> Any:
    """A draft of a server on hosts with these labels."""
    settings = {field.name: getattr(server, field.name) for field in fields(server)}
    revision = server_revision(device=DeviceNeed(host=labels), **settings)
    return Plan(function(), revision, EMPTY)


@pytest.mark.parametrize("driver", ["process", "docker"])
def test_the_hosts_that_a_function_may_use_are_asked(driver: str) -> None:
    """An image is accepted for a cluster although this server may have no Docker, also with the
    scope deploy; what no host of its labels runs is refused."""
    hosts = [*hosts_with(driver), NODE]
    check_code(planned(IMAGES, zone="a"), hosts, ("deploy",))
    check_code(planned(IMAGES), hosts, ("deploy",))

    command = ServerSettings(("serve",))
    with pytest.raises(Refused, match=r"got the hosts prod/node-1: a command runs beside"):
        check_code(planned(command, zone="a"), hosts, ("admin",))
    empty = [replace(one, state=HostState.UP) for one in hosts_with("process")]
    with pytest.raises(Refused, match=r"got the hosts prod/node-1: a command runs beside"):
        check_code(planned(command), [*empty, NODE], ("admin",))
    with pytest.raises(Refused, match=r"server\.image: expected the driver docker, got the hosts"):
        check_code(planned(IMAGES, zone="b"), hosts, ("admin",))


def test_what_a_cluster_does_not_give_is_refused() -> None:
    """Capabilities, and mounts that cannot name a volume claim, on any host that it may be on."""
    check_code(planned(IMAGES, zone="a"), [NODE], ("admin",))
    capable = ServerSettings((), image=ServerImage(APP), capabilities=("CHOWN",))
    with pytest.raises(Refused, match=r"server\.capabilities: expected none on prod/node-1, got C"):
        check_code(planned(capable, zone="a"), [NODE], ("admin",))
    for name, is_right in (("weights-1", True), ("my_weights", False), ("-w", False)):
        mounted = ServerSettings(
            (), image=ServerImage(APP), mounts=(Mount(name, "/srv", "/models"),)
        )
        if is_right:
            check_code(planned(mounted, zone="a"), [NODE], ("admin",))
            continue
        with pytest.raises(
            Refused, match=rf"server\.mounts\.{name}: expected the name of a Persis"
        ):
            check_code(planned(mounted, zone="a"), [NODE], ("admin",))
    mounted = ServerSettings((), image=ServerImage(APP), mounts=(Mount("w", "/srv", "/m"),))
    with pytest.raises(WrongScope, match=r"server\.mounts gives"):
        check_code(planned(mounted, zone="a"), [NODE], ("deploy",))


def test_images_are_given_where_each_host_pulls_them() -> None:
    """Where one host needs this server to look at them, they are pinned as ever."""
    one = planned(IMAGES).revision

    assert are_images_given(one, [*hosts_with("process"), NODE])
    assert not are_images_given(one, [*hosts_with("docker"), NODE])
    assert not are_images_given(one, hosts_with("process"))
    assert are_images_given(planned(IMAGES, zone="a").revision, [*hosts_with("docker"), NODE])


@pytest.mark.parametrize(
    ("reference", "said", "pinned"),
    [
        (APP, f"registry.example/team/app@{DIGEST}", f"registry.example/team/app@{DIGEST}"),
        (APP, DIGEST, f"registry.example/team/app@{DIGEST}"),
        ("app", f"docker-pullable://app@{DIGEST}", f"docker.io/library/app@{DIGEST}"),
        (APP, f"evil.example/app@{DIGEST}", f"registry.example/team/app@{DIGEST}"),
        (APP, "sha256:short", ""),
        (APP, f"{DIGEST}0", ""),
        (APP, f"x{DIGEST}", ""),
        (APP, "", ""),
        ("-bad-.io/x", DIGEST, ""),
    ],
)
def test_an_image_is_pinned_by_what_its_host_has_pulled(
    reference: str, said: str, pinned: str
) -> None:
    """Only the digest of a report counts: the repository is that of the manifest."""
    assert pinned_by(reference, said) == pinned
    server = ServerSettings((), image=ServerImage(reference), port=8000)
    report = {"signature": {"kind": "http", "inputs": [], "outputs": []}, IMAGE_DIGEST: said}

    found = _with_report(planned(server).revision, report).server

    assert found is not None
    assert found.image == ServerImage(reference, "", pinned)


class Nodes:
    """A server without images, whose manager also has a node of a cluster."""

    def __init__(self, server: ServingServer) -> None:
        self.server = server

    async def deploy(self, lines: str = "port = 8000\n", **request: Any) -> Any:
        """Deploy APP for that node; return the ended operation, or the refusal."""
        manifest = f'schema = 1\n[device]\nhost = {{ zone = "a" }}\n[server]\nimage = "{APP}"\n'
        body = {"files": [], "manifest": f"{manifest}{lines}", **request}
        answer = await self.server.admin("POST", "/functions/web/revisions", body)
        if answer.status != 202:
            return answer.problem
        return (await self.server.ended(answer.json())).json()

    @property
    def image(self) -> ServerImage:
        server = self.server.server.store.catalog.resolve("web").revision.server
        assert server is not None
        assert server.image is not None
        return server.image


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    async with serving(tmp_path, FakeDriver(), standbys=0) as server:
        manager = server.server.manager
        hosts, trial = manager.hosts, manager.trial

        async def tried(spec: Any, bound: Any) -> dict[str, Any]:
            assert (spec.ability, spec.labels) == (Ability.IMAGE, (("zone", "a"),))
            assert bound.container.reference == APP
            # In the place of the node, this machine, where there is no such folder.
            here = replace(bound, container=replace(bound.container, mounts=()))
            local = await trial(replace(spec, ability=None, labels=()), here)
            return {**local, IMAGE_DIGEST: f"registry.example/team/app@{DIGEST}"}

        for owner, name in ((manager, "hosts"), (server.server.deploys._needs, "_hosts")):
            monkeypatch.setattr(owner, name, lambda: [*hosts(), NODE])
        monkeypatch.setattr(manager, "trial", tried)
        yield Nodes(server)


async def test_a_deploy_uses_the_reference_and_keeps_the_digest(nodes: Nodes) -> None:
    """Nothing is looked at or pulled. The same deploy changes nothing; with --pull it is tried
    again, as a tag may have moved."""
    done = await nodes.deploy()

    assert (done["state"], done["error"]) == ("done", {})
    assert nodes.image == ServerImage(APP, "", f"registry.example/team/app@{DIGEST}")
    assert (await nodes.deploy())["result"]["created"] is False
    assert (await nodes.deploy(pull=True))["result"]["revision"] == "web@2"


async def test_a_port_must_be_named(nodes: Nodes) -> None:
    """Which one an image exposes is not known."""
    ended = await nodes.deploy("")

    assert ended["error"]["detail"].startswith("server.port: expected a port, as the hosts of")


async def test_sources_of_mounts_are_not_looked_for(nodes: Nodes) -> None:
    """A mount is a claim there by its name."""
    ended = await nodes.deploy('port = 8000\nmounts = { weights = "/nowhere:/models" }\n')

    assert (ended["state"], ended["error"]) == ("done", {})


@pytest.mark.parametrize(
    ("reference", "user", "said"),
    [
        ("registry.example/team/app:1", "", ""),
        ("registry.example/team/app:1", "10001", ""),
        ("registry.example/other/app:1", "", "expected one of registry.example/team/* (FN_IMAGES)"),
        ("registry.example/built/app:1", "", "which was built on the server's machine, while its"),
        ("registry.example/team/app:1", "0", "got root (user id 0)"),
    ],
)
async def test_the_scope_deploy_names_what_is_listed(reference: str, user: str, said: str) -> None:
    """An image of the same name that was built here is another one; and no reserved user."""
    rules = ImageRules(
        patterns=("registry.example/team/*",),
        built=lambda: {"registry.example/built/app:1": "sha256:1"},
    )
    nothing: Any = None
    pins = ImagePins(nothing, None, rules)
    server = ServerSettings((), image=ServerImage(reference), port=8000, user=user)
    work: Any = SimpleNamespace(scopes=("deploy",))

    if not said:
        assert await pins.given(server, work, None) == server
        return
    with pytest.raises(WrongScope, match=re.escape(said)):
        await pins.given(server, work, None)


async def test_a_reference_with_a_digest_is_pinned_by_it() -> None:
    """Before anything has run."""
    nothing: Any = None
    pins = ImagePins(nothing, None, ImageRules())
    server = ServerSettings((), image=ServerImage(f"app@{DIGEST}"), port=8000)
    work: Any = SimpleNamespace(scopes=("admin",))

    found = (await pins.given(server, work, None)).image

    assert found == ServerImage(f"app@{DIGEST}", "", f"docker.io/library/app@{DIGEST}")
