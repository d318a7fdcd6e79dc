from __future__ import annotations

import io
import socketserver
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker import APIClient

from admin.image import containers
from admin.image.context import ImageError
from tests.support import runtime_images
from tests.support.engine import remove_container

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def build_id() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def image(docker_client: APIClient, build_id: str) -> Iterator[str]:
    """A nameless image with the label of `build_id`."""
    base = runtime_images.given("FN_TEST_BASE")
    text = f"FROM {base}\nLABEL fngate.build={build_id}\n"
    messages = docker_client.build(fileobj=io.BytesIO(text.encode()), rm=True, decode=True)
    [made] = [message["aux"]["ID"] for message in messages if "aux" in message]
    yield made
    runtime_images.remove(docker_client, made)


def there(client: APIClient, build_id: str) -> int:
    """How many images and containers have the label."""
    filters = {"label": f"fngate.build={build_id}"}
    return len(client.images(filters=filters)) + len(client.containers(all=True, filters=filters))


def test_python_runs_as_a_replica_does(docker_client: APIClient, image: str) -> None:
    """As its own user, without rights, network and a root that can be written; its output and
    exit code come back, and the container is gone."""
    code = (
        "import os, sys\n"
        "print(os.getuid(), sys.flags.isolated, os.listdir('/sys/class/net'))\n"
        "open('/tmp/x', 'w')\n"
        "try: open('/x', 'w')\n"
        "except OSError as error: print(error.strerror)\n"
        "sys.exit(3)"
    )

    before = len(docker_client.containers(all=True, filters={"ancestor": image}))
    ended = containers.run_python(docker_client, image, code, "b")

    assert ended == (3, "10001 1 ['lo']\nRead-only file system\n")
    assert len(docker_client.containers(all=True, filters={"ancestor": image})) == before == 0


@pytest.fixture
def running(docker_client: APIClient, image: str) -> Iterator[str]:
    """A container of the image, which has the image's labels."""
    code = "import signal; signal.pause()"
    made = docker_client.create_container(image, ["python3", "-c", code])
    docker_client.start(made["Id"])
    yield made["Id"]
    remove_container(docker_client, made["Id"])


def test_only_what_is_of_the_build_is_swept(
    docker_client: APIClient, running: str, build_id: str
) -> None:
    """Of one that was broken off, containers and nameless images go; another build's stay."""
    containers.sweep(docker_client, "another", is_broken_off=True, pause=lambda _: None)
    others = there(docker_client, build_id)
    containers.sweep(docker_client, build_id, is_broken_off=True, pause=lambda _: None)

    assert (others, there(docker_client, build_id)) == (2, 0)


def test_replicas_of_a_finished_build_run_on(docker_client: APIClient, running: str) -> None:
    """They have its label from their image, and began as soon as that had its name."""
    labels = docker_client.inspect_container(running)["Config"]["Labels"]

    containers.sweep(docker_client, labels["fngate.build"], is_broken_off=False)

    assert docker_client.inspect_container(running)["State"]["Running"]


def test_after_a_broken_build_is_looked_longer(docker_client: APIClient) -> None:
    """As many looks as it takes for what the engine still ends, with pauses between them."""
    pauses: list[float] = []

    containers.sweep(docker_client, "nothing", is_broken_off=True, pause=pauses.append)

    assert pauses == [containers.SWEEP_S] * (containers.QUIET_SWEEPS - 1)


def test_what_is_used_or_named_stays(docker_client: APIClient, image: str, build_id: str) -> None:
    """An image goes only when no container and no tag needs it."""
    docker_client.tag(image, "fngate-test", build_id)
    named = containers.remove_unused(docker_client, image)
    made = docker_client.create_container(image, ["true"])
    docker_client.tag(runtime_images.given("FN_TEST_BASE"), "fngate-test", build_id, force=True)
    docker_client.remove_image(f"fngate-test:{build_id}")
    used = containers.remove_unused(docker_client, image)
    docker_client.remove_container(made["Id"])

    assert (named, used) == (False, False)
    assert containers.remove_unused(docker_client, image)


