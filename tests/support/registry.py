"""A private registry for tests: Debian's docker-registry, in the network of the shared engine.

That engine has a network of its own without a way out, so the registry runs there too; the engine
takes one at 127.0.0.1 without TLS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker

from tests.support.engine import connected, refuse

PROGRAM = "docker-registry"
USER, PASSWORD = "operator", "correct horse"
HTPASSWD = "operator:$2y$05$sJ.7YtJiQMIngXK6VtZfreOuoKLLFJ1s/knZa3BnEeZwSDPea9DXO\n"
"""Line of htpasswd(1) for the two."""
START_S = 20.0
KIND = "application/vnd.docker.distribution.manifest"
FRONT = """
import socket, sys, threading

target = ("127.0.0.1", int(sys.argv[1]))
rule, most, passed, changed = "pass", 0, 0, threading.Event()
guard = threading.Lock()

def copy(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass

def answer(server, client):
    global passed
    while data := server.recv(16384):
        with guard:
            mine, was, over = changed, passed, rule != "pass" and passed + len(data) > most
            passed += len(data)
            now = rule
        if over and was <= most:
            print("reached", flush=True)
        if not over:
            client.sendall(data)
        elif now == "cut":
            return
        elif now == "stall":
            mine.wait()
            return
        else:
            for byte in data:
                client.sendall(bytes([byte]))
                if mine.wait(1.0):
                    return

def serve(client):
    with guard:
        is_gone = rule == "cut" and passed > most
    try:
        if is_gone:
            return
        with socket.create_connection(target) as server:
            threading.Thread(target=copy, args=(client, server), daemon=True).start()
            answer(server, client)
            server.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    finally:
        try:
            client.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        client.close()

def listen():
    while True:
        client, _ = listener.accept()
        threading.Thread(target=serve, args=(client,), daemon=True).start()

listener = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listener.getsockname()[1], flush=True)
threading.Thread(target=listen, daemon=True).start()
for line in sys.stdin:
    with guard:
        changed.set()
        changed, passed = threading.Event(), 0
        rule, most = line.split()[0], int(line.split()[1])
    print("ruled", flush=True)
"""
"""Program of a front: bytes of answers pass up to a number, over all connections together."""
_SETTINGS = """
version: 0.1
storage:
  filesystem: {{ rootdirectory: {folder}/blobs }}
  delete: {{ enabled: true }}
