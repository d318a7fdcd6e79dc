"""A real sidecar process with a scripted manager and scripted gateways, over blocking sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runtime_image.contract.control import (
    CONTROL_SOCKET,
    DATA_SOCKET,
    RECORD_FILE,
    BindRequest,
    ReplicaRecord,
)
from runtime_image.contract.link import SOCKET_NOTICE, VERSION, Flag, Kind
from runtime_image.contract.server import ServerSpec, to_json
from runtime_image.link.frames import Frame, pack
from runtime_image.link.handshake import pack_bind
from tests.support.blocking import BlockingLink

ID = "aaaa0001"
KEY = "default/web@1"
PATIENCE_S = 60.0
PATIENT_FOR_LESS = """
import runtime_image.contract.server as contract
contract.MAX_GRACE_S = contract.QUIESCE_S = 0.3
import runtime_image.server.trial
runtime_image.server.trial.BODY_S = 0.3
"""
"""A sidecar's waits of seconds, cut short."""
_RUN = "import runpy; runpy.run_module('runtime_image', run_name='__main__', alter_sys=True)"
TINY_SERVER = '''
import http.server, json, os, signal, socket, socketserver, subprocess, sys, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        what = self.path.partition("?")[0]
        if what == "/stream":
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"begun")
            self.wfile.flush()
            self.rfile.read()
            return
        if what == "/eat":
            self.server.eaten = b"x" * (400 * 2**20)
        if what == "/exit":
            os._exit(3)
        if what == "/refuse":
            # Other threads go on; the listener is closed once this answer is written.
            threading.Thread(target=self.server.shutdown_listener, daemon=True).start()
        if what in ("/fail", "/hang", "/close"):
            self.server.way = what
        elif what == "/quick" and self.server.way == "/fail":
            self.send_error(503)
            return
        elif self.server.way == "/close":
            self.close_connection = True
            return
        elif self.server.way == "/hang":
            time.sleep(600)
        if what == "/orphan":
            script = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(600)"
            subprocess.run([sys.executable, "-c", script])
        if what == "/environment":
            body = json.dumps(dict(os.environ)).encode()
        elif what == "/look":
            body = json.dumps(look()).encode()
        else:
            body = b"hello"
        is_foreign = False
        if what == "/host":
            body = self.headers["Host"].encode()
            is_foreign = self.headers["Host"] != os.environ["HOST"]
        refusal = int(os.environ.get("REFUSAL", "503"))
        self.send_response(refusal if what == "/busy" or is_foreign else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass

def look():
    """What the server sees of its surroundings."""
    seen = {"fds": [], "cwd": os.getcwd(), "sid": os.getsid(0) == os.getpid()}
    for fd in os.listdir("/proc/self/fd"):
        try:
            seen["fds"].append(os.readlink("/proc/self/fd/" + fd))
        except OSError:
            pass
    try:
        open("written", "w").close()
        seen["bundle"] = "written"
    except OSError as error:
        seen["bundle"] = error.strerror
    root = os.path.dirname(os.path.dirname(os.environ["HOME"]))
    seen["pids"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    seen["run"] = sorted(os.listdir(root))
    open(os.environ["HOME"] + "/x", "w").close()
    open(os.environ["TMPDIR"] + "/x", "w").close()
    try:
        # Without a PID namespace the parent is the sidecar; in one, it has none, and pid 1 is ours.
        seen["token"] = open("/proc/%d/root%s/replica.json" % (os.getppid() or 1, root)).read()
    except OSError as error:
        seen["token"] = error.strerror
    return seen

class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    way = ""

    def shutdown_listener(self):
        self.shutdown()
        self.socket.close()
        time.sleep(600)

class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    way = ""

def main(port, *options):
    if "ignore-term" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "exit" in options:
        print("bye", flush=True)
        return
    if port.startswith("/"):
        Handler.address_string = lambda self: "unix"
        UnixServer(port, Handler).serve_forever()
    host = "::1" if "v6" in options else "127.0.0.1"
    if host == "::1":
        Server.address_family = socket.AF_INET6
    Server((host, int(port)), Handler).serve_forever()
    time.sleep(600)

main(*sys.argv[1:])
'''


