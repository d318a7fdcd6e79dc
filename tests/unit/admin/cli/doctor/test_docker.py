from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from admin.cli.doctor import docker
from admin.cli.doctor.docker import (
    EngineFacts,
    docker_checks,
    expected_source,
    has_socket,
    image,
    query_engine,
    unreachable_check,
)
from admin.cli.doctor.engine_checks import Driver
from admin.image.context import own_digest
from hosts.checks import Check
from runtime_image.contract.link import VERSION

NAMES = ["docker engine", "docker api", "live-restore", "docker init", "docker disk"]
TAGS = {"cpu": "fngate-no-such-image:cpu", "gpu": "fngate-no-such-image:gpu"}


NAMES += ["docker users", "docker seccomp"]
NO_GPU = Driver(error="not found")


def test_nothing_is_said_of_docker_where_it_is_not(tmp_path: Path) -> None:
    """A machine that neither has nor needs Docker has no checks of it."""
    assert docker_checks(f"unix://{tmp_path}/none", False, TAGS, NO_GPU) == []


def test_a_chosen_engine_must_be_there(tmp_path: Path) -> None:
    """With the Docker driver, a missing engine fails."""
    checks = docker_checks(f"unix://{tmp_path}/none", True, TAGS, NO_GPU)

    assert [(each.level, each.name) for each in checks] == [("fail", "docker engine")]


def test_an_engine_that_is_not_needed_only_warns(tmp_path: Path) -> None:
    """A broken engine that no driver needs is a warning."""
    (tmp_path / "s").touch()

    checks = docker_checks(f"unix://{tmp_path}/s", False, TAGS, NO_GPU)

    assert [each.level for each in checks] == ["warn"]


@pytest.mark.docker
@pytest.mark.slow
def test_a_real_engine_is_checked() -> None:
    """Every check runs on a real engine's answers; its API and disk pass."""
    url = os.environ.get("FN_TEST_DOCKER")
    if not url:
        pytest.skip("FN_TEST_DOCKER names no engine")

    checks = {each.name: each for each in docker_checks(url, True, TAGS, NO_GPU)}

    assert list(checks)[: len(NAMES)] == NAMES
    assert checks["cpu image"].found == "fngate-no-such-image:cpu does not exist"
    assert checks["docker engine"].level == checks["docker api"].level == "ok"
    assert "free in" in checks["docker disk"].found


UNIX = "unix:///var/run/docker.sock"


@contextmanager
def answering(path: Path, answer: bytes) -> Iterator[str]:
    """Serve `answer` to each of two callers on a socket; never answer if it is empty."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        calls: list[socket.socket] = []

        def serve() -> None:
            for _ in range(2):
                try:
                    call, _ = server.accept()
                except OSError:
                    return
                calls.append(call)
                if answer:
                    call.recv(4096)
                    call.sendall(answer)
                    call.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for call in calls:
                call.close()


@pytest.mark.parametrize(
    ("error", "todo"),
    [
        (FileNotFoundError(), "sudo systemctl start docker"),
        (PermissionError(), "sudo usermod -aG docker $USER"),
        (ConnectionRefusedError(), "sudo systemctl restart docker"),
        (TimeoutError(), "journalctl -u docker"),
        (ConnectionResetError("cut"), "journalctl -u docker"),
        (ValueError("odd"), "--engine or FN_DOCKER_HOST"),
    ],
)
def test_an_engine_that_cannot_be_reached_says_what_mends_it(error: Exception, todo: str) -> None:
    """Each reason for an unreachable engine has its own command."""
    check = unreachable_check(UNIX, error)

    assert check.level == "fail"
    assert todo in check.todo


def test_an_engine_that_is_not_installed_is_to_be_installed() -> None:
    """If no engine is installed, the advice is to install one, not to start it."""
    assert "install" in unreachable_check(UNIX, FileNotFoundError(), has_daemon=False).todo
    assert "--engine" in unreachable_check("tcp://far:1", ConnectionRefusedError()).todo


def asked(url: str) -> Check:
    found = query_engine(url, [])
    assert isinstance(found, Check)
    return found


def test_real_sockets_tell_the_reasons_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing, a stale, a silent and a closing socket have different reasons."""
    monkeypatch.setattr(docker, "ANSWER_S", 0.05)
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left))

    assert "does not exist" in asked(f"unix://{tmp_path}/none").found
    assert "nothing listens" in asked(f"unix://{left}").found
    with answering(tmp_path / "silent", b"") as url:
        assert "does not answer" in asked(url).found


