"""Contract tests of the exceptions of docker-py when an engine is gone or does not answer.

The driver treats these differently from refusals, in which the request is at fault.
"""

from __future__ import annotations

import functools
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest
import requests
from docker.errors import DockerException

from tests.support.engine import make_small_image
from tests.support.own_engine import OwnEngine

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    # docker-py does not close a socket whose connect failed.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

API = "1.41"
"""Explicit version, so that creating a client sends no request."""
ANSWER_S = 10
CONNECTION = requests.exceptions.ConnectionError
PING = """
import os, sys
import docker
client = docker.DockerClient(base_url=sys.argv[1], version="1.41")
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    client.ping()
except Exception as error:
    print(type(error).__name__)
    while error.__context__ is not None:
        error = error.__context__
    print(type(error).__name__)
"""


@pytest.fixture(autouse=True)
def forgotten_sockets() -> Iterator[None]:
    """Collect unclosed sockets here, where they are expected, rather than in a later test."""
    yield
    gc.collect()


@pytest.fixture
def own() -> Iterator[OwnEngine]:
    with OwnEngine() as engine:
        make_small_image(engine.url)
        yield engine


@contextmanager
def at(url: str, answer_s: float = ANSWER_S) -> Iterator[docker.DockerClient]:
    """A client that has sent no request yet."""
    client = docker.DockerClient(base_url=url, version=API, timeout=answer_s)
    try:
        yield client
    finally:
        client.close()


def start(client: docker.DockerClient) -> docker.models.containers.Container:
    return client.containers.run("fngate-small", ["sleep", "600"], network_mode="none", detach=True)


def test_no_socket(tmp_path: Path) -> None:
    """The engine was stopped or never ran: the cause is FileNotFoundError."""
    with at(f"unix://{tmp_path}/none.sock") as client, pytest.raises(CONNECTION) as failed:
        client.ping()

    assert isinstance(cause(failed.value), FileNotFoundError)


def test_a_dead_socket(tmp_path: Path) -> None:
    """The engine was killed and its socket file remains: the cause is ConnectionRefusedError."""
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with at(f"unix://{path}") as client, pytest.raises(CONNECTION) as failed:
        client.ping()

    assert isinstance(cause(failed.value), ConnectionRefusedError)


def test_a_client_that_asks_for_the_version(tmp_path: Path) -> None:
    """Creating a client without a version wraps any error in DockerException; its cause is the
    error."""
    with pytest.raises(DockerException, match=r"^Error while fetching") as failed:
        docker.DockerClient(base_url=f"unix://{tmp_path}/none.sock")

    assert type(failed.value) is DockerException
    assert isinstance(failed.value.__cause__, CONNECTION)


def test_an_engine_that_hangs(tmp_path: Path) -> None:
    """The client raises ReadTimeout after its timeout."""
    path = str(tmp_path / "hangs.sock")
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(path)
        hangs.listen()
        with at(f"unix://{path}", 0.05) as client, pytest.raises(requests.exceptions.ReadTimeout):
            client.ping()


def test_a_wait_that_times_out(own: OwnEngine) -> None:
    """A wait with its own timeout raises ConnectionError, not ReadTimeout."""
    with at(own.url) as client, pytest.raises(CONNECTION, match="Read timed out") as failed:
        start(client).wait(timeout=0.05)

    assert not isinstance(failed.value, requests.exceptions.Timeout)


def test_a_killed_engine(own: OwnEngine) -> None:
    """Events and logs end as if complete, a wait raises, and the next call fails to connect."""
    with at(own.url) as client:
        container = start(client)
        ended: dict[str, object] = {}
        threads = [
            threading.Thread(target=note, args=(ended, name, call))
            for name, call in {
                "events": functools.partial(list, client.events()),
                "logs": functools.partial(list, container.logs(stream=True, follow=True)),
                "wait": container.wait,
            }.items()
        ]
        for thread in threads:
            thread.start()
        own.kill()
        for thread in threads:
            thread.join(60)

        with pytest.raises(CONNECTION):
            client.ping()

    assert ended["events"] == []
    assert ended["logs"] == []
    assert isinstance(ended["wait"], requests.exceptions.RequestException)


def test_an_engine_that_is_back(own: OwnEngine) -> None:
    """A client works again once its engine is back."""
    with at(own.url) as client:
        own.kill()
        with pytest.raises(CONNECTION):
            client.ping()
        own.start()

        assert client.ping()


def test_a_socket_without_permission(own: OwnEngine) -> None:
    """For a user outside the socket's group the cause is PermissionError."""
    own.root.chmod(0o711)
    said = subprocess.run(
        [sys.executable, "-c", PING, own.url], stdout=subprocess.PIPE, check=True, text=True
    )

    assert said.stdout.split() == ["ConnectionError", "PermissionError"]


def note(ended: dict[str, object], name: str, call: Callable[[], object]) -> None:
    try:
        ended[name] = call()
    except requests.exceptions.RequestException as error:
        ended[name] = error


def cause(error: BaseException) -> BaseException:
    """Return the first exception of the chain."""
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error
