"""Section of the surface: the JSON that the verbs of `fnctl` print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from admin.cli.main import app
from admin.cli.verbs.open_page import Opened
from admin.documents.deploys import OperationRow
from admin.documents.functions import Parked, Prepares, Warmed
from admin.image.build import BuiltImage
from environments.lock import Lock, LockedPackage
from hosts.checks import Check
from pool_manager.images import RemovedImage
from tests.surface.cli import with_json
from tests.surface.shapes import JsonShape, fields_of

DECLARED: dict[str, Any] = {
    "doctor.items[]": Check,
    "image build": BuiltImage,
    "image prune.removed[]": RemovedImage,
    "open": Opened,
    "operation cancel": OperationRow,
    "park": Parked,
    "prepare": Prepares,
    "unpark": Warmed,
}
"""Types printed by verbs that depend on this machine, take minutes or need a server function or a
deploy that still runs; these are not run."""


def make_environment(data: Path) -> str:
    """Make an environment that no function names, in a data folder; return its id."""
    package = LockedPackage("x", "1.0", (f"sha256:{'a' * 64}",), 1)
    lock = Lock("0" * 64, "3.11", "linux-x86_64", "glibc-2.36", (package,))
    folder = data / "environments" / lock.digest
    folder.mkdir(parents=True)
    (folder / "lock.json").write_text(lock.text)
    about = {"built_with": "3.11.7", "size": 1, "files": 1, "scripts": {}, "programs": {}}
    (folder / "about.json").write_text(json.dumps(about))
    return lock.digest


class CliOutput:
    """Runner of verbs against a server that has the function f; records their JSON."""

    def __init__(self, url: str, token: str, data: Path) -> None:
        self._shape = JsonShape()
        self._connection = ["--url", url, "--key", token]
        self._data = data
        self._runner = CliRunner()
        self._backup = data.parent / "backup.db"
        self._model = data.parent / "other.onnx"

    def run_verbs(self) -> None:
        """Run every verb that needs the server."""
        self._model.write_bytes(b"\x3a\x00\x3a\x00\x3a\x00")
        self._run_verb("deploy", str(self._model), "--name", "g")
        self._run_verb("deploy", str(self._model), "--name", "h", "--no-wait")
        for one in self._run_verb("operation ls")["items"][:1]:
            self._run_verb("operation watch", one["id"])
        self._run_verb("invoke", "f")
        for verb in ("show", "why", "logs", "warm", "advise"):
            self._run_verb(verb, "f")
        self._run_verb("bench", "f", "--seconds", "0.2", "--warmup", "0", "-c", "1")
        self._run_verb("top", "--once")
        self._run_verb("rollback", "f", "--to", "2")
        self._run_verb("scale", "f", "--min", "0")
        self._run_verb("sleep", "f")
        self._run_verb("rm", "g", "--yes")
        for verb in ("ls", "ui"):
            self._run_verb(verb)
        key = self._run_verb("key add", "--scope", "read")
        self._run_verb("key ls")
        self._run_verb("key rm", key["id"])
        for verb in ("open", "close", "status"):
            self._run_verb(f"access {verb}")
        self._run_verb("secret set", "s", input="value\n")
        self._run_verb("secret ls")
        self._run_verb("secret rm", "s")
        self._run_verb("alias add", "m", "a")
        self._run_verb("alias ls")
        self._run_verb("alias rm", "a")
        self._run_host_verbs()
        self._run_verb("usage")
        self._run_verb("usage", "--by", "key")
        self._run_verb("cost")
        self._run_verb("cost", "--by", "key")
        self._run_verb("image prune")
        id = make_environment(self._data)
        self._run_verb("env ls")
        self._run_verb("env show", id[:6])
        self._run_verb("env rm", id)
        make_environment(self._data)
        self._run_verb("env rm", "--unused")
        self._run_verb("backup", str(self._backup))
        self._run_verb("show", "nothing", exit_code=1)

    def _run_host_verbs(self) -> None:
        """Run the verbs of hosts, with a host that does not answer."""
        self._run_verb("host add", "127.0.0.1:1", "--name", "x", "--unchecked")
        self._run_verb("host ls")
        self._run_verb("host show", "x")
        self._run_verb("host label", "x", "zone=a")
        self._run_verb("host set", "x", "--cpu-slots", "1")
        self._run_verb("host drain", "x")
        self._run_verb("host rm", "x")

    def run_rotation(self) -> None:
        """Run the verb that ends the token of all others."""
        self._run_verb("access rotate-admin")

    def run_restore(self) -> None:
        """Run the verb that needs the server to be stopped."""
        self._run_verb("restore", str(self._backup), "--data", str(self._data), uses_server=False)

    def lines(self) -> list[str]:
        """List the keys by verb. Raise AssertionError for a verb with --json that was not run."""
        found = [
            line.partition(":")[0].rstrip("~")
            for at, kind in DECLARED.items()
            for line in fields_of(at, kind)
        ]
        found += self._shape.keys()
        missing = [one for one in with_json() if not any(at.startswith(one) for at in found)]
        assert not missing, f"not recorded: fnctl {', '.join(missing)} --json"
        return found

    def _run_verb(
        self,
        verb: str,
        *words: str,
        exit_code: int = 0,
        uses_server: bool = True,
        input: str | None = None,
    ) -> Any:
        options = self._connection if uses_server else []
        result = self._runner.invoke(app, [*verb.split(), *words, *options, "--json"], input=input)
        assert result.exit_code == exit_code, (verb, result.output, result.exception)
        printed = json.loads(result.stderr if exit_code else result.stdout)
        self._shape.add("failure" if exit_code else verb, printed)
        return printed
