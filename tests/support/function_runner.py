"""The server of Python functions as a real process, and raw clients of it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "python_runner"
WAIT_S = 60.0
READY, DESCRIPTION = "/.fngate/ready", "/.fngate/description"
JSON = "application/json"


@dataclass
class Reply:
    """One answer, read to its end. `is_cut`: it ended in its middle."""

    status: int
    fields: Mapping[str, str]
    body: bytes
    is_cut: bool = False

    def json(self) -> Any:
        """Return the decoded body."""
        return json.loads(self.body)

    @property
    def outputs(self) -> Any:
        """The outputs of a whole answer."""
        assert self.status == 200, self.body
        return self.json()["outputs"]

    @property
    def detail(self) -> str:
        """The text of a problem document."""
        assert self.status >= 400
        return str(self.json()["detail"])

    @property
    def traceback(self) -> str:
        """The traceback in its field."""
        return b64decode(self.fields["fn-traceback"]).decode()

    @property
    def events(self) -> list[str]:
        """The data of the events, those of errors with their name before."""
        found = []
        for event in self.body.decode().removesuffix("\n\n").split("\n\n"):
            lines = event.split("\n")
            name = "".join(line[7:] + " " for line in lines if line.startswith("event: "))
            data = [line[6:] for line in lines if line.startswith("data: ")]
            found.append(name + "\n".join(data))
        return found


def form(*fields: tuple[str, bytes | str, str | None]) -> tuple[bytes, str]:
    """Return a form and its type. Fields: name, value, the name of the file or None."""
    parts = []
    for name, value, file in fields:
        more = (
            "" if file is None else f'; filename="{file}"\r\nContent-Type: application/octet-stream'
        )
        data = value if isinstance(value, bytes) else value.encode()
        head = f'--B\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        parts.append(head.encode() + data + b"\r\n")
    return b"".join(parts) + b"--B--\r\n", "multipart/form-data; boundary=B"


@dataclass
class FunctionRunner:
    """A server with one handler. Leaving the block ends it."""

    folder: Path
    handler: str
    python: str = sys.executable
    file: str = "handler.py"
    settings: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / self.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.handler)
        settings = {"listen": str(self.socket), "handler": self.file, **self.settings}
        (self.folder / "settings.json").write_text(json.dumps(settings))
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [self.python, "-I", "-u", str(PROGRAM), "settings.json"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.socket.unlink(missing_ok=True)

    @property
    def socket(self) -> Path:
        """The path of its socket, short enough for any folder of tests."""
        return Path(f"/tmp/fn-runner-{os.getpid()}-{id(self):x}.sock")

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return (self.folder / "log").read_text()

    def line(self) -> str:
        """Return the next line that the handler prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def end(self) -> int:
        """Wait until it ends by itself; return the exit code."""
        return self.process.wait(WAIT_S)

    def connect(self) -> socket.socket:
        """Return a connection, as soon as it listens."""
        while True:
            end = socket.socket(socket.AF_UNIX)
            end.settimeout(WAIT_S)
            try:
                end.connect(str(self.socket))
                return end
            except (FileNotFoundError, ConnectionRefusedError):
                end.close()
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(0.01)
                raise AssertionError(f"it ended with {code}: {self.log}")

    def call(
        self,
        body: bytes | str = b"",
        content_type: str = "",
        *,
        accept: str = "",
        path: str = "/",
        method: str = "POST",
        fields: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the answer to one request."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = self.connect()
        more = {"Content-Type": content_type} if content_type else {}
        if accept:
            more["Accept"] = accept
        try:
            connection.request(method, path, body or None, {**more, **(fields or {})})
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.headers.items()}
            try:
                return Reply(answer.status, names, answer.read())
            except http.client.IncompleteRead as error:
                return Reply(answer.status, names, error.partial, is_cut=True)
        finally:
            connection.close()

    def infer(self, accept: str = "", **inputs: Any) -> Reply:
        """Return the answer to short JSON."""
        return self.call(json.dumps({"inputs": inputs}), JSON, accept=accept)

    def send_form(self, *fields: tuple[str, bytes | str, str | None], accept: str = "") -> Reply:
        """Return the answer to a form."""
        return self.call(*form(*fields), accept=accept)

    def raw(self, *pieces: bytes) -> bytes:
        """Send bytes and return what comes until the connection ends."""
        with self.connect() as end:
            for piece in pieces:
                end.sendall(piece)
            return rest_of(end)


def rest_of(end: socket.socket) -> bytes:
    """Return what comes until a connection ends."""
    found = b""
    while part := end.recv(1 << 16):
        found += part
    return found


def until(end: socket.socket, mark: bytes) -> bytes:
    """Return what comes up to a mark, and perhaps a little more."""
    found = b""
    while mark not in found:
        part = end.recv(1 << 16)
        assert part, found
        found += part
    return found
