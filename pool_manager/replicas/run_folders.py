"""A replica's folders on disk: run folder, model folder, log file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from pool_manager.replicas import logs
from pool_manager.settings import PoolSettings
from registry.files import is_exhausted
from runtime_image.contract.control import (
    CONTROL_SOCKET,
    DATA_SOCKET,
    RECORD_FILE,
    ReplicaRecord,
)

TAIL_BYTES = 256 * 1024
"""What is kept of a log that has grown over its limit."""
GONE_KEPT_S = 3600.0
"""How long the logs of a function stay that is gone, or whose first deploy failed."""
BACKLOG = 64
STANDBY_LOGS = "_standby"
"""Folder of the logs of standbys; no function can be called that."""


class RunFolders:
    """Paths and files of each replica. All methods block."""

    def __init__(self, settings: PoolSettings, *, for_others: bool = False) -> None:
        """`for_others`: replicas are other users, each in a container that sees its own folders
        alone. Other users of this machine are kept out by the folders above."""
        self._settings = settings
        self._for_others = for_others
        for folder in (settings.run_dir, settings.model_dir, settings.log_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)

    def run_dir(self, id: str) -> Path:
        """The folder of a replica's sockets and record."""
        return self._settings.run_dir / id

    def model_dir(self, id: str) -> Path:
        """The folder of a replica's hard-linked model files."""
        return self._settings.model_dir / id

    def data_socket(self, id: str) -> Path:
        """Where gateways reach a replica."""
        return self.run_dir(id) / DATA_SOCKET

    def record(self, record: ReplicaRecord) -> None:
        """Write the record of a start, by which a later manager can adopt the replica."""
        self.run_dir(record.id).mkdir(mode=0o700)
        self._open(self.run_dir(record.id), 0o755)
        self._write(record)

    def rewrite(self, record: ReplicaRecord) -> None:
        """Put `record` in the place of the one that is there: readers see either one, whole.

        The old one keeps a name until the replica is removed. To free its blocks here would cost
        whoever waits for this replica's model milliseconds of the disk's time.
        """
        path = self.run_dir(record.id) / RECORD_FILE
        with contextlib.suppress(FileExistsError):
            os.link(path, path.with_name(f"{RECORD_FILE}.old"))
        self._write(record)

    def _write(self, record: ReplicaRecord) -> None:
        """Not fsynced: replicas end with their host, so this need only outlive this process."""
        run_dir = self.run_dir(record.id)
        fresh = run_dir / f"{RECORD_FILE}.new"
        fresh.touch(mode=0o600)
        self._open(fresh, 0o644)
        fresh.write_text(json.dumps(asdict(record)))
        fresh.rename(run_dir / RECORD_FILE)

    def _open(self, path: Path, mode: int) -> None:
        """The mode, whatever the umask keeps from others. Never of a blob: other replicas have the
        same file."""
        if self._for_others:
            path.chmod(mode)

    def read_records(self) -> dict[str, ReplicaRecord | None]:
        """Every run folder's record; None where it cannot be read. Files beside them, like sockets
        of the server's own, are no replica's. Raises OSError where no file can be opened."""
        records: dict[str, ReplicaRecord | None] = {}
        for run_dir in self._settings.run_dir.iterdir():
            if not run_dir.is_dir():
                continue
            try:
                data = json.loads((run_dir / RECORD_FILE).read_text())
                records[run_dir.name] = ReplicaRecord(**data)
            except (OSError, ValueError, TypeError) as error:
                if is_exhausted(error):
                    raise  # a replica without a record would be ended
                records[run_dir.name] = None
        return records

    def listen_control(self, id: str) -> socket.socket:
        """The control listener; an earlier manager's socket file is replaced."""
        listener = _listen(self.run_dir(id) / CONTROL_SOCKET)
        self._open(self.run_dir(id) / CONTROL_SOCKET, 0o666)
        return listener

    def listen_data(self, id: str) -> socket.socket:
        """The data listener, to be handed to the replica."""
        return _listen(self.data_socket(id))

    def log_file(self, function: str, id: str) -> Path:
        """Where a replica's output goes; the oldest logs of its function make room."""
        self._keep_logs(function, self._settings.logs_kept - 1)
        return self._log(function, id)

    def claim_log(self, function: str, id: str) -> Path:
        """Where a replica's output goes; what it wrote as a standby comes along.

        Its process goes on writing to the same file: only the name changes. The function may
        have one log too many then, until `trim_logs`.
        """
        path = self._log(function, id)
        with contextlib.suppress(FileNotFoundError):
            self._log(STANDBY_LOGS, id).rename(path)
            # Logs are ordered by age: this one is of the function's newest replica.
            os.utime(path)
        return path

    def trim_logs(self, function: str) -> None:
        """Remove a function's oldest logs over the limit; that may take the disk a while.

        Where it fails, as when another call removes the same, the next one does it.
        """
        with contextlib.suppress(OSError):
            self._keep_logs(function, self._settings.logs_kept)

    def _log(self, function: str, id: str) -> Path:
        folder = self._settings.log_dir / function
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{id}.log"

    def _keep_logs(self, function: str, count: int) -> None:
        for old in self.logs(function)[: -count or None]:
            old.unlink(missing_ok=True)

    def logs(self, function: str) -> list[Path]:
        """A function's logs, oldest first, but for those that another thread just removes."""
        ages = {}
        for path in (self._settings.log_dir / function).glob("*.log"):
            with contextlib.suppress(FileNotFoundError):
                ages[path] = path.stat().st_mtime
        return sorted(ages, key=ages.__getitem__)

    def outputs(self, function: str) -> list[tuple[str, bytes]]:
        """Replica ids and what is kept of their output, oldest first."""
        found = []
        for path in self.logs(function):
            # The oldest may make room for a new one at this moment.
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stem, logs.read_kept(path, self._settings.log_bytes)))
        return found

    def is_grown(self, path: Path) -> bool:
        """Whether a log may be over its limit: cheap enough for a second's tick."""
        try:
            return logs.disk_bytes(path) > self._settings.log_bytes
        except OSError:
            return False

    def bound_log(self, path: Path) -> bool:
        """Cut a log that has grown over its limit down to its tail; whether it had."""
        limit = self._settings.log_bytes
        with contextlib.suppress(OSError):
            return logs.bound_log(path, limit, min(TAIL_BYTES, limit // 2))
        return False

    def trim_all(self, functions: Collection[str], spared: Collection[Path], now_s: float) -> None:
        """Remove logs of functions that are gone for an hour, and the oldest of all while they are
        over their limit together. `spared` are still written to; `now_s` is in Unix seconds."""
        found = []
        for path in self._settings.log_dir.glob("*/*.log"):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, path, logs.disk_bytes(path)))
        over = sum(size for _, _, size in found) - self._settings.logs_bytes
        known = {*functions, STANDBY_LOGS}
        for written_s, path, size in sorted(found):
            is_old = path.parent.name not in known and now_s - written_s > GONE_KEPT_S
            if path in spared or not (over > 0 or is_old):
                continue
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                over -= size
        for folder in self._settings.log_dir.iterdir():
            # Only empty folders, and none that was just made for a new log.
            with contextlib.suppress(OSError):
                if now_s - folder.stat().st_mtime > GONE_KEPT_S:
                    folder.rmdir()

    def remove(self, id: str) -> None:
        """Remove a replica's run and model folders; what is missing is fine."""
        shutil.rmtree(self.run_dir(id), ignore_errors=True)
        self.remove_models(id)

    def remove_models(self, id: str) -> None:
        """Remove a replica's model folder; a missing one is fine."""
        shutil.rmtree(self.model_dir(id), ignore_errors=True)

    def empty_models(self, id: str) -> None:
        """Make a replica's model folder, or remove what lies in it.

        The folder itself stays: a container that was given it would go on to see the removed one.
        """
        folder = self.model_dir(id)
        folder.mkdir(mode=0o755, exist_ok=True)
        self._open(folder, 0o755)
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove_stale_models(self, keep: set[str]) -> None:
        """Remove model folders that belong to no replica."""
        for folder in self._settings.model_dir.iterdir():
            if folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)


def tail(path: Path, size: int) -> bytes:
    """The last `size` bytes of a file, from the start of a line; empty if it is not there."""
    try:
        with path.open("rb") as log:
            length = log.seek(0, os.SEEK_END)
            log.seek(max(0, length - size))
            data = log.read(size)
    except OSError:
        return b""
    return data.partition(b"\n")[2] if length > size else data


def tail_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last lines of a log as text, each at most 500 characters."""
    lines = tail(path, 64 * 1024).decode("utf-8", "replace").splitlines()
    return tuple(line[:500] for line in lines[-count:])


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(str(path))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