def test_a_foreign_socket_is_reported(tmp_path: Path) -> None:
    """A foreign server's socket or a bad address is reported and raises nothing."""
    with answering(tmp_path / "odd", b"HTTP/1.0 200 OK\r\n\r\nnonsense") as url:
        assert asked(url).level == "fail"
    assert "expected unix:///PATH" in asked("ssh://gpu1").found
    assert "expected unix:///PATH" in asked("tcp://").found


def test_a_tcp_port_without_an_engine_is_told() -> None:
    """An address on another machine is tried too."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))

        assert "nothing listens" in asked(f"tcp://127.0.0.1:{held.getsockname()[1]}").found


def test_a_socket_is_there_or_not(tmp_path: Path) -> None:
    """Only a path on this machine can be checked without connecting."""
    (tmp_path / "s").touch()

    assert has_socket(f"unix://{tmp_path}/s")
    assert not has_socket(f"unix://{tmp_path}/t")
    assert not has_socket("tcp://127.0.0.1:2375")


def test_only_a_socket_is_local() -> None:
    """Only a Unix socket counts as local: an engine behind TCP may be anywhere."""
    assert EngineFacts(UNIX, {}, {}).is_local
    assert not EngineFacts("tcp://127.0.0.1:2375", {}, {}).is_local


@pytest.mark.docker
@pytest.mark.slow
def test_a_real_engine_answers() -> None:
    """A real engine answers with its version, its settings and its missing images."""
    url = os.environ.get("FN_TEST_DOCKER")
    if not url:
        pytest.skip("FN_TEST_DOCKER names no engine")

    facts = query_engine(url, ["fngate-no-such-image:x"])

    assert isinstance(facts, EngineFacts)
    assert facts.version["ApiVersion"]
    assert facts.info["DockerRootDir"]
    assert facts.images == {"fngate-no-such-image:x": None}


SOURCE = "a" * 64


def inspected(**labels: str) -> dict[str, Any]:
    return {"Id": "sha256:0123456789abcdef", "Config": {"Labels": labels or None}}


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (None, "fail", "does not exist"),
        (inspected(), "fail", "no label fngate.link"),
        ({"Id": "x"}, "fail", "no label fngate.link"),
        (inspected(**{"fngate.link": "0"}), "fail", "has version 0"),
        (inspected(**{"fngate.link": str(VERSION)}), "warn", "other sources (unknown)"),
        (
            inspected(**{"fngate.link": str(VERSION), "fngate.source": "b" * 64}),
            "warn",
            "other sources (bbbbbbbbbbbb)",
        ),
        (inspected(**{"fngate.link": str(VERSION), "fngate.source": SOURCE}), "ok", f"{VERSION}"),
    ],
)
def test_the_image_must_fit(found: dict[str, Any] | None, level: str, text: str) -> None:
    """The image must exist and have this link version; other sources are a warning."""
    check = image("gpu", "mine:gpu", found, SOURCE)

    assert check.level == level
    assert text in check.found
    assert check.todo == ("" if level == "ok" else "fnctl image build gpu")


def test_unknown_sources_are_not_compared() -> None:
    """If the sources' digest is unknown, the link version decides alone."""
    assert image("cpu", "mine:cpu", inspected(**{"fngate.link": str(VERSION)}), "").level == "ok"


def test_the_sources_digest_is_a_text() -> None:
    """The sources' digest is a text, or empty where this fngate cannot build images."""
    assert expected_source() == own_digest()