class Gateway:
    """A gateway's end of a data link, with its side channel."""

    def __init__(self, path: Path) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE_S)
        sock.connect(str(path))
        self.side, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.side.settimeout(PATIENCE_S)
        hello = b"".join(pack(Kind.HELLO, aux=VERSION))
        socket.send_fds(sock, [hello], [theirs.fileno()])
        theirs.close()
        self.link = BlockingLink(sock)
        sock.settimeout(PATIENCE_S)
        self._sockets: dict[int, socket.socket] = {}
        self.greeting: dict[str, Any] = json.loads(self.link.next(Kind.HELLO).body)

    def open(self, id: int, flags: int = 0) -> socket.socket:
        """Send OPEN; return the connection."""
        self.link.send(Kind.OPEN, id, flags=flags)
        return self.take(id)

    def take(self, id: int) -> socket.socket:
        """Return the connection of exchange `id`, which is next in the side channel."""
        data, descriptors, _, _ = socket.recv_fds(self.side, 16, 1)
        assert SOCKET_NOTICE.unpack(data) == (id,)
        sock = socket.socket(fileno=descriptors[0])
        sock.settimeout(PATIENCE_S)
        self._sockets[id] = sock
        return sock

    def taken(self, id: int) -> socket.socket:
        """Return a connection that was taken before."""
        return self._sockets[id]

    def end(self, id: int, *, is_kept: bool = False) -> None:
        """Send END."""
        self.link.send(Kind.END, id, flags=Flag.KEPT if is_kept else 0)

    def close(self) -> None:
        """End the link, and keep the connections."""
        self.link.close()
        self.side.close()

    def close_all(self) -> None:
        """End the link and close the connections."""
        self.close()
        for sock in self._sockets.values():
            sock.close()


def ask(sock: socket.socket, path: str = "/", *, to_end: bool = True) -> bytes:
    """Send a GET; return the answer, to the end of its body if `to_end`."""
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(sock)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
    while to_end and len(body) < length:
        body += _some(sock)
    return body if to_end else data


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise EOFError("the connection has ended")
    return data


