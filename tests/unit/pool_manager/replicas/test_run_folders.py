"""A replica's folders on disk."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pool_manager.replicas.run_folders import (
    GONE_KEPT_S,
    STANDBY_LOGS,
    TAIL_BYTES,
    RunFolders,
    tail,
    tail_lines,
)
from pool_manager.settings import PoolSettings
from runtime_image.contract.control import ReplicaRecord
from tests.support.replicas import pool_settings

ID = "aaaa0001"
RECORD = ReplicaRecord(
    ID, "secret", "serve", "default", "default/digits@1", "m", ("cpu:0",), "cpu", "onnx",
    threads=1, orphan_s=60.0, memory_mib=0, launched_s=1.5, link=1, phases={"place": 2.0},
)  # fmt: skip


@pytest.fixture
def settings() -> Iterator[PoolSettings]:
    with pool_settings(log_bytes=1000, logs_kept=2) as made:
        yield made


@pytest.fixture
def folders(settings: PoolSettings) -> RunFolders:
    return RunFolders(settings)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_record_is_read_again(folders: RunFolders) -> None:
    """A record can be read after a restart, and only the owner may read it."""
    folders.record(RECORD)

    assert folders.read_records() == {ID: RECORD}
    assert mode(folders.run_dir(ID)) == 0o700
    assert mode(folders.run_dir(ID) / "replica.json") == 0o600


def test_a_slot_is_recorded_once(folders: RunFolders) -> None:
    """A second record with the same id is refused."""
    folders.record(RECORD)

    with pytest.raises(FileExistsError):
        folders.record(RECORD)


def test_a_record_is_replaced(folders: RunFolders) -> None:
    """A record can be replaced repeatedly, with the same file mode."""
    folders.record(RECORD)

    for bound in ("default/digits@2", "default/digits@3"):
        folders.rewrite(replace(RECORD, bound=bound))
        assert folders.read_records() == {ID: replace(RECORD, bound=bound)}

    assert mode(folders.run_dir(ID) / "replica.json") == 0o600


def test_only_a_record_can_be_replaced(folders: RunFolders) -> None:
    """`rewrite` without a record raises and creates none."""
    with pytest.raises(FileNotFoundError):
        folders.rewrite(RECORD)

    assert folders.read_records() == {}


def test_a_standby_is_read_again(folders: RunFolders) -> None:
    """A standby's record without a function can be read."""
    standby = replace(RECORD, bound="", namespace="", devices=(), role="standby")
    folders.record(standby)

    assert folders.read_records() == {ID: standby}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "x"}', '{"surprise": 1}'])
def test_an_unreadable_record_is_told(folders: RunFolders, text: str) -> None:
    """An unreadable, foreign or missing record is reported as None, so that the replica can be
    removed."""
    folders.run_dir(ID).mkdir()
    folders.run_dir("aaaa0002").mkdir()
    (folders.run_dir(ID) / "replica.json").write_text(text)

    assert folders.read_records() == {ID: None, "aaaa0002": None}


def test_listeners_are_heard(folders: RunFolders) -> None:
    """Both sockets accept connections, also if an earlier manager left its file."""
    folders.record(RECORD)
    folders.listen_control(ID).close()

    for listener, name in (
        (folders.listen_control(ID), "ctl.sock"),
        (folders.listen_data(ID), "data.sock"),
    ):
        with listener, socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(folders.run_dir(ID) / name))
            assert not listener.getblocking()
    assert folders.data_socket(ID) == folders.run_dir(ID) / "data.sock"


def test_a_listener_that_cannot_be_made_leaves_nothing(folders: RunFolders) -> None:
    """Without the run folder, listening raises and leaves no open socket."""
    with pytest.raises(OSError, match="No such file"):
        folders.listen_control(ID)


def test_old_logs_make_room(folders: RunFolders) -> None:
    """A function keeps the logs of its newest replicas, including the starting one."""
    for number in range(4):
        path = folders.log_file("digits", f"aaaa000{number}")
        path.touch()
        os.utime(path, (number, number))

    assert [path.stem for path in folders.logs("digits")] == ["aaaa0002", "aaaa0003"]
    assert folders.logs("other") == []


def test_the_log_of_a_standby_comes_along(folders: RunFolders) -> None:
    """A standby's log becomes the newest of its function, and its writer continues to append."""
    old = folders.log_file("digits", "aaaa0002")
    old.touch()
    with folders.log_file(STANDBY_LOGS, ID).open("a", buffering=1) as writer:
        writer.write("before\n")
        os.utime(writer.fileno(), (1, 1))
        os.utime(old, (2, 2))

        claimed = folders.claim_log("digits", ID)
        in_order = folders.logs("digits")
        writer.write("after\n")

    assert claimed.read_text() == "before\nafter\n"
    assert in_order == [old, claimed]
    assert folders.logs(STANDBY_LOGS) == []
    assert folders.claim_log("digits", ID) == claimed


