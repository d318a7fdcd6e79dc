"""Tests of pulls through a whole server: what breaks is told, and nothing else happens."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import docker
import pytest

from pool_manager.drivers.docker.spec import PART, SERVER
from pool_manager.image_names import PINNED, PULLED
from tests.support.container_server import ContainerServer, container_server, until
from tests.support.doses import IS_FULL
from tests.support.engine import connected
from tests.support.own_engine import OwnEngine
from tests.support.process_server import FNCTL
from tests.support.registry import PASSWORD, Front, Registry, front, registry
from tests.support.web_servers import make_greeter_image

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(300)]
full = pytest.mark.skipif(not IS_FULL, reason="waits for time limits of engines: a full dose")
MIB = 2**20
DONE_S = 200.0
STOP_S = 20.0
DISK_MIB = 1500
WRONG = "battery-staple-9f0c"


@dataclass(frozen=True)
class Hub:
    """A server with the function `keeper`, and a registry with a password behind a front.
    `one` and `two` are images of the repository team/app; the engine has neither."""

    engine: str
    server: ContainerServer
    registry: Registry
    front: Front
    config: Path
    one: str
    two: str

    @property
    def reference(self) -> str:
        return f"{self.front.address}/team/app:1"

    def log_in(self, password: str = PASSWORD) -> None:
        """Write the docker config that the server reads."""
        Registry(self.engine, self.front.address, password).log_in(self.config)

    def begin(self, *options: str, image: str = "") -> subprocess.Popen[str]:
        """Begin `fnctl deploy` of the image as `app`."""
        return self.fnctl("deploy", "--name", "app", "--image", image or self.reference, *options)

    def fnctl(self, *words: str, said: str = "") -> subprocess.Popen[str]:
        """Begin a verb of `fnctl` with this on its standard input."""
        process = subprocess.Popen(
            [FNCTL, *words],
            env={"PATH": "/usr/bin:/bin", "FN_URL": self.server.url, "FN_DATA": self.data},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(said)
        process.stdin.close()
        process.stdin = None
        return process

    @property
    def data(self) -> str:
        return str(self.server.data)

    def deploy(self, *options: str, image: str = "") -> str:
        """Deploy; return what was said."""
        out, err = ended(self.begin(*options, image=image), 0)
        return out + err

    def refused(self, *options: str, image: str = "") -> str:
        """Deploy what fails; return the complaint."""
        out, err = ended(self.begin(*options, image=image), 1)
        assert out == ""
        return err

    def run(self, *words: str) -> str:
        """Run `fnctl`; return what was said."""
        return "".join(ended(self.fnctl(*words), 0))

    @contextmanager
    def another(self, folder: Path) -> Iterator[Hub]:
        """Run another server of the same engine, with its data in `folder`."""
        image, given = self.server.image, {"DOCKER_CONFIG": str(self.config), "FN_STANDBYS": "0"}
        with container_server(folder / "data", self.engine, image, **given) as server:
            yield replace(self, server=server)

    @contextmanager
    def moved(self) -> Iterator[None]:
        """Within the block the tag has the image `two`."""
        self.registry.retag("team/app", "2", "1")
        yield
        self.registry.retag("team/app", "kept", "1")

    def asleep(self, name: str) -> None:
        """Make a function cold."""

        def is_cold() -> bool:
            self.fnctl("sleep", name).communicate()
            return not self.server.containers(name)

        until(is_cold, f"{name} stays awake")

    def words_of(self, values: Sequence[str]) -> list[str]:
        """Return where these values are: in the history, the log, or a file of the server."""
        places = {"log": "".join(self.server.log), "operations": json.dumps(self.operations())}
        for path in self.server.data.rglob("*"):
            if path.is_file():
                places[str(path)] = path.read_bytes().decode("latin-1")
        return [where for where, text in places.items() if any(one in text for one in values)]

    def operations(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin("/operations")["items"]
        return found

    def admin(self, path: str) -> Any:
        """Return what GET of the admin API answers."""
        command = ["curl", "-s", f"{self.server.url}/admin/v1{path}"]
        header = f"Authorization: Bearer {self.server.token}"
        done = subprocess.run([*command, "-H", header], check=True, capture_output=True)
        return json.loads(done.stdout)

    def call(self, name: str) -> tuple[int, str]:
        """Return status and body of a call."""
        command = ["curl", "-s", "-w", "%{http_code}", f"{self.server.url}/fn/{name}/"]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return int(text[-3:]), text[:-3].strip()

    def tags(self) -> set[str]:
        """Return the tags of this server."""
        with connected(self.engine) as client:
            images = [one for name in (PINNED, PULLED) for one in client.api.images(name=name)]
        names = {tag for one in images for tag in one["RepoTags"] or ()}
        return {tag for tag in names if tag.endswith(f".{self.server.name}")}

    def has(self, id: str) -> bool:
        """Return whether the engine has an image."""
        with connected(self.engine) as client:
            try:
                client.api.inspect_image(id)
            except docker.errors.ImageNotFound:
                return False
        return True

    def forget(self, *ids: str) -> None:
        """Remove images by hand, once the containers of a removed function are gone."""
        with connected(self.engine) as client:

            def is_removed(id: str) -> bool:
                try:
                    client.api.remove_image(id, force=True)
                except docker.errors.ImageNotFound:
                    return True
                except docker.errors.APIError as error:
                    if error.status_code != HTTPStatus.CONFLICT:
                        raise
                    return False
                return True

            for id in ids:
                until(partial(is_removed, id), "a container still uses an image")

    def check_untouched(self, tags: set[str]) -> None:
        """Nothing else has happened: the other function answers, there is neither a function `app`
        nor its image, and no tag but `tags`."""
        assert self.call("keeper") == (200, "keeper")
        assert [one["name"] for one in self.admin("/functions")["items"]] == ["keeper"]
        assert not self.has(self.one)
        until(lambda: self.tags() == tags, "a tag is left")
        assert list(self.server.complaints) == []


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Wait for an expected end; return what was said."""
    out, err = process.communicate(timeout=DONE_S)
    assert process.returncode == code, out + err
    return out, err


