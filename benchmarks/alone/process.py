"""One replica process; the benchmark acts as its manager and its gateway."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from runtime_image.contract.control import CONTROL_SOCKET, DATA_SOCKET, RECORD_FILE, ReplicaRecord
from runtime_image.contract.link import VERSION, Kind
from runtime_image.contract.model import ModelSpec
from runtime_image.link.frames import pack
from runtime_image.link.meta import RequestMeta, pack_request, unpack_answer
from tests.support.blocking import BlockingLink
from tests.support.greetings import bind_request

BOUND = "default/digits@1"
TIMEOUT_MS = 60_000


class ReplicaProcess:
    """A replica that serves a model, called over one data link."""

    def __init__(self, run_dir: Path, model_dir: Path, spec: ModelSpec, threads: int) -> None:
        record = ReplicaRecord(
            id="aaaa0001",
            token="secret",
            role="serve",
            namespace="default",
            bound=BOUND,
            model_dir=str(model_dir),
            devices=("cpu:0",),
            device_kind="cpu",
            engine="onnx",
            threads=threads,
            orphan_s=0.0,
            memory_mib=0,
            launched_s=time.monotonic(),
            link=VERSION,
            phases={},
        )
        (run_dir / RECORD_FILE).write_text(json.dumps(asdict(record)))
        control, data = _listener(run_dir / CONTROL_SOCKET), _listener(run_dir / DATA_SOCKET)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "runtime_image", str(run_dir)]
        )
        self.run_dir = run_dir
        self._control = BlockingLink(control.accept()[0])
        self._control.next(Kind.HELLO)
        socket.send_fds(self._control.sock, [b"".join(pack(Kind.WELCOME))], [data.fileno()])
        request = bind_request(spec, bound=BOUND, threads=threads)
        self._control.send(Kind.BIND, body=json.dumps(request).encode())
        self._control.next(Kind.LOADED)
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(run_dir / DATA_SOCKET))
        self.link = BlockingLink(sock)
        self.link.hello()
        self.engine_s = 0.0
        control.close()
        data.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the CPU seconds of all its threads so far (clock_getcpuclockid(3))."""
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def call(self, body: bytes, kind: str, in_flight: int, seconds: float) -> int:
        """Keep `in_flight` requests in flight for `seconds`; return the number of answers.

        Afterwards, `engine_s` is the engine's run time in seconds, summed from the answers.
        """
        self.engine_s = 0.0
        meta = pack_request(RequestMeta(kind, "", -1, ""))

        def request(id: int) -> bytes:
            return b"".join(pack(Kind.REQUEST, id, body, meta=meta, aux=TIMEOUT_MS))

        until_s = time.monotonic() + seconds
        count = owed = 0
        ids = list(range(1, in_flight + 1))
        while True:
            if time.monotonic() < until_s:
                self.link.sock.sendall(b"".join(map(request, ids)))
                owed += len(ids)
            if not owed:
                return count
            ids = self._answered()
            owed -= len(ids)
            count += len(ids)

    def _answered(self) -> list[int]:
        """Return the ids freed by the next answers; any other frame ends the benchmark."""
        ids: list[int] = []
        while True:
            frame = self.link.next()
            if frame.kind is Kind.RESPONSE:
                meta = unpack_answer(frame.meta)
                self.engine_s += meta.compute_us / meta.rows / 1e6
                ids.append(frame.id)
            elif frame.kind is not Kind.STARTED:
                raise SystemExit(f"expected an answer, got {frame}")
            if ids and not self.link._frames:
                return ids

    def close(self) -> None:
        """End the replica."""
        self.link.close()
        self._control.close()
        self._process.kill()
        self._process.wait()


def _listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


@contextmanager
def replica_process(model_dir: Path, spec: ModelSpec, threads: int = 1) -> Iterator[ReplicaProcess]:
    """Run a replica that serves `spec` from `model_dir` while the block runs."""
    with TemporaryDirectory(prefix="fn-") as run_dir:
        replica = ReplicaProcess(Path(run_dir), model_dir, spec, threads)
        try:
            yield replica
        finally:
            replica.close()
