from __future__ import annotations

import sys
from pathlib import Path

import pytest

from admin.cli import checks
from admin.cli.checks import Check
from admin.client import Client
from tests.support.admin_api import AdminApi, Canned


def test_checks_are_lines_with_what_to_do() -> None:
    """Each check is a line; below it stands what to do, if there is anything."""
    shown = checks.render([Check("ok", "a", "fine"), Check("fail", "long", "bad", "mend it")])

    assert shown == "ok    a     fine\nfail  long  bad\n            -> mend it"
    assert checks.to_json([Check("ok", "a", "fine")]) == [
        {"level": "ok", "name": "a", "found": "fine", "todo": ""}
    ]


@pytest.mark.parametrize(
    ("version", "level"), [((3, 10), "fail"), ((3, 11), "ok"), ((3, 14), "ok")]
)
def test_python_must_be_new_enough(version: tuple[int, int], level: str) -> None:
    """Python below 3.11 fails."""
    assert checks.python(version).level == level


def test_a_folder_that_can_be_made_is_fine(tmp_path: Path) -> None:
    """A data folder that is there, or whose parent is, is fine."""
    assert checks.folder(tmp_path).level == "ok"
    assert "makes it" in checks.folder(tmp_path / "a" / "b").found


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A file in the folder's place fails."""
    (tmp_path / "a").touch()

    assert checks.folder(tmp_path / "a").level == "fail"


@pytest.mark.parametrize(
    ("free", "level"), [(0, "fail"), (checks.DISK_FULL, "warn"), (checks.DISK_LOW, "ok")]
)
def test_a_full_disk_is_told(tmp_path: Path, free: int, level: str) -> None:
    """Little room warns, hardly any fails."""
    assert checks.disk(tmp_path / "new", free).level == level


def test_the_disk_is_looked_at(tmp_path: Path) -> None:
    """Without a number the real disk is asked."""
    assert checks.disk(tmp_path).found.endswith("left")


@pytest.mark.parametrize(
    ("text", "mode", "level"), [("t", 0o600, "ok"), ("t", 0o644, "fail"), ("", 0o600, "fail")]
)
def test_a_token_is_private(tmp_path: Path, text: str, mode: int, level: str) -> None:
    """A token that others can read, or an empty one, fails."""
    path = tmp_path / "admin.token"
    path.write_text(text)
    path.chmod(mode)

    assert checks.token(tmp_path).level == level


def test_no_token_is_a_warning(tmp_path: Path) -> None:
    """Before the first start there is no token, which is no error."""
    assert checks.token(tmp_path).level == "warn"
    assert checks.token(tmp_path / "x" / "y").level == "warn"


def test_a_token_behind_a_file_fails(tmp_path: Path) -> None:
    """What cannot be looked at is told with the system's reason."""
    (tmp_path / "a").touch()

    assert checks.token(tmp_path / "a").level == "fail"


@pytest.mark.parametrize(("length", "level"), [(88, "ok"), (89, "fail")])
def test_a_socket_path_has_107_bytes(length: int, level: str) -> None:
    """The folder leaves room for a replica's socket within the kernel's limit."""
    assert checks.sockets(Path("/" + "x" * (length - 1))).level == level


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
    """A degraded server warns, one that refuses or is silent fails."""
    api.on("GET", "/readyz", canned)

    assert checks.server(Client(api.url)).level == level


@pytest.mark.parametrize(
    ("canned", "level"),
    [
        (Canned({"items": []}), "ok"),
        (Canned({"title": "A key is needed"}, status=401), "fail"),
        (Canned(is_cut=True), "warn"),
    ],
)
def test_access_is_tried(api: AdminApi, canned: Canned, level: str) -> None:
    """A key that opens nothing fails; without a server nothing is known."""
    api.on("GET", "/admin/v1/functions", canned)

    assert checks.access(Client(api.url)).level == level


def test_the_engine_is_tried_in_its_own_process(tmp_path: Path) -> None:
    """An interpreter without the library, or none at all, fails with what to install."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'No module named onnxruntime' >&2\nexit 1\n")
    broken.chmod(0o700)

    found = checks.engine(str(broken))

    assert (found.level, found.found) == ("fail", "No module named onnxruntime")
    assert checks.engine("/nonexistent").level == "fail"


@pytest.mark.slow
def test_the_engine_of_this_interpreter_works() -> None:
    """The library of this very environment is found with its providers."""
    found = checks.engine(sys.executable)

    assert found.level == "ok"
    assert "CPUExecutionProvider" in found.found