@pytest.fixture(scope="module")
def hub(engine: str, runtime_image: str) -> Iterator[Hub]:
    """A hub without logins."""
    with opened_hub(engine, runtime_image) as hub:
        yield hub


@contextmanager
def opened_hub(engine: str, runtime_image: str) -> Iterator[Hub]:
    """Open a hub on an engine."""
    with (
        tempfile.TemporaryDirectory() as name,
        registry(engine, Path(name), password=PASSWORD) as made,
        front(made) as gate,
    ):
        folder = Path(name)
        config = folder / "docker"
        config.mkdir()
        keeper = make_greeter_image(engine, "keeper")
        one, two = (make_greeter_image(engine, text, 8) for text in ("one", "two"))
        with connected(engine) as client:
            client.api.tag(keeper, "fngate-keeper", "1")
        made.push(two, "team/app:2")
        made.push(one, "team/app:1")
        made.retag("team/app", "1", "kept")
        data = folder / "data"
        environment = {"DOCKER_CONFIG": str(config), "FN_STANDBYS": "0"}
        with container_server(data, engine, runtime_image, **environment) as server:
            hub = Hub(engine, server, made, gate, config, one, two)
            hub.forget(one, two)
            done = hub.fnctl("deploy", "--name", "keeper", "--image", "fngate-keeper:1")
            ended(done, 0)
            yield hub
        hub.forget(one, two, keeper)


@pytest.fixture
def tags(hub: Hub) -> Iterator[set[str]]:
    """The tags of this server before the test, with a login and an open front. At the end the
    function `app` and its images are gone."""
    hub.front.passes()
    hub.log_in()
    found = hub.tags()
    yield found
    hub.front.passes()
    hub.fnctl("rm", "app", "--yes").communicate()
    hub.forget(hub.one, hub.two)
    until(lambda: hub.tags() <= found, "a tag is left")
    hub.server.complaints.clear()


def test_what_a_registry_refuses_is_told(hub: Hub, tags: set[str]) -> None:
    """No login, a wrong password, an unknown tag, no image for this processor, a registry that is
    not there: each with its remedy, and in the history. The password is in no word of it."""
    login = f"docker login {hub.front.address}"
    (hub.config / "config.json").unlink()
    said = [(hub.refused(), login)]
    hub.log_in(WRONG)
    said.append((hub.refused(), login))
    hub.log_in()
    hub.registry.list_for("s390x", "team/app:1", "elsewhere")
    said += [
        (hub.refused(image=hub.reference.replace(":1", ":9")), "check the image's name and tag"),
        (hub.refused(image=hub.reference.replace(":1", ":elsewhere")), "this machine's processor"),
        (hub.refused(image="127.0.0.1:9/team/app:1"), "must reach the registry 127.0.0.1:9"),
    ]
    for text, remedy in said:
        assert remedy in text
    errors = [one["error"]["detail"] for one in hub.operations()[: len(said)]]
    assert [error in text for error, (text, _) in zip(reversed(errors), said, strict=True)]
    hub.check_untouched(tags)
    assert hub.words_of((WRONG, PASSWORD)) == []


