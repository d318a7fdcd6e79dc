from __future__ import annotations

import json
from pathlib import Path

import pytest

from admin.cli.doctor.isolation import TRY, namespaces

NO_PROC = "namespaces are refused: mount /proc: Operation not permitted"
NO_USERS = "namespaces are refused: unshare: Operation not permitted"


def answering(network: str, processes: str, files: str = "") -> tuple[str, ...]:
    """Return a command with the answer of an attempt."""
    return ("echo", json.dumps([network, processes, files]))


def test_a_machine_that_permits_all_passes() -> None:
    """Every namespace can be had."""
    assert namespaces(answering("", "")).level == "ok"


def test_no_pid_namespace_is_a_warning() -> None:
    """The consequence and the remedy are named."""
    check = namespaces(answering("", NO_PROC))

    assert check.level == "warn"
    assert check.found == f"{NO_PROC}: a process may outlive a sidecar that is killed"
    assert "/proc" in check.todo


@pytest.mark.parametrize(
    ("setting", "value", "todo"),
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            "kernel/unprivileged_userns_clone",
            "0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        ("kernel/unprivileged_userns_clone", "1", "permit user namespaces: "),
    ],
)
def test_refused_namespaces_are_a_warning(
    tmp_path: Path, setting: str, value: str, todo: str
) -> None:
    """The setting that refuses them is named, if it is known."""
    (tmp_path / "kernel").mkdir()
    (tmp_path / setting).write_text(f"{value}\n")

    check = namespaces(answering(NO_USERS, NO_USERS), tmp_path)

    assert check.level == "warn"
    assert check.found.startswith(f"{NO_USERS}: local users can reach")
    assert check.todo.startswith(todo)


@pytest.mark.parametrize("files", ["", NO_USERS])
def test_sockets_below_run_are_named_where_they_are_in_reach(tmp_path: Path, files: str) -> None:
    """A mount namespace may be had where others are refused, and hides them."""
    check = namespaces(answering(NO_USERS, NO_USERS, files), tmp_path)

    assert ("sockets below /run" in check.found) is bool(files)
    assert ("can write to their packages" in check.found) is bool(files)


@pytest.mark.parametrize("command", [("false",), ("/nonexistent",), ("echo", "[1]")])
def test_an_attempt_without_an_answer_is_a_warning(command: tuple[str, ...]) -> None:
    """Nothing is known then."""
    check = namespaces(command)

    assert (check.level, check.found[:9]) == ("warn", "not tried")


@pytest.mark.slow
def test_this_machine_is_tried() -> None:
    """The attempt gives an answer, whatever this machine permits."""
    assert "isolate" in TRY
    assert not namespaces().found.startswith("not tried")