@pytest.fixture
def derived(docker_client: APIClient) -> Iterator[Callable[[str], str]]:
    """Makes an image of the given base whose python3 is the given shell script; its tag."""
    tags: list[str] = []

    def make(run: str) -> str:
        tags.append(f"fngate-test:{uuid.uuid4().hex}")
        text = f"FROM {runtime_images.given('FN_TEST_BASE')}\nRUN {run}\n"
        file = io.BytesIO(text.encode())
        messages = docker_client.build(
            fileobj=file, tag=tags[-1], rm=True, forcerm=True, network_mode="none", decode=True
        )
        assert [message for message in messages if "error" in message] == []
        return tags[-1]

    yield make
    for tag in tags:
        runtime_images.remove(docker_client, tag)


def written(text: str) -> str:
    """The command that makes python3 a script with this text."""
    return (
        f"printf '#!/bin/sh\\n{text}\\n' > /usr/local/bin/python3; chmod 755 /usr/local/bin/python3"
    )


def test_a_base_that_is_there_is_not_pulled(docker_client: APIClient) -> None:
    """Nothing is asked of a registry."""
    told: list[str] = []

    containers.pull_base(docker_client, runtime_images.given("FN_TEST_BASE"), told.append)

    assert told == []


def test_a_base_that_cannot_be_pulled_is_told(docker_client: APIClient) -> None:
    """The message names the image, the note how to get or choose one."""
    told: list[str] = []
    nowhere = "127.0.0.1:1/fngate/none:1"

    with pytest.raises(ImageError, match=f"the base image {nowhere} is not on the engine") as got:
        containers.pull_base(docker_client, nowhere, told.append)

    assert told == [f"pulling {nowhere}"]
    assert f"docker pull {nowhere}" in got.value.__notes__[0]


def test_a_base_says_what_it_runs(docker_client: APIClient) -> None:
    """Python, machine and glibc of the given base, Debian 12."""
    platform = containers.probe_base(docker_client, runtime_images.given("FN_TEST_BASE"), "b")

    assert platform.python >= containers.OLDEST
    assert platform.tags()
    assert platform.glibc >= (2, 17)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (written('echo [3, 9, \\"x86_64\\", 2, 36]'), "has Python 3.9, expected 3.11 or newer"),
        (written("echo oh; exit 4"), "exited with code 4:\n    oh"),
        ("rm -f /usr/bin/python3 /usr/local/bin/python3", "has no python3"),
    ],
)
def test_a_base_that_will_not_do_is_told(
    docker_client: APIClient, derived: Callable[[str], str], run: str, reason: str
) -> None:
    """Too old, broken or without a Python: said before anything is downloaded."""
    with pytest.raises(ImageError) as caught:
        containers.probe_base(docker_client, derived(run), "b")

    assert reason in caught.value.message
    assert "--base" in caught.value.__notes__[0]


UNKNOWN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 27\r\n\r\n" + b'{"message":"No such image"}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PULLING = b'15\r\n{"status":"Pulling"}\n\r\n'
DONE = b"0\r\n\r\n"


class Engine(socketserver.ThreadingUnixStreamServer):
    """Has no image, and answers a pull with `pulled`; then it is silent until its client leaves."""

    daemon_threads = False
    pulled = b""


class Handler(socketserver.BaseRequestHandler):
    """One connection of a client."""

    server: Engine

    def handle(self) -> None:
        """Answer until the client leaves."""
        while request := self.request.recv(65_536):
            if request.startswith(b"GET"):
                self.request.sendall(UNKNOWN)
            elif request.startswith(b"POST"):
                self.request.sendall(self.server.pulled)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Callable[[bytes], APIClient]]:
    """Makes a client of an engine that says these bytes of a pull."""
    server = Engine(str(tmp_path / "engine.sock"), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    client = APIClient(base_url=f"unix://{tmp_path}/engine.sock", version="1.44")

    def made(pulled: bytes) -> APIClient:
        server.pulled = pulled
        return client

    yield made
    client.close()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("said", [b"", CHUNKED, CHUNKED + PULLING])
def test_a_silent_registry_ends_the_build(
    engine: Callable[[bytes], APIClient], said: bytes
) -> None:
    """Whether it never answers or falls silent in the middle, the error names the image and how
    long nothing came."""
    with pytest.raises(ImageError, match=r"x:1 is not .*: no message for 0\.1 s"):
        containers.pull_base(engine(said), "x:1", lambda _text: None, silence_s=0.1)


def test_a_pull_that_ends_is_no_silence(engine: Callable[[bytes], APIClient]) -> None:
    """Afterwards the client waits for the engine as it did before."""
    client = engine(CHUNKED + PULLING + DONE)

    containers.pull_base(client, "x:1", lambda _text: None, silence_s=30.0)

    assert "send" not in vars(client)
