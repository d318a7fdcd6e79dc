from __future__ import annotations

import os
from pathlib import Path

import pytest

from admin.cli.doctor.docker import docker_checks

NAMES = ["docker engine", "docker api", "live-restore", "docker init", "docker disk"]
TAGS = {"cpu": "fngate-no-such-image:cpu", "gpu": "fngate-no-such-image:gpu"}
NAMES += ["docker users", "docker seccomp", "nvidia driver"]


def test_nothing_is_said_of_docker_where_it_is_not(tmp_path: Path) -> None:
    """A machine without an engine that needs none has no checks of it."""
    assert docker_checks(f"unix://{tmp_path}/none", is_chosen=False, tags=TAGS) == []


def test_a_chosen_engine_must_be_there(tmp_path: Path) -> None:
    """Where Docker starts the replicas, a missing engine fails."""
    checks = docker_checks(f"unix://{tmp_path}/none", is_chosen=True, tags=TAGS)

    assert [(each.level, each.name) for each in checks] == [("fail", "docker engine")]


def test_an_engine_nobody_needs_only_warns(tmp_path: Path) -> None:
    """What is there and does not work is told, and fails nothing."""
    (tmp_path / "s").touch()

    checks = docker_checks(f"unix://{tmp_path}/s", is_chosen=False, tags=TAGS)

    assert [each.level for each in checks] == ["warn"]


@pytest.mark.docker
@pytest.mark.slow
def test_a_real_engine_is_checked() -> None:
    """Every check is made of what a real engine says; its API and disk are fine."""
    url = os.environ.get("FN_TEST_DOCKER")
    if not url:
        pytest.skip("FN_TEST_DOCKER names no engine")

    checks = {each.name: each for each in docker_checks(url, is_chosen=True, tags=TAGS)}

    assert list(checks)[: len(NAMES)] == NAMES
    assert checks["cpu image"].found == "fngate-no-such-image:cpu is not there"
    assert checks["docker engine"].level == checks["docker api"].level == "ok"
    assert "left in" in checks["docker disk"].found