http: {{ addr: 127.0.0.1:{port} }}
{auth}
"""
_AUTH = "auth: {{ htpasswd: {{ realm: tests, path: {folder}/htpasswd }} }}"


@dataclass(frozen=True)
class Registry:
    """A registry at `address`, as the engine reaches it; `password` is "" if it asks for none."""

    engine: str
    address: str
    password: str = ""

    def push(self, image: str, name: str) -> str:
        """Push a local image as `name` ("team/app:1"); return its reference. The engine keeps no
        name of the registry for it."""
        reference = f"{self.address}/{name}"
        repository, _, tag = reference.rpartition(":")
        given = {"username": USER, "password": self.password} if self.password else None
        with connected(self.engine) as client:
            client.api.tag(image, repository, tag)
            for line in client.api.push(
                repository, tag, stream=True, decode=True, auth_config=given
            ):
                assert "error" not in line, line
            client.api.remove_image(reference)
        return reference

    def list_for(self, architecture: str, name: str, tag: str) -> None:
        """Push a list of images as `tag` that has the image `name` ("team/app:1") for one kind of
        processor only."""
        repository, _, of = name.rpartition(":")
        body = self._get(repository, of)
        digest = f"sha256:{hashlib.sha256(body.encode()).hexdigest()}"
        one = {"mediaType": f"{KIND}.v2+json", "size": len(body), "digest": digest}
        one["platform"] = {"os": "linux", "architecture": architecture}
        made = {"schemaVersion": 2, "mediaType": f"{KIND}.list.v2+json", "manifests": [one]}
        self._put(repository, tag, f"{KIND}.list.v2+json", json.dumps(made))

    def retag(self, repository: str, tag: str, other: str) -> None:
        """Let the tag `other` have the image of `tag`."""
        self._put(repository, other, f"{KIND}.v2+json", self._get(repository, tag))

    def _get(self, repository: str, tag: str) -> str:
        return self._ask(f"{repository}/manifests/{tag}", "-H", f"Accept: {KIND}.v2+json")

    def _put(self, repository: str, tag: str, kind: str, body: str) -> None:
        send = ("-X", "PUT", "-H", f"Content-Type: {kind}", "--data-binary", body)
        self._ask(f"{repository}/manifests/{tag}", *send)

    def _ask(self, path: str, *options: str) -> str:
        """Return what the registry answers, in its network."""
        login = ("-u", f"{USER}:{self.password}") if self.password else ()
        command = (
            "curl",
            "--fail-with-body",
            "-s",
            *login,
            *options,
            f"http://{self.address}/v2/{path}",
        )
        enter = ("nsenter", "--net", "--target", str(_pid(self.engine)))
        done = subprocess.run([*enter, *command], stdout=subprocess.PIPE, check=True)
        return done.stdout.decode()

    def log_in(self, folder: Path) -> None:
        """Write a docker config with the password into `folder`, for DOCKER_CONFIG."""
        token = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        config = {"auths": {self.address: {"auth": token}}}
        (folder / "config.json").write_text(json.dumps(config))


class Front:
    """What stands between the engine and a registry, at `address`: it passes answers on, up to a
    number of bytes over all connections."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    def passes(self) -> None:
        """Pass everything from now on."""
        self._rule("pass", 0)

    def cuts(self, after: int) -> None:
        """Close every connection after this many bytes, and each new one at once."""
        self._rule("cut", after)

    def stalls(self, after: int) -> None:
        """Send nothing more after this many bytes; connections stay open."""
        self._rule("stall", after)

    def drips(self, after: int) -> None:
        """Send one byte a second on each connection after this many bytes."""
        self._rule("drip", after)

    def await_reached(self) -> None:
        """Wait until the number of bytes has passed."""
        assert self._read() == "reached"

    def _rule(self, name: str, most: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {most}\n")
        self._process.stdin.flush()
        while self._read() != "ruled":
            pass

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the front has ended"
        return line.strip()


@contextmanager
def front(of: Registry) -> Iterator[Front]:
    """Run a front of a registry, in the same network."""
    enter = ["nsenter", "--net", "--target", str(_pid(of.engine))]
    process = subprocess.Popen(
        [*enter, "python3", "-I", "-c", FRONT, of.address.rpartition(":")[2]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Front(process, f"127.0.0.1:{int(process.stdout.readline())}")
    finally:
        process.kill()
        process.communicate()


@contextmanager
def registry(engine: str, folder: Path, *, password: str = "") -> Iterator[Registry]:
    """Run a registry with its files in `folder`. Without the program the test is skipped, or fails
    in CI."""
    program = shutil.which(PROGRAM) or refuse(f"{PROGRAM} is missing: apt-get install {PROGRAM}")
    enter = ["nsenter", "--net", "--target", str(_pid(engine))]
    subprocess.run([*enter, "ip", "link", "set", "lo", "up"], check=False)
    port = _free_port(enter)
    auth = ""
    if password:
        (folder / "htpasswd").write_text(HTPASSWD)
        auth = _AUTH.format(folder=folder)
    settings = folder / "registry.yml"
    settings.write_text(_SETTINGS.format(folder=folder, port=port, auth=auth))
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [*enter, program, "serve", str(settings)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        made = Registry(engine, f"127.0.0.1:{port}", password)
        _await(made, process, folder / "registry.log")
        yield made
    finally:
        process.kill()
        process.wait()


def _pid(engine: str) -> int:
    """Return the process id of the engine, which listens on its socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(engine.removeprefix("unix://"))
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _free_port(enter: list[str]) -> int:
    program = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])"
    found = subprocess.run(
        [*enter, "python3", "-c", program], check=True, stdout=subprocess.PIPE, text=True
    )
    return int(found.stdout)


def _await(made: Registry, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the engine reaches the registry: a pull is then refused for another reason."""
    end_s = time.monotonic() + START_S
    with connected(made.engine) as client:
        while True:
            try:
                client.api.pull(f"{made.address}/none", tag="none")
            except docker.errors.APIError as error:
                if "connection refused" not in str(error):
                    return
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
