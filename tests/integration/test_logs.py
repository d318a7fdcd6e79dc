"""Tests of logs and errors of real replicas, over a server with several gateway processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process_server import END_S, FNCTL, ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HANDLER = """
import os
def predict(inputs, ctx):
    print("asked to", inputs["do"])
    if inputs["do"] == "fail":
        raise ValueError("no wish to")
    if inputs["do"] == "die":
        os.kill(os.getpid(), 9)
    return {"did": 1}
"""
MANIFEST = """
schema = 1
name = "talker"
[runtime]
engine = "python"
[input.request]
kind = "json"
[limits]
retry = "never"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with two workers and the function `talker`."""
    folder = tmp_path / "talker"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    (folder / "function.toml").write_text(MANIFEST)
    with server_process(tmp_path / "data", "--workers", "2") as server:
        server.fnctl_json("deploy", str(folder), "--trust")
        yield server


@contextmanager
def followed(server: ServerProcess) -> Iterator[subprocess.Popen[str]]:
    """Run `fnctl logs talker -f --json` during the block."""
    environment = {**os.environ, "FN_URL": server.url, "FN_DATA": str(server.data)}
    command = [FNCTL, "logs", "talker", "-f", "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as reader:
        try:
            yield reader
        finally:
            reader.kill()


def until(reader: subprocess.Popen[str], kind: str, text: str = "") -> dict[str, str]:
    """Return the next event of this kind with this text."""
    assert reader.stdout is not None
    for line in reader.stdout:
        event: dict[str, str] = json.loads(line)
        if event["event"] == kind and text in event.get("text", ""):
            return event
    raise AssertionError(f"no {kind} with {text!r}")


def ask(server: ServerProcess, what: str) -> None:
    server.fnctl("invoke", "talker", "-d", json.dumps({"inputs": {"do": what}}))


def test_logs_are_followed_across_a_death(server: ServerProcess) -> None:
    """The stream has the last lines, a replica's end and the next replica; Ctrl-C ends it."""
    with followed(server) as reader:
        ask(server, "talk")
        first = until(reader, "lines", "asked to talk")
        ask(server, "die")
        until(reader, "lines", "asked to die")
        while until(reader, "end")["replica"] != first["replica"]:
            pass
        ask(server, "talk")
        second = until(reader, "lines", "asked to talk")
        reader.send_signal(signal.SIGINT)
        assert reader.wait(END_S) == 130

    assert first["replica"] != second["replica"]


def test_errors_are_told_with_their_cause(server: ServerProcess) -> None:
    """Errors of every worker are listed within a beat, with how the replica ended."""
    for what in ("talk", "fail", "die"):
        ask(server, what)
    found: dict[str, str] = {}
    for _ in range(100):
        items = server.fnctl_json("why", "talker")["errors"]
        found = {item["code"]: item["detail"] for item in items}
        if "was killed by SIGKILL" in found.get("replica_died", ""):
            break

    assert found["function_failed"] == "ValueError: no wish to (handler.py:6 in predict)"
    assert found["replica_died"].endswith("was killed by SIGKILL")
