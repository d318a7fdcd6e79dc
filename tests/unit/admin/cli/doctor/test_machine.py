from __future__ import annotations

import sys
from pathlib import Path

import pytest

from admin.cli.doctor import machine
from admin.cli.doctor.machine import render, softened, to_json
from admin.client.client import Client
from hosts.checks import Check
from tests.support.admin_api import AdminApi, Canned


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 14), "ok")]
)
def test_python_must_be_new_enough(version: tuple[int, int], level: str) -> None:
    """Python below 3.11 fails."""
    assert machine.python(version).level == level


def test_a_folder_that_can_be_made_is_fine(tmp_path: Path) -> None:
    """A data folder that exists, or whose parent exists, passes."""
    assert machine.folder(tmp_path).level == "ok"
    assert "creates it" in machine.folder(tmp_path / "a" / "b").found


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A file at the data folder's path fails."""
    (tmp_path / "a").touch()

    assert machine.folder(tmp_path / "a").level == "fail"


@pytest.mark.parametrize(
    ("free", "level"), [(0, "fail"), (machine.DISK_FULL, "warn"), (machine.DISK_LOW, "ok")]
)
def test_a_full_disk_is_told(tmp_path: Path, free: int, level: str) -> None:
    """Little room warns, hardly any fails."""
    assert machine.disk(tmp_path / "new", free).level == level


def test_the_disk_is_looked_at(tmp_path: Path) -> None:
    """Without a given number, the real disk is measured."""
    assert machine.disk(tmp_path).found.endswith("free")


@pytest.mark.parametrize(
    ("text", "mode", "level"), [("t", 0o600, "ok"), ("t", 0o644, "fail"), ("", 0o600, "fail")]
)
def test_a_token_is_private(tmp_path: Path, text: str, mode: int, level: str) -> None:
    """A token that others can read, or an empty one, fails."""
    path = tmp_path / "admin.token"
    path.write_text(text)
    path.chmod(mode)

    assert machine.token(tmp_path).level == level


def test_no_token_is_a_warning(tmp_path: Path) -> None:
    """A missing token is a warning: there is none before the first start."""
    assert machine.token(tmp_path).level == "warn"
    assert machine.token(tmp_path / "x" / "y").level == "warn"


def test_a_token_behind_a_file_fails(tmp_path: Path) -> None:
    """A token that cannot be examined fails with the system's reason."""
    (tmp_path / "a").touch()

    assert machine.token(tmp_path / "a").level == "fail"


def test_a_key_of_secrets_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    """A missing key is no finding; one that others can read is, with the command that mends it."""
    path = tmp_path / "secret.key"
    assert machine.secret_key(path) == []

    path.touch(mode=0o600)
    assert [check.level for check in machine.secret_key(path)] == ["ok"]
    path.chmod(0o640)
    (check,) = machine.secret_key(path)
    assert (check.level, check.todo) == ("warn", f"chmod 600 {path}")
    assert [each.level for each in machine.secret_key(path / "below")] == ["fail"]


@pytest.mark.parametrize(
    ("length", "level"), [(74, "ok"), (75, "warn"), (88, "warn"), (89, "fail")]
)
def test_a_socket_path_has_107_bytes(length: int, level: str) -> None:
    """The data folder's path must leave room for a replica's socket within the kernel's limit, and
    for that of a function's server, which is longer."""
    assert machine.sockets(Path("/" + "x" * (length - 1))).level == level


