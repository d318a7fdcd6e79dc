"""Tests of `.ci/engine`: it starts an engine, survives a kill, and removes everything again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine import base_image, connected
from tests.support.own_engine import END_S, lives, processes
from tests.support.process_server import wait_end

SCRIPT = Path(__file__).parents[3] / ".ci/engine"


def script(verb: str, root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), verb],
        env={**os.environ, "FN_ENGINE_ROOT": str(root), **environment},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def root(wheelhouse: Path) -> Iterator[Path]:
    """Root with the caches of the shared engine, without which a start takes a minute."""
    root = Path(f"/tmp/fnc-{os.getpid()}")
    root.mkdir()
    try:
        for tarball in wheelhouse.parent.glob("base-*.tar"):
            (root / tarball.name).symlink_to(tarball)
        shutil.copytree(wheelhouse, root / "wheelhouse", copy_function=os.link)
        yield root
    finally:
        assert script("clean", root).returncode == 0
        assert not root.exists()


@pytest.mark.parametrize("verb", ["env", "socket"])
def test_without_an_engine_nothing_is_printed(tmp_path: Path, verb: str) -> None:
    """The output cannot be mistaken for an engine's address."""
    done = script(verb, tmp_path)

    assert done.returncode == 1
    assert done.stdout == ""


def test_stopping_without_an_engine(tmp_path: Path) -> None:
    """Stopping an engine that does not run succeeds and creates nothing."""
    assert script("stop", tmp_path / "none").returncode == 0
    assert not (tmp_path / "none").exists()


def test_an_unknown_verb(tmp_path: Path) -> None:
    """An unknown verb prints the usage and exits with 1."""
    done = script("begin", tmp_path)

    assert done.returncode == 1
    assert "usage: .ci/engine VERB" in done.stderr


def test_a_root_that_is_too_long(tmp_path: Path) -> None:
    """An overlong root is refused first, because the length of a socket's path is limited."""
    done = script("start", tmp_path / ("x" * 100))

    assert done.returncode == 1
    assert "expected a path of at most 70 bytes" in done.stderr


@pytest.mark.docker
@pytest.mark.slow
def test_a_dockerd_that_does_not_start(root: Path) -> None:
    """The last output of dockerd is shown, and no process remains."""
    stand_in = root / "bin/dockerd"
    stand_in.parent.mkdir()
    stand_in.write_text("#!/bin/sh\necho no cgroups here\nexit 1\n")
    stand_in.chmod(0o755)

    done = script("start", root, PATH=f"{stand_in.parent}:{os.environ['PATH']}")

    assert done.returncode == 1
    assert "no cgroups here" in done.stderr
    assert processes(root) == []


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_start_kill_restart_and_stop(root: Path) -> None:
    """An engine is started, used, killed, started again over its remains, and stopped with all its
    containers."""
    first = script("start", root)
    url = f"unix://{root}/docker.sock"
    assert first.returncode == 0, first.stderr
    assert first.stdout == (
        f"export FN_TEST_DOCKER={url} FN_TEST_BASE={base_image()} "
        f"FN_TEST_WHEELHOUSE={root}/wheelhouse\n"
    )
    assert script("start", root).stdout == first.stdout

    left = run_two(url)
    kill(root)
    again = script("start", root)
    assert again.returncode == 0, again.stderr
    assert [pid for pid in left if lives(pid)] == []

    left = run_two(url)
    stopped = script("stop", root)
    assert stopped.returncode == 0, stopped.stderr
    assert [pid for pid in left if lives(pid)] == []
    assert processes(root) == []
    assert not (root / "exec").exists()
    assert str(root) not in Path("/proc/self/mounts").read_text()


def run_two(url: str) -> list[int]:
    """Start a sleeping and a frozen container; return their pids."""
    pids = []
    with connected(url) as client:
        for freeze in (False, True):
            container = client.containers.run(
                base_image(), ["sleep", "600"], network_mode="none", detach=True
            )
            container.reload()
            pids.append(container.attrs["State"]["Pid"])
            if freeze:
                container.pause()
    return pids


def kill(root: Path) -> None:
    """Kill the root's dockerd and wait until it has ended."""
    pid = int((root / "pid").read_text())
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    wait_end(ended, END_S)