class Sidecar:
    """A sidecar process whose manager is the test. `preamble`: code that runs before it, such as
    PATIENT_FOR_LESS."""

    def __init__(
        self,
        root: Path,
        spec: ServerSpec,
        *,
        role: Any = "serve",
        memory_mib: int = 0,
        preamble: str = "",
    ):
        self.spec = spec
        self.preamble = preamble
        self.run_dir = root / "r" / ID
        self.model_dir = root / "m" / ID
        self.run_dir.mkdir(parents=True)
        self.model_dir.mkdir(parents=True)
        (self.model_dir / "server.py").write_text(TINY_SERVER)
        self.log = root / "log"
        self.role = role
        self.memory_mib = memory_mib
        self._gateways: list[Gateway] = []
        self._listen()
        self.data_listener = _listener(self.run_dir / DATA_SOCKET)
        self.launched_s = time.monotonic()
        self._write_record()
        self.process = self._launch()
        self.control = self.greet()

    def _listen(self) -> None:
        (self.run_dir / CONTROL_SOCKET).unlink(missing_ok=True)
        self.control_listener = _listener(self.run_dir / CONTROL_SOCKET)

    def _write_record(self) -> None:
        record = ReplicaRecord(
            id=ID,
            token="secret",
            role=self.role,
            namespace="default",
            bound=KEY,
            model_dir=str(self.model_dir),
            devices=("cpu:0",),
            device_kind="cpu",
            engine="server",
            threads=1,
            orphan_s=2.0,
            memory_mib=self.memory_mib,
            launched_s=self.launched_s,
            link=VERSION,
        )
        (self.run_dir / RECORD_FILE).write_text(json.dumps(asdict(record)))

    def _launch(self) -> subprocess.Popen[bytes]:
        environment = {"PATH": f"{Path(sys.executable).parent}:{os.defpath}", "X_SECRET": "1"}
        start = ["-c", self.preamble + _RUN] if self.preamble else ["-m", "runtime_image"]
        with self.log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-u", *start, str(self.run_dir)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.run_dir,
                env=environment,
                start_new_session=True,
            )

    def greet(self) -> BlockingLink:
        """Accept the sidecar's control link; `hello` is what it says."""
        sock, _ = self.control_listener.accept()
        sock.settimeout(PATIENCE_S)
        link = BlockingLink(sock)
        sock.settimeout(PATIENCE_S)
        self.hello: dict[str, Any] = json.loads(link.next(Kind.HELLO).body)
        welcome = b"".join(pack(Kind.WELCOME))
        if "loaded" in self.hello:
            sock.sendall(welcome)
        else:
            socket.send_fds(sock, [welcome], [self.data_listener.fileno()])
        return link

    def restart_manager(self) -> None:
        """Lose the control link and accept the next one."""
        self.control_listener.close()
        self._listen()
        self.control.close()
        self.control = self.greet()

    def bind(self) -> None:
        """Send BIND."""
        request = BindRequest(
            spec=to_json(self.spec),
            bound=KEY,
            namespace="default",
            role=self.role,
            devices=("cpu:0",),
            device_kind="cpu",
            threads=1,
            memory_mib=self.memory_mib,
            assigned_s=time.monotonic(),
            phases={},
        )
        self.control.sock.sendall(b"".join(pack_bind(request)))

    def ready(self) -> dict[str, Any]:
        """Start the server; return LOADED's body."""
        self.bind()
        loaded: dict[str, Any] = json.loads(self.expect(Kind.LOADED).body)
        return loaded

    def failed(self) -> dict[str, Any]:
        """Start the server, which must fail; return LOAD_FAILED's body."""
        self.bind()
        failure: dict[str, Any] = json.loads(self.expect(Kind.LOAD_FAILED).body)
        return failure

    def watch(self) -> None:
        """Ask for readings, as a manager of this release does."""
        self.control.sock.sendall(b"".join(pack(Kind.PING, flags=Flag.HEALTH)))
        self.expect(Kind.PONG)

    def health(self, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first reading for which `until` holds."""
        while True:
            reading: dict[str, Any] = json.loads(self.expect(Kind.HEALTH).body)
            if until(reading):
                return reading

    def expect(self, kind: Kind) -> Frame:
        """Return the next frame, which must be of this kind; the log explains another one. PROBED,
        which a slow start sends every second, is skipped unless it is expected."""
        try:
            while (frame := self.control.next()).kind is Kind.PROBED is not kind:
                pass
            assert frame.kind is kind, frame
            return frame
        except (EOFError, AssertionError) as error:
            raise AssertionError(f"{error!r}; log: {self.log.read_text()}") from error

    def gateway(self) -> Gateway:
        """Connect a gateway."""
        gateway = Gateway(self.run_dir / DATA_SOCKET)
        self._gateways.append(gateway)
        return gateway

    def exit_code(self) -> int:
        """Wait for the sidecar's end."""
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Kill the sidecar."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for gateway in self._gateways:
            gateway.close_all()
        self.control.close()
        self.control_listener.close()
        self.data_listener.close()


def _listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(8)
    listener.settimeout(PATIENCE_S)
    return listener


def tiny(*options: str, **changes: Any) -> ServerSpec:
    """Return the specification of the tiny server."""
    command = (sys.executable, "-I", "server.py", "${PORT}", *options)
    given: dict[str, Any] = {"command": command, "start_s": 30.0, "stop_grace_s": 5.0, **changes}
    return ServerSpec("web@1", **given)


@contextmanager
def sidecar(spec: ServerSpec, **changes: Any) -> Iterator[Sidecar]:
    """Run a sidecar in a folder of its own, short enough for socket paths."""
    with TemporaryDirectory(prefix="fn-", ignore_cleanup_errors=True) as name:
        started = Sidecar(Path(name), spec, **changes)
        try:
            yield started
        finally:
            started.close()
