"""Run the console blocks of documents against a server set up as by `make run`.

python -m tests.support.document_runs docs/guides/call.md            report blocks that do not fit
python -m tests.support.document_runs docs/guides/call.md --write    insert the real output
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.documents import Step, fits, results, script, steps
from tests.support.package_index import package_index
from tests.support.process_server import FNCTL, ServerProcess, server_process

ROOT = Path(__file__).parent.parent.parent
READY_MADE = {
    "digits": (),
    "filetype": ("--batch", "off"),
    "commands": ("--batch", "off"),
    "prose": ("--trust",),
}
"""Functions of `make run`, with options of their deploys. No document shows whether filetype and
commands batch, and a trial that does not measure batching ends quickly."""
GRPC = "127.0.0.1:8001"
"""Address of gRPC in the documents."""
HOME = "/home/you/fngate"
"""Folder that documents show as the place where the commands run."""
LIMIT_S = 90.0
"""Max seconds of one document's run."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that ran: its output as a document would show it, and its exit code."""

    step: Step
    output: str
    code: int

    @property
    def trouble(self) -> str:
        """Return why the result differs from the document; "" if it fits."""
        if self.code and not self.step.may_fail:
            reason = f"exit code {self.code}"
        elif self.step.is_hidden or fits(self.step.shown, self.output):
            return ""
        else:
            reason = "other output"
        shown = "\n".join(f"  - {line}" for line in self.step.shown)
        wrote = "\n".join(f"  + {line}" for line in self.output.split("\n"))
        return f"line {self.step.line + 1}: {reason}: {self.step.script}\n{shown}\n{wrote}"


def documents() -> list[Path]:
    """Return every document whose commands are run; those of docs/reference are generated."""
    docs = ROOT / "docs"
    pages = sorted(docs.rglob("*.md"))
    return [ROOT / "README.md", *(one for one in pages if docs / "reference" not in one.parents)]


class Desk:
    """A folder with a server on `.fngate` and the ready-made functions, as the documents assume.

    `engine`: the environment with which the docker CLI finds the server's engine. Such a desk has
    no functions, and runs the blocks that need an engine. `names`: for names in a document the ones
    that are used instead, such as of images. `variables`: further ones of the commands.
    """

    def __init__(
        self,
        folder: Path,
        server: ServerProcess,
        *,
        engine: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._variables = variables or {}
        self._server = server
        self._engine = engine
        self._names = {"127.0.0.1:8080": self._address, **(names or {})}
        self._ready_made = READY_MADE if engine is None else {}
        self._home = folder.parent / "home"
        self._home.mkdir()
        (folder / "functions").symlink_to(ROOT / "functions")
        deploys = [
            self._spawn([FNCTL, "deploy", f"functions/{name}", *options])
            for name, options in self._ready_made.items()
        ]
        failed = [output for output in map(_output, deploys) if "next:" not in output]
        assert not failed, failed

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{Path(FNCTL).parent}:{os.environ['PATH']}",
            "HOME": str(self._home),
            "FN_DATA": str(self._server.data),
            "FN_URL": self._server.url,
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
            "NO_COLOR": "1",
            **self._variables,
            **(self._engine or {}),
        }
        return subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str) -> list[Ran]:
        """Run a document's commands in a clean environment; return the result of each step."""
        todo = steps(text, docker=self._engine is not None)
        if not todo:
            return []
        self._tidy()
        path = self._home / "script"
        commands = script(todo)
        for name, used in self._names.items():
            commands = commands.replace(name, used)
        path.write_text(commands)
        shown = _output(self._spawn(["bash", str(path)]))
        folders = {HOME: self._folder, "/home/you": self._home, f"{HOME}/.venv": sys.prefix}
        for name, place in {**self._names, **folders}.items():
            shown = shown.replace(str(place), name)
        done = results(shown)
        rest = [("it did not end", 1)] * (len(todo) - len(done))
        return [Ran(step, *what) for step, what in zip(todo, [*done, *rest], strict=True)]

    @property
    def _address(self) -> str:
        return self._server.url.removeprefix("http://")

    def _tidy(self) -> None:
        """Remove files, keys and functions of the previous document, and let all others go cold."""
        for path in self._folder.iterdir():
            if path.name not in {".fngate", "functions"}:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for key in self._ask("GET", "keys")["items"]:
            self._ask("DELETE", f"keys/{key['id']}")
        for one in self._ask("GET", "functions")["items"]:
            if one["name"] in self._ready_made:
                self._ask("POST", f"functions/{one['name']}/sleep")
            else:
                self._ask("DELETE", f"functions/{one['name']}")
        self._wait_cold()

    def _ask(self, method: str, path: str) -> Any:
        with self._open(method, path) as answer:
            return json.load(answer) if answer.status == 200 else None

    def _open(self, method: str, path: str) -> Any:
        url = f"{self._server.url}/admin/v1/{path}"
        request = urllib.request.Request(url, headers=self._server.headers, method=method)
        return urllib.request.urlopen(request, timeout=LIMIT_S)

    def _wait_cold(self) -> None:
        if not self._ready_made:
            return
        states: dict[str, str] = {}
        with self._open("GET", "events") as stream:
            event = b""
            for line in stream:
                key, _, value = line.rstrip().partition(b": ")
                event = value if key == b"event" else event
                if key == b"data" and event == b"functions":
                    states |= dict(_states(json.loads(value)))
                if len(states) == len(READY_MADE) and set(states.values()) == {"cold"}:
                    return


def _states(data: Any) -> Iterator[tuple[str, str]]:
    for one in data.get("items", [data]):
        if one.get("name") in READY_MADE and "state" in one:
            yield one["name"], one["state"]


def _output(process: subprocess.Popen[str]) -> str:
    """Return a process's output after its end. At the time limit it is killed with its children."""
    with process:
        try:
            return process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0]


@contextmanager
def desk(folder: Path) -> Iterator[Desk]:
    """Create a desk in `folder`, whose server has one slot per function that a document calls, and
    compiles models of functions on CPUs that ask for it. Packages come from an index of its own,
    which has nothing but what a Python function without needs has."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = str(reserved.getsockname()[1])
    options = ("--cpu-slots", "6", "--grpc-port", port)
    with package_index() as index:
        index.add_installed("msgspec")
        packages = {"FN_UV_CONFIG": str(index.config(folder.parent))}
        environment = {"FN_COMPILER": "onnxruntime", **packages}
        with server_process(folder / ".fngate", *options, environment=environment) as server:
            yield Desk(folder, server, names={GRPC: f"127.0.0.1:{port}"}, variables=packages)


def rewritten(text: str, ran: Sequence[Ran]) -> str:
    """Return the document with the real output in place of output that does not fit."""
    lines = text.split("\n")
    for one in reversed(ran):
        if one.trouble and not one.step.is_hidden and not one.step.is_shortened:
            begin = one.step.line + 1 + one.step.script.count("\n")
            lines[begin : begin + len(one.step.shown)] = (
                one.output.split("\n") if one.output else []
            )
    return "\n".join(lines)


def main() -> None:
    """Run the named documents, or all."""
    named = [Path(word) for word in sys.argv[1:] if not word.startswith("-")]
    with tempfile.TemporaryDirectory() as folder, desk(Path(folder) / "fngate") as place:
        for path in named or documents():
            text = path.read_text("utf-8")
            ran = place.run(text)
            troubles = [one.trouble for one in ran if one.trouble]
            sys.stdout.write("\n".join([str(path), *troubles, ""]))
            if "--write" in sys.argv:
                path.write_text(rewritten(text, ran), "utf-8")


if __name__ == "__main__":
    main()