def test_the_engine_is_tried_in_its_own_process(tmp_path: Path) -> None:
    """An interpreter without ONNX Runtime, or a missing one, fails with what to install."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'No module named onnxruntime' >&2\nexit 1\n")
    broken.chmod(0o700)

    found = machine.engine(str(broken))

    assert (found.level, found.found) == ("fail", "No module named onnxruntime")
    assert machine.engine("/nonexistent").level == "fail"


@pytest.mark.slow
def test_the_engine_of_this_interpreter_works() -> None:
    """ONNX Runtime of this environment is found with its providers."""
    found = machine.engine(sys.executable)

    assert found.level == "ok"
    assert "CPUExecutionProvider" in found.found


def test_checks_are_lines_with_what_to_do() -> None:
    """Each check is a line, followed by the advice if there is any."""
    shown = render([Check("ok", "a", "fine"), Check("fail", "long", "bad", "mend it")])

    assert shown == "ok    a     fine\nfail  long  bad\n            -> mend it"
    assert to_json([Check("ok", "a", "fine")]) == [
        {"level": "ok", "name": "a", "found": "fine", "todo": ""}
    ]


def test_failures_of_unused_parts_only_warn() -> None:
    """A failed check of something unused becomes a warning that keeps its advice."""
    checks = [Check("ok", "a", "fine"), Check("fail", "b", "bad", "mend it")]

    assert softened(checks) == [checks[0], Check("warn", "b", "bad", "mend it")]


@pytest.mark.parametrize(
    ("canned", "level"),
    [
        (Canned({"status": "ok", "reasons": []}), "ok"),
        (Canned({"status": "degraded", "reasons": ["disk: full"]}), "warn"),
        (Canned({"title": "Shutting down"}, status=503), "fail"),
        (Canned(is_cut=True), "fail"),
    ],
)
def test_the_server_is_asked(api: AdminApi, canned: Canned, level: str) -> None:
    """A degraded server warns; one that refuses or does not answer fails."""
    api.on("GET", "/readyz", canned)

    assert machine.server(Client(api.url)).level == level


@pytest.mark.parametrize(
    ("canned", "level"),
    [
        (Canned({"items": []}), "ok"),
        (Canned({"title": "A key is needed"}, status=401), "fail"),
        (Canned(is_cut=True), "warn"),
    ],
)
def test_access_is_tried(api: AdminApi, canned: Canned, level: str) -> None:
    """A key without access fails; without a server the result is unknown."""
    api.on("GET", "/admin/v1/functions", canned)

    assert machine.access(Client(api.url)).level == level


@pytest.mark.parametrize(
    ("canned", "found"),
    [
        (Canned({"items": [{"name": "a", "reserved_user": ""}, {"name": "old"}]}), []),
        (
            Canned({"items": [{"name": one, "reserved_user": "root"} for one in ("a", "b")]}),
            ["a may run as root; b may run as root"],
        ),
        (Canned({"title": "A key is needed"}, status=401), []),
        (Canned(is_cut=True), []),
    ],
)
def test_reserved_user_ids_are_a_warning(api: AdminApi, canned: Canned, found: list[str]) -> None:
    """Functions that may have one are named in one check with the remedy; without any, and without
    an answer, there is none."""
    api.on("GET", "/admin/v1/functions", canned)

    checks = machine.reserved_users(Client(api.url))

    assert [(one.level, one.name, one.found) for one in checks] == [
        ("warn", "user ids", text) for text in found
    ]
    assert all("user =" in one.todo for one in checks)


REPLICA = b"python3\0-I\0-u\0-m\0runtime_image\0/run/fngate\0"


def process(proc: Path, pid: int, seccomp: str, words: bytes = REPLICA) -> int:
    """Create a process in a fake /proc."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes(words)
    (proc / str(pid) / "status").write_text(f"Name:\tpython3\nSeccomp:\t{seccomp}\n")
    return pid


@pytest.mark.parametrize(("count", "text"), [(1, "1 running replica"), (2, "2 running replicas")])
def test_filtered_replicas_are_fine(tmp_path: Path, count: int, text: str) -> None:
    """Filtered replicas pass and are counted; a container's init is not counted."""
    pids = [process(tmp_path, 10 + at, "2") for at in range(count)]
    init = process(tmp_path, 1, "0", b"/sbin/docker-init\0--\0python3\0")

    found = machine.system_calls([*pids, init, 999], tmp_path)

    assert found == [Check("ok", "replica filter", f"Seccomp: 2 in {text}")]


def test_a_replica_without_a_filter_fails(tmp_path: Path) -> None:
    """A replica without a seccomp filter fails and is named."""
    pids = [process(tmp_path, 10, "2"), process(tmp_path, 11, "0")]

    [check] = machine.system_calls(pids, tmp_path)

    assert (check.level, check.todo) == ("fail", "rebuild its image: fnctl image build cpu")
    assert check.found == "process 11 has Seccomp: 0, expected 2"


def test_without_a_replica_nothing_is_said(tmp_path: Path) -> None:
    """Without replicas there is no check."""
    assert machine.system_calls([], tmp_path) == []
    assert machine.replica_pids(tmp_path) == []