def test_logs_over_the_limit_are_trimmed(folders: RunFolders) -> None:
    """The oldest logs are removed; a function without logs is no error."""
    for number in range(4):
        path = folders.claim_log("digits", f"aaaa000{number}")
        path.touch()
        os.utime(path, (number, number))

    folders.trim_logs("digits")
    folders.trim_logs("other")

    assert [path.stem for path in folders.logs("digits")] == ["aaaa0002", "aaaa0003"]


def test_a_log_that_goes_while_it_is_looked_for_is_left_out(
    folders: RunFolders, settings: PoolSettings
) -> None:
    """A log that is removed concurrently is left out."""
    for id in ("a", "b"):
        folders.log_file("f", id).touch()
    (settings.log_dir / "f" / "gone.log").symlink_to(settings.log_dir / "nothing")

    assert {path.stem for path in folders.logs("f")} == {"a", "b"}


def test_a_small_log_is_left_alone(folders: RunFolders) -> None:
    """A log up to the limit is not cut; a missing log is no error."""
    log = folders.log_file("digits", ID)
    log.write_bytes(b"x" * 1000)

    folders.bound_log(log)
    folders.bound_log(log.with_name("missing"))

    assert log.read_bytes() == b"x" * 1000


@pytest.mark.parametrize("log_bytes", [20_000, 3 * TAIL_BYTES])
def test_a_grown_log_keeps_its_tail(settings: PoolSettings, log_bytes: int) -> None:
    """The disk blocks above the limit are freed, and the writer appends after the kept part."""
    folders = RunFolders(replace(settings, log_bytes=log_bytes))
    log = folders.log_file("digits", ID)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"0123456789\n" * (log_bytes // 5))
        assert folders.is_grown(log)
        assert folders.bound_log(log)
        writer.write(b"the last word\n")

    assert log.stat().st_blocks * 512 <= log_bytes
    assert not folders.is_grown(log)
    [(_, kept)] = folders.outputs("digits")
    first, second, *_, last = kept.splitlines()
    assert (first, second) == (b"... earlier output was dropped ...", b"0123456789")
    assert last == b"the last word"


def test_a_log_that_is_missing_is_not_grown(folders: RunFolders, tmp_path: Path) -> None:
    """A missing log is not over its limit: it may have been removed."""
    assert not folders.is_grown(tmp_path / "missing")
    assert not folders.bound_log(tmp_path / "missing")


def written(folders: RunFolders, function: str, id: str, at_s: float) -> Path:
    """A log of two blocks, last written then."""
    path = folders.log_file(function, id)
    path.write_bytes(b"x" * 8192)
    os.utime(path, (at_s, at_s))
    return path


def test_all_logs_together_have_a_limit(settings: PoolSettings) -> None:
    """The oldest logs of any function are removed first, but none that is in use."""
    folders = RunFolders(replace(settings, logs_bytes=3 * 8192, logs_kept=9))
    paths = [written(folders, name, name, at) for at, name in enumerate("abcde", start=1)]

    folders.trim_all({*"abcde"}, {paths[0]}, now_s=9.0)

    assert [path.stem for path in paths if path.exists()] == ["a", "d", "e"]


def test_a_folder_without_logs_goes_when_it_is_old(folders: RunFolders) -> None:
    """An empty folder is removed only when it is old: it may have been created for a new log."""
    emptied = written(folders, "emptied", "a", 1.0).parent
    (emptied / "a.log").unlink()
    made_s = emptied.stat().st_mtime

    folders.trim_all(set(), set(), now_s=made_s + GONE_KEPT_S)
    is_spared = emptied.exists()
    folders.trim_all(set(), set(), now_s=made_s + GONE_KEPT_S + 1.0)

    assert (is_spared, emptied.exists()) == (True, False)


def test_logs_of_gone_functions_stay_for_an_hour(folders: RunFolders) -> None:
    """Logs of unknown functions are kept for an hour, e.g. of a failed deploy; standby logs have no
    function and are limited in number."""
    old = written(folders, "old", "a", 1000.0)
    new = written(folders, "new", "b", 1000.0 + GONE_KEPT_S)
    known = written(folders, "known", "c", 1000.0)
    standby = written(folders, STANDBY_LOGS, "d", 1000.0)

    folders.trim_all({"known"}, set(), now_s=1001.0 + GONE_KEPT_S)

    assert [path.exists() for path in (old, new, known, standby)] == [False, True, True, True]


def test_a_tail_begins_with_a_line(tmp_path: Path) -> None:
    """A partial first line is left out; a short or missing file is returned as it is."""
    path = tmp_path / "log"
    path.write_bytes(b"first\nsecond\nthird\n")

    assert tail(path, 10) == b"third\n"
    assert tail(path, 100) == b"first\nsecond\nthird\n"
    assert tail(tmp_path / "missing", 10) == b""


def test_last_lines_are_text(tmp_path: Path) -> None:
    """Lines are cut to 500 characters, and invalid UTF-8 is replaced."""
    path = tmp_path / "log"
    path.write_bytes(b"first\n" + b"x" * 600 + b"\n\xff\n")

    assert tail_lines(path, 2) == ("x" * 500, "\ufffd")


def test_a_replica_is_removed_with_all_it_had(folders: RunFolders) -> None:
    """Run and model folders are removed; a second removal has no effect."""
    folders.record(RECORD)
    folders.model_dir(ID).mkdir()

    folders.remove(ID)
    folders.remove(ID)

    assert folders.read_records() == {}
    assert not folders.model_dir(ID).exists()


def test_models_of_nobody_are_removed(folders: RunFolders) -> None:
    """Model folders are kept only for existing replicas."""
    for id in (ID, "aaaa0002"):
        folders.model_dir(id).mkdir()

    folders.remove_stale_models({ID})

    assert folders.model_dir(ID).exists()
    assert not folders.model_dir("aaaa0002").exists()


def test_a_model_folder_is_emptied_in_place(folders: RunFolders) -> None:
    """Emptying a model folder removes its contents but keeps the folder, which is created if
    missing."""
    folders.empty_models("aaaa0001")
    folder = folders.model_dir("aaaa0001")
    before = folder.stat().st_ino
    (folder / "weights").mkdir()
    (folder / "weights" / "w.bin").touch()
    (folder / "model.onnx").touch()

    folders.empty_models("aaaa0001")

    assert list(folder.iterdir()) == []
    assert folder.stat().st_ino == before


def test_outputs_are_read_by_age(folders: RunFolders) -> None:
    """The outputs of a function's replicas are returned oldest first."""
    for age, id in enumerate(("aaaa0002", "aaaa0001")):
        path = folders.log_file("f", id)
        path.write_text(id)
        os.utime(path, (age, age))

    assert folders.outputs("f") == [("aaaa0002", b"aaaa0002"), ("aaaa0001", b"aaaa0001")]
    assert folders.outputs("other") == []


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_run_folders_are_open_inside_of_private_ones(tmp_path: Path, umask: int) -> None:
    """If replicas run as other users, they can read folder and record and connect, but the private
    parent folders exclude other users of this machine."""
    settings = PoolSettings(tmp_path / "r", tmp_path / "m", tmp_path / "l")
    (tmp_path / "m").mkdir(mode=0o755)
    before = os.umask(umask)
    try:
        folders = RunFolders(settings, for_others=True)
        folders.record(RECORD)
        folders.rewrite(RECORD)
        folders.listen_control(ID).close()
        folders.empty_models(ID)
    finally:
        os.umask(before)

    modes = {path.name: path.stat().st_mode & 0o777 for path in folders.run_dir(ID).iterdir()}
    assert modes == {"replica.json": 0o644, "replica.json.old": 0o644, "ctl.sock": 0o666}
    for path in (folders.run_dir(ID), folders.model_dir(ID)):
        assert path.stat().st_mode & 0o777 == 0o755
        assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_token_is_kept_from_other_users(tmp_path: Path) -> None:
    """A token cannot be read by other users of this machine, although its file is readable for
    others."""
    with TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        settings = PoolSettings(Path(root, "r"), Path(root, "m"), Path(root, "l"))
        folders = RunFolders(settings, for_others=True)
        folders.record(RECORD)
        record = folders.run_dir(ID) / "replica.json"

        read = subprocess.run(["cat", record], user=65534, capture_output=True, check=False)

    assert read.stdout == b""
    assert b"Permission denied" in read.stderr


def test_run_folders_of_the_servers_own_user_stay_private(folders: RunFolders) -> None:
    """If replicas run as the server's user, run folders are private."""
    folders.record(RECORD)

    assert folders.run_dir(ID).stat().st_mode & 0o777 == 0o700
    assert (folders.run_dir(ID) / "replica.json").stat().st_mode & 0o777 == 0o600


def test_records_that_cannot_be_opened_are_not_missing(
    folders: RunFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without free descriptors `read_records` raises, so that no replica is ended for a missing
    record."""
    folders.record(RECORD)

    def exhausted(_path: Path) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", exhausted)

    with pytest.raises(OSError, match="Too many open files"):
        folders.read_records()


def test_what_is_no_folder_is_no_replicas(folders: RunFolders) -> None:
    """Files beside the run folders, like the server's sockets, are not replicas."""
    folders.record(RECORD)
    folders.run_dir("admin.sock").touch()

    assert folders.read_records() == {ID: RECORD}
