"""Files of a replica on disk: run folder, model folder, log file."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Collection
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
    record_from,
)

TAIL_BYTES = 256 * 1024
"""Bytes kept of a log that has grown over its limit."""
GONE_KEPT_S = 3600.0
"""Seconds for which logs are kept after a function is gone, or after its first deploy failed."""
BACKLOG = 64
STANDBY_LOGS = "_standby"
"""Folder of the logs of standbys; not a valid function name."""


class RunFolders:
    """Paths and files of replicas. All methods block."""

    def __init__(self, settings: PoolSettings, *, for_others: bool = False) -> None:
        """`for_others`: replicas run as other users, each in a container that sees only its own
        folders. The parent folders exclude other users of this machine."""
        self._settings = settings
        self._for_others = for_others
        for folder in (settings.run_dir, settings.model_dir, settings.log_dir):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)

    def run_dir(self, id: str) -> Path:
        """Return the folder of a replica's sockets and record."""
        return self._settings.run_dir / id

    def model_dir(self, id: str) -> Path:
        """Return the folder of a replica's hard-linked model files."""
        return self._settings.model_dir / id

    def data_socket(self, id: str) -> Path:
        """Return the path of the socket at which gateways connect to a replica."""
        return self.run_dir(id) / DATA_SOCKET

    def record(self, record: ReplicaRecord) -> None:
        """Create a replica's run folder with its record, by which a later manager adopts it."""
        self.run_dir(record.id).mkdir(mode=0o700)
        self._open(self.run_dir(record.id), 0o755)
        self._write(record)

    def rewrite(self, record: ReplicaRecord) -> None:
        """Replace a record atomically.

        The old file keeps a name until the replica is removed: freeing its blocks now would cost
        callers of the cold start milliseconds of disk time.
        """
        path = self.run_dir(record.id) / RECORD_FILE
        with contextlib.suppress(FileExistsError):
            os.link(path, path.with_name(f"{RECORD_FILE}.old"))
        self._write(record)

    def _write(self, record: ReplicaRecord) -> None:
        """Write a record. It is not fsynced: replicas end with their host, so the record only needs
        to outlive this process."""
        run_dir = self.run_dir(record.id)
        fresh = run_dir / f"{RECORD_FILE}.new"
        fresh.touch(mode=0o600)
        self._open(fresh, 0o644)
        fresh.write_text(json.dumps(asdict(record)))
        fresh.rename(run_dir / RECORD_FILE)

    def _open(self, path: Path, mode: int) -> None:
        """Set a file's mode regardless of the umask, if replicas run as other users. Never call it
        on a blob, which is hard-linked to other replicas' folders."""
        if self._for_others:
            path.chmod(mode)

    def read_records(self) -> dict[str, ReplicaRecord | None]:
        """Return the record of every run folder, None if it cannot be read. Files beside the
        folders, like the server's sockets, are skipped. Raises OSError if file descriptors are
        exhausted."""
        records: dict[str, ReplicaRecord | None] = {}
        for run_dir in self._settings.run_dir.iterdir():
            if not run_dir.is_dir():
                continue
            try:
                data = json.loads((run_dir / RECORD_FILE).read_text())
                records[run_dir.name] = record_from(data)
            except (OSError, ValueError, TypeError) as error:
                if is_exhausted(error):
                    raise  # otherwise the replica would be released for its missing record
                records[run_dir.name] = None
        return records

    def listen_control(self, id: str) -> socket.socket:
        """Open the control listener; replaces the socket file of an earlier manager."""
        listener = _listen(self.run_dir(id) / CONTROL_SOCKET)
        self._open(self.run_dir(id) / CONTROL_SOCKET, 0o666)
        return listener

    def listen_data(self, id: str) -> socket.socket:
        """Open the data listener, which is passed to the replica."""
        return _listen(self.data_socket(id))

    def log_file(self, function: str, id: str) -> Path:
        """Return the path of a replica's log; removes the oldest logs of its function over the
        limit."""
        self._keep_logs(function, self._settings.logs_kept - 1)
        return self._log(function, id)

    def claim_log(self, function: str, id: str) -> Path:
        """Return the path of a replica's log, which keeps its output as a standby.

        The process continues to write to the same file; the file is only renamed. The function may
        then have one log too many until `trim_logs`.
        """
        path = self._log(function, id)
        with contextlib.suppress(FileNotFoundError):
            self._log(STANDBY_LOGS, id).rename(path)
            # Logs are ordered by age, and this is the function's newest replica.
            os.utime(path)
        return path

    def trim_logs(self, function: str) -> None:
        """Remove a function's oldest logs over the limit; this may be slow.

        If it fails, e.g. because another call removes the same files, the next call retries.
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
        """Return a function's logs, oldest first; files that another thread removes are skipped."""
        ages = {}
        for path in (self._settings.log_dir / function).glob("*.log"):
            with contextlib.suppress(FileNotFoundError):
                ages[path] = path.stat().st_mtime
        return sorted(ages, key=ages.__getitem__)

    def outputs(self, function: str) -> list[tuple[str, bytes]]:
        """Return replica ids and their kept output, oldest first."""
        found = []
        for path in self.logs(function):
            # The oldest log may be removed concurrently, to make room for a new one.
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stem, logs.read_kept(path, self._settings.log_bytes)))
        return found

    def is_grown(self, path: Path) -> bool:
        """Whether a log may be over its limit: a check cheap enough for every tick."""
        try:
            return logs.disk_bytes(path) > self._settings.log_bytes
        except OSError:
            return False

    def bound_log(self, path: Path) -> bool:
        """Cut a log that has grown over its limit down to its end; True if it was cut."""
        limit = self._settings.log_bytes
        with contextlib.suppress(OSError):
            return logs.bound_log(path, limit, min(TAIL_BYTES, limit // 2))
        return False

    def trim_all(self, functions: Collection[str], spared: Collection[Path], now_s: float) -> None:
        """Remove logs of functions other than `functions` that were last written more than
        GONE_KEPT_S ago, and the oldest logs while the total is over its limit. `spared` logs are
        in use and kept; `now_s` is Unix seconds."""
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
            # Only empty folders, and none that was just created for a new log.
            with contextlib.suppress(OSError):
                if now_s - folder.stat().st_mtime > GONE_KEPT_S:
                    folder.rmdir()

    def remove(self, id: str) -> None:
        """Remove a replica's run and model folders, if they exist."""
        shutil.rmtree(self.run_dir(id), ignore_errors=True)
        self.remove_models(id)

    def remove_models(self, id: str) -> None:
        """Remove a replica's model folder, if it exists."""
        shutil.rmtree(self.model_dir(id), ignore_errors=True)

    def empty_models(self, id: str) -> None:
        """Create a replica's model folder, or remove its contents.

        An existing folder is kept: a container that mounts it would otherwise keep the removed one.
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
        """Remove the model folders of all replicas that are not in `keep`."""
        for folder in self._settings.model_dir.iterdir():
            if folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)


def tail(path: Path, size: int) -> bytes:
    """Return the last `size` bytes of a file, from the start of a line; empty if unreadable."""
    try:
        with path.open("rb") as log:
            length = log.seek(0, os.SEEK_END)
            log.seek(max(0, length - size))
            data = log.read(size)
    except OSError:
        return b""
    return data.partition(b"\n")[2] if length > size else data


def tail_lines(path: Path, count: int) -> tuple[str, ...]:
    """Return the last lines of a log as text, each with at most 500 characters."""
    lines = tail(path, 64 * 1024).decode("utf-8", "replace").splitlines()
    return tuple(line[:500] for line in lines[-count:])


def _listen(path: Path) -> socket.socket:
    """Listen at a path. It is bound by its name in an open folder: /proc/net/unix shows the bound
    name to everything in the network of a process that connects, so also to servers."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{path.name}")
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock


def new_ids(run_dir: Path) -> Callable[[], str]:
    """Return a generator of replica ids: eight hex digits, counted up from a random number, so that
    ids of earlier servers (whose logs are kept) rarely recur. Ids with a folder in `run_dir` are
    skipped."""
    numbers = itertools.count(secrets.randbits(32))

    def new_id() -> str:
        while (run_dir / (id := f"{next(numbers) % 2**32:08x}")).exists():
            pass
        return id

    return new_id
