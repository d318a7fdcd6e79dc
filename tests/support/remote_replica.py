"""A real replica process in remote mode; the test is its manager and its gateways.

No SSH takes part: the control socket is a plain Unix socket, as the end of a tunnel is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runtime_image.contract.control import RECORD_FILE, BindRequest, ReplicaRecord
from runtime_image.contract.enrolment import FetchedFile
from runtime_image.contract.link import VERSION, Flag, Kind
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.contract.model import to_json as model_json
from runtime_image.contract.server import ServerSpec
from runtime_image.contract.server import to_json as server_json
from runtime_image.link.frames import pack
from tests.support.blocking import BlockingLink
from tests.support.sidecar_process import TINY_SERVER

ID = "aaaa0001"
GREETING = "ab" * 32
PATIENCE_S = 60.0
HANDLER = """
import os

def predict(inputs, ctx):
    with open(os.path.join(os.path.dirname(__file__), "runs"), "a") as runs:
        runs.write("x")
    return {"y": 1}
"""
SPEC = ModelSpec("digits@1", handler="handler.py", inputs={"x": InputRule("json")})
MODEL_ROW = b'{"inputs": {"x": 1}}'


class RemoteReplica:
    """Run folder, control listener and process of one replica."""

    def __init__(
        self,
        root: Path,
        spec: ModelSpec | ServerSpec = SPEC,
        *,
        orphan_s: float = 60.0,
        environment: dict[str, str] | None = None,
        **changes: Any,
    ) -> None:
        """`changes`: other fields of the record."""
        self.spec = spec
        self._environment = environment or {}
        self.bound = f"default/{spec.revision}"
        self.run_dir = root / "run" / ID
        self.model_dir = root / "models"
        self.control_path = root / "run" / "control" / "ctl.sock"
        self.data_path = root / "run" / "data" / "data.sock"
        for folder in (self.run_dir, self.model_dir, *self._parents()):
            folder.mkdir(parents=True)
        (self.model_dir / "handler.py").write_text(HANDLER)
        (self.model_dir / "server.py").write_text(TINY_SERVER)
        self.log = root / "log"
        self._sockets: list[socket.socket] = []
        self.record = ReplicaRecord(
            id=ID,
            token="secret",
            role="serve",
            namespace="default",
            bound=self.bound,
            model_dir=str(self.model_dir),
            devices=("gpu2:cpu:0",),
            device_kind="cpu",
            engine="server" if isinstance(spec, ServerSpec) else "python",
            threads=1,
            orphan_s=orphan_s,
            memory_mib=0,
            launched_s=1e9,  # of another clock
            link=VERSION,
            host="gpu2",
            control=str(self.control_path),
            data=str(self.data_path),
            greeting=GREETING,
        )
        self.record = replace(self.record, **changes)
        (self.run_dir / RECORD_FILE).write_text(json.dumps(asdict(self.record)))
        self.listener: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def data_address(self) -> str:
        """Where gateways dial the replica."""
        return str(self.data_path)

    def _parents(self) -> tuple[Path, Path]:
        return self.control_path.parent, self.data_path.parent

    def listen(self) -> socket.socket:
        """Open the control socket, instead of an earlier one."""
        self.deafen()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(PATIENCE_S)
        self.listener.bind(str(self.control_path))
        self.listener.listen(16)
        return self.listener

    def deafen(self) -> None:
        """Close the control socket: no tunnel."""
        if self.listener is not None:
            self.listener.close()
        self.control_path.unlink(missing_ok=True)

    def launch(self) -> None:
        """Start the process."""
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-u", "-m", "runtime_image", str(self.run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.run_dir,
                env={
                    "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
                    **self._environment,
                },
                start_new_session=True,
            )

    def dialled(self) -> tuple[BlockingLink, dict[str, Any]]:
        """Accept the next connection; return it and its HELLO."""
        assert self.listener is not None
        sock, _ = self.listener.accept()
        link = self._link(sock)
        hello: dict[str, Any] = json.loads(link.next(Kind.HELLO).body)
        return link, hello

    def greeted(self, ping_ms: int = 0) -> BlockingLink:
        """Listen, launch, and welcome the first connection."""
        self.listen()
        self.launch()
        link, hello = self.dialled()
        assert hello["dial"] == 1
        link.send(Kind.WELCOME, aux=ping_ms)
        return link

    def bind(self, link: BlockingLink, files: list[FetchedFile] | None = None) -> None:
        """Send BIND, with the files to fetch."""
        spec = self.spec
        request = BindRequest(
            spec=server_json(spec) if isinstance(spec, ServerSpec) else model_json(spec),
            bound=self.bound,
            namespace="default",
            role="serve",
            devices=("gpu2:cpu:0",),
            device_kind="cpu",
            threads=1,
            memory_mib=0,
            assigned_s=1e9,
            phases={},
        )
        if files is not None:
            request["files"] = files
        link.send(Kind.BIND, body=json.dumps(request).encode())

    def ready(self, ping_ms: int = 0) -> BlockingLink:
        """Start, bind, and wait for LOADED; return the control link."""
        link = self.greeted(ping_ms)
        self.bind(link)
        self.loaded = json.loads(link.next(Kind.LOADED).body)
        return link

    def connect(self) -> BlockingLink:
        """Connect to the data socket, and read the greeting."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.data_path))
        link = self._link(sock)
        assert link.next(Kind.WELCOME).body == GREETING.encode()
        return link

    def stranger(self) -> socket.socket:
        """Connect to the data listener, without a word."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.data_path))
        return sock

    def gateway(self) -> RemoteGateway:
        """Connect a gateway to a sidecar."""
        return RemoteGateway(self)

    def _link(self, sock: socket.socket) -> BlockingLink:
        link = BlockingLink(sock)
        sock.settimeout(PATIENCE_S)
        self._sockets.append(sock)
        return link

    def runs(self) -> int:
        """Return how often the handler ran."""
        path = self.model_dir / "runs"
        return len(path.read_text()) if path.exists() else 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def resident_mib(self) -> float:
        """Return the process's memory."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def exit(self) -> int:
        """Wait for the end; return the exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End everything."""
        self.deafen()
        for sock in self._sockets:
            sock.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class RemoteGateway:
    """A gateway's link to a sidecar on another machine."""

    def __init__(self, replica: RemoteReplica) -> None:
        self._replica = replica
        self.link = replica.connect()
        self.greeting = self.link.hello()

    def channel(self, id: int, *, key: str = "") -> socket.socket:
        """Dial a channel and send CONNECT; return it."""
        link = self._replica.connect()
        link.send(Kind.CONNECT, id, (key or self.greeting["key"]).encode())
        return link.sock

    def open(self, id: int, flags: int = 0) -> socket.socket:
        """Send OPEN and CONNECT; return the channel."""
        self.link.send(Kind.OPEN, id, flags=flags)
        return self.channel(id)

    def reuse(self, id: int, old: int) -> None:
        """Send OPEN for an idle connection."""
        self.link.sock.sendall(b"".join(pack(Kind.OPEN, id, flags=Flag.REUSE, aux=old)))

    def end(self, id: int, *, is_kept: bool = False) -> None:
        """Send END."""
        self.link.send(Kind.END, id, flags=Flag.KEPT if is_kept else 0)