@full
def test_an_images_life(hub: Hub, tags: set[str]) -> None:
    """A pin keeps what a tag was; `--pull` takes what it is. An image that was removed by hand is
    told to callers, and `warm` pulls it. A prune takes what is needed no more, and nothing else."""
    assert "@sha256:" in hub.deploy()
    assert hub.call("app") == (200, "one")
    pinned = hub.tags()

    with hub.moved():
        assert "app@1" in hub.deploy()
        assert hub.call("app") == (200, "one")
        assert "app@2 deployed" in hub.deploy("--pull")
        assert hub.call("app") == (200, "two")
    hub.run("rollback", "app")
    assert hub.call("app") == (200, "one")

    hub.asleep("app")
    hub.forget(hub.one)
    status, problem = hub.call("app")
    assert status == 503
    assert "is not on this machine any more; pull it: docker pull" in problem
    assert "fnctl warm app" in problem
    assert hub.call("keeper") == (200, "keeper")
    hub.run("warm", "app")
    assert hub.call("app") == (200, "one")
    assert hub.tags() >= pinned

    assert "no image to remove" in hub.run("image", "prune")
    hub.run("rm", "app", "--yes")
    until(lambda: "2 images removed" in hub.run("image", "prune"), "images are left")
    hub.check_untouched(tags)
    assert not hub.has(hub.two)


def test_a_pull_that_is_cancelled_leaves_nothing(hub: Hub, tags: set[str]) -> None:
    """By Ctrl-C while the registry is silent; the next deploy is not held up."""
    hub.front.stalls(2 * MIB)
    deploy = hub.begin()
    hub.front.await_reached()

    deploy.send_signal(signal.SIGINT)
    out, err = ended(deploy, 130)

    assert "cancelled: nothing changed" in out + err
    assert hub.operations()[0]["state"] == "cancelled"
    hub.check_untouched(tags)
    hub.front.passes()
    hub.deploy()
    assert hub.call("app") == (200, "one")


@full
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGKILL"])
def test_a_stopped_server_pulls_again(
    hub: Hub, tags: set[str], tmp_path: Path, signal_name: str
) -> None:
    """Stopped or killed in the middle of a pull: nothing of it remains, and the next server ends
    the deploy that it finds. Another server of the engine is not concerned."""
    with hub.another(tmp_path) as own:
        hub.front.stalls(2 * MIB)
        deploy = own.begin()
        hub.front.await_reached()
        began_s = time.monotonic()
        own.server.stop(signal.Signals[signal_name])
        assert time.monotonic() - began_s < STOP_S
        deploy.communicate(timeout=DONE_S)
        hub.check_untouched(tags)
        assert own.tags() == set()

        hub.front.passes()
        own.server.start()
        until(lambda: own.operations()[0]["state"] == "done", "the deploy does not end")
        assert own.call("app") == (200, "one")
        assert "no image to remove" in hub.run("image", "prune")
        assert own.call("app") == (200, "one")
        own.run("rm", "app", "--yes")
        until(lambda: "1 image removed" in own.run("image", "prune"), "the image is left")
    hub.check_untouched(tags)


@full
def test_a_stopped_server_ends_a_pull_of_warm(hub: Hub, tags: set[str], tmp_path: Path) -> None:
    """At once, and the waiting caller is told."""
    with hub.another(tmp_path) as own:
        own.deploy()
        own.asleep("app")
        hub.forget(hub.one)
        hub.front.stalls(2 * MIB)
        warm = own.fnctl("warm", "app")
        hub.front.await_reached()
        began_s = time.monotonic()

        assert own.server.stop() == 0

        assert time.monotonic() - began_s < STOP_S
        assert "shutting down" in ended(warm, 1)[1]
        hub.front.passes()
        own.server.start()
        own.run("rm", "app", "--yes")
    hub.check_untouched(tags)


