"""A private registry for tests: Debian's docker-registry, in the network of the shared engine.

That engine has a network of its own without a way out, so the registry runs there too; the engine
takes one at 127.0.0.1 without TLS.
"""

from __future__ import annotations

import base64
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

    def log_in(self, folder: Path) -> None:
        """Write a docker config with the password into `folder`, for DOCKER_CONFIG."""
        token = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        config = {"auths": {self.address: {"auth": token}}}
        (folder / "config.json").write_text(json.dumps(config))


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
