"""What the verbs of `fnctl` print with --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from admin.cli.doctor.machine import Check
from admin.cli.main import app
from admin.image.build import Built
from tests.surface.command import with_json
from tests.surface.shapes import Seen, fields_of

SAID: dict[str, Any] = {"doctor.items[]": Check, "image build": Built}
"""Of verbs that look at this very machine, or take minutes: what they print, as it is made."""


class Speech:
    """The verbs against one server with the function f; `seen` is what they said."""

    def __init__(self, url: str, token: str, data: Path) -> None:
        self.seen = Seen()
        self._there = ["--url", url, "--key", token]
        self._data = data
        self._run = CliRunner()
        self._backup = data.parent / "backup.db"
        self._model = data.parent / "other.onnx"

    def verbs(self) -> None:
        """Every verb that asks the server."""
        self._model.write_bytes(b"\x3a\x00\x3a\x00\x3a\x00")
        self._say("deploy", str(self._model), "--name", "g")
        self._say("deploy", str(self._model), "--name", "h", "--no-wait")
        self._say("invoke", "f")
        for verb in ("show", "why", "logs", "warm", "advise"):
            self._say(verb, "f")
        self._say("top", "--once")
        self._say("rollback", "f", "--to", "2")
        self._say("scale", "f", "--min", "0")
        self._say("sleep", "f")
        self._say("rm", "g", "--yes")
        for verb in ("ls", "ui"):
            self._say(verb)
        key = self._say("key add", "--scope", "read")
        self._say("key ls")
        self._say("key rm", key["id"])
        self._say("backup", str(self._backup))
        self._say("show", "nothing", code=1)

    def restore(self) -> None:
        """The one that asks no server and wants none to be there."""
        self._say("restore", str(self._backup), "--data", str(self._data), is_asking=False)

    def lines(self) -> list[str]:
        """Keys by verb. Raises AssertionError where one with --json was left out."""
        found = [
            line.partition(":")[0].rstrip("~")
            for at, kind in SAID.items()
            for line in fields_of(at, kind)
        ]
        found += self.seen.keys()
        left_out = [one for one in with_json() if not any(at.startswith(one) for at in found)]
        assert not left_out, f"nothing is known of fnctl {', '.join(left_out)} --json"
        return found

    def _say(self, verb: str, *words: str, code: int = 0, is_asking: bool = True) -> Any:
        asking = self._there if is_asking else []
        result = self._run.invoke(app, [*verb.split(), *words, *asking, "--json"])
        assert result.exit_code == code, (verb, result.output, result.exception)
        said = json.loads(result.stderr if code else result.stdout)
        self.seen.add("failure" if code else verb, said)
        return said
