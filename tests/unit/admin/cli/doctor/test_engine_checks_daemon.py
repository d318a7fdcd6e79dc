from __future__ import annotations

from typing import Any

import pytest

from admin.cli.doctor import engine_checks
from admin.cli.doctor.engine_checks import DAEMON_FILE
from admin.cli.doctor.machine import DISK_FULL, DISK_LOW

NEWEST = (1, 45)
# Source: GET /version and GET /info of Docker 20.10.24 on Debian 12, without what is not looked at.
VERSION: dict[str, Any] = {
    "Version": "20.10.24+dfsg1",
    "ApiVersion": "1.41",
    "MinAPIVersion": "1.12",
}
INFO: dict[str, Any] = {
    "CgroupDriver": "cgroupfs",
    "CgroupVersion": "1",
    "DockerRootDir": "/var/lib/docker",
    "Runtimes": {"io.containerd.runc.v2": {"path": "runc"}, "runc": {"path": "runc"}},
    "DefaultRuntime": "runc",
    "Swarm": {"LocalNodeState": "inactive"},
    "LiveRestoreEnabled": False,
    "InitBinary": "docker-init",
    "InitCommit": {"ID": "", "Expected": ""},
    "SecurityOptions": ["name=seccomp,profile=default"],
}


@pytest.mark.parametrize(
    ("own", "least", "level"),
    [
        ("1.41", "1.12", "ok"),
        ("1.52", "1.44", "ok"),
        ("1.40", "1.12", "fail"),
        ("1.9", "1.9", "fail"),
        ("1.60", "1.46", "fail"),
        ("", "", "fail"),
    ],
)
def test_the_api_must_be_spoken_by_both(own: str, least: str, level: str) -> None:
    """Too old an engine fails, and one that takes only newer clients; numbers are not texts."""
    answer = {**VERSION, "ApiVersion": own, "MinAPIVersion": least}

    assert engine_checks.api(answer, NEWEST).level == level


def test_an_engine_that_says_nothing_passes_nothing_by_mistake() -> None:
    """What is missing from an answer is never taken for good where it matters."""
    assert engine_checks.api({}, NEWEST).level == "fail"
    assert engine_checks.live_restore({}).level == "warn"
    assert engine_checks.init({}).level == "warn"
    assert engine_checks.seccomp({}).level == "warn"


def test_live_restore_should_be_on() -> None:
    """Off, it says the line and the command; in a swarm there is no such line."""
    off = engine_checks.live_restore(INFO)
    swarm = engine_checks.live_restore({**INFO, "Swarm": {"LocalNodeState": "active"}})

    assert engine_checks.live_restore({**INFO, "LiveRestoreEnabled": True}).level == "ok"
    assert off.level == "warn"
    assert '"live-restore": true' in off.todo
    assert off.todo.endswith("sudo systemctl reload docker")
    assert "swarm" in swarm.found


def test_an_init_that_is_missing_is_told() -> None:
    """The engine says N/A for the version of an init that it does not find."""
    assert engine_checks.init(INFO).level == "ok"
    assert engine_checks.init({**INFO, "InitCommit": {"ID": "N/A"}}).level == "fail"


@pytest.mark.parametrize(
    ("free", "level"), [(0, "fail"), (DISK_FULL, "warn"), (DISK_LOW, "ok"), (None, "ok")]
)
def test_the_disk_of_the_engine_has_room(free: int | None, level: str) -> None:
    """Little room warns, hardly any fails; of another machine nothing is known."""
    assert engine_checks.storage(INFO, free).level == level


@pytest.mark.parametrize(
    ("option", "todo"), [("name=userns", DAEMON_FILE), ("name=rootless", "--engine")]
)
def test_changed_users_are_told(option: str, todo: str) -> None:
    """With remapped users or without root, a user inside is another one outside."""
    changed = engine_checks.uids(
        {**INFO, "SecurityOptions": ["name=seccomp,profile=builtin", option]}
    )

    assert engine_checks.uids(INFO).level == "ok"
    assert changed.level == "fail"
    assert todo in changed.todo


@pytest.mark.parametrize(
    ("options", "level"),
    [
        (["name=seccomp,profile=default"], "ok"),
        (["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"], "ok"),
        (["name=seccomp,profile=unconfined"], "warn"),
        (["name=apparmor"], "warn"),
        (None, "warn"),
    ],
)
def test_system_calls_should_be_filtered(options: list[str] | None, level: str) -> None:
    """No filter, or one that lets everything through, warns."""
    assert engine_checks.seccomp({**INFO, "SecurityOptions": options}).level == level