@full
def test_two_deploys_of_one_image(hub: Hub, tags: set[str]) -> None:
    """The second one waits for the first one's pull, and says so; a prune beside them takes
    nothing of theirs."""
    hub.front.stalls(2 * MIB)
    first = hub.begin()
    hub.front.await_reached()
    second = hub.fnctl("deploy", "--name", "beside", "--image", hub.reference)
    until(
        lambda: any("waits for another" in one["phase"] for one in hub.operations()),
        "the second deploy does not wait",
    )
    assert "no image to remove" in hub.run("image", "prune")
    hub.front.passes()
    for deploy in (first, second):
        ended(deploy, 0)
    assert hub.call("app") == hub.call("beside") == (200, "one")
    hub.run("rm", "beside", "--yes")
    assert "no image to remove" in hub.run("image", "prune")
    assert hub.call("app") == (200, "one")


@full
@pytest.mark.parametrize(
    ("fault", "after", "said", "most_s"),
    [
        ("cuts", 2 * MIB, "broke off: try again later", 120),
        ("stalls", 0, "the engine must reach the registry", 70),
        ("stalls", 2 * MIB, "no progress in 60 s; try again later", 70),
        ("drips", 2 * MIB, "no progress in 60 s; try again later", 70),
    ],
)
def test_a_registry_that_fails_in_the_middle_is_told(
    hub: Hub, tags: set[str], fault: str, after: int, said: str, most_s: float
) -> None:
    """A registry that goes away, one that never answers, one that stops, one that drips: the deploy
    ends in bounded time, with the reason."""
    getattr(hub.front, fault)(after)
    began_s = time.monotonic()

    assert said in hub.refused()

    assert time.monotonic() - began_s < most_s
    assert said in hub.operations()[0]["error"]["detail"]
    hub.check_untouched(tags)


@full
def test_a_secret_is_in_no_word_of_failed_starts(hub: Hub, tags: set[str]) -> None:
    """The engine gets it as a variable of a container: whatever it refuses, and however a program
    ends, the value is in no file, log, command line or history of ours, and in no other container.
    """
    value = f"{secrets.token_hex(24)}\nnext line"
    hidden = value[:24]
    put = hub.fnctl("secret", "set", "hf", said=value)
    ended(put, 0)
    for option in (("--env", "PERL5OPT=-Mnone"), ("--memory", "1")):
        said = hub.refused("--secret", "TOKEN=hf", *option)
        assert hidden not in said
    hub.deploy("--secret", "TOKEN=hf")
    assert hub.call("app")[1] == f"one{value}"
    having = [one for one in hub.server.everything() if hidden in json.dumps(one)]
    assert [one["Config"]["Labels"][PART] for one in having] == [SERVER]
    assert hub.words_of((hidden,)) == []
    commands = [one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline") if one.exists()]
    assert not any(hidden.encode() in one for one in commands)


@full
def test_a_full_disk_and_an_engine_that_goes_away_are_told(runtime_image: str) -> None:
    """On a full disk a pull is refused, and what it took is given back; an engine that is killed in
    the middle of a pull is told, and back again it pulls."""
    with OwnEngine(disk_mib=DISK_MIB) as engine:
        engine.load(runtime_image)
        with opened_hub(engine.url, runtime_image) as hub:
            hub.log_in()
            tags = hub.tags()
            filler = f"{engine.root}/data/filler"
            engine.enter("fallocate", "-l", f"{engine.free_mib() - 12}MiB", filler)
            free_mib = engine.free_mib()
            assert "free disk space: docker system prune, fnctl image prune" in hub.refused()
            until(lambda: engine.free_mib() >= free_mib - 1, "space is not given back")
            hub.check_untouched(tags)
            engine.enter("rm", filler)

            hub.front.stalls(2 * MIB)
            deploy = hub.begin()
            hub.front.await_reached()
            engine.kill()
            said = ended(deploy, 1)[1]
            assert f"cannot pull {hub.reference}" in said
            assert "systemctl restart docker" in said
            assert hub.call("keeper") == (200, "keeper")
            hub.front.passes()
            engine.start()
            until(lambda: hub.operations()[0]["state"] == "failed", "the history does not tell")
            hub.deploy()
            assert hub.call("app") == (200, "one")
            assert hub.call("keeper") == (200, "keeper")
