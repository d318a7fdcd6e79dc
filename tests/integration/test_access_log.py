"""Tests of a real server's access log: one line per call, and no secret."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.process_server import END_S, ServerProcess, server_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HANDLER = """
import os, signal, threading

def predict(inputs, ctx):
    how = inputs["x"]["how"]
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fail":
        raise ValueError("the handler says no")
    while how == "late":
        threading.Event().wait(1)
    if how == "slow":
        threading.Event().wait(0.05)
    return {"y": how}
"""
MANIFEST = """schema = 1
name = "moody"
[runtime]
engine = "python"
[scaling]
max = 1
[limits]
timeout_s = 1
body_mib = 1
[input.x]
kind = "json"
[sample]
x = {how = "well"}
"""
SECRETS = ("SECRET-body", "SECRET-key", "SECRET-query", "SECRET-header", "SECRET-path")


class Calls:
    """Calls of one server, each with an id; `expected` has the outcome that the log must show."""

    def __init__(self, server: ServerProcess) -> None:
        parts = urlsplit(server.url)
        self.address = parts.hostname or "", parts.port or 0
        self.key = server.token
        self.expected: dict[str, tuple[str, int]] = {}

    def call(
        self, id: str, how: str, outcome: str, *, path: str = "/fn/moody", **headers: str
    ) -> None:
        """Make a call and expect this outcome."""
        body = json.dumps({"inputs": {"x": {"how": how, "payload": "SECRET-body"}}})
        http = HTTPConnection(*self.address, timeout=END_S)
        given = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self.key}",
            "X-Request-Id": id,
            "X-Secret": "SECRET-header",
            **headers,
        }
        http.request("POST", path, body, given)
        answer = http.getresponse()
        answer.read()
        assert answer.getheader("X-Request-Id") == id
        self.expected[id] = outcome, answer.status
        http.close()

    def leave(self, id: str, *, whole: bool) -> None:
        """Disconnect before the answer, or before the body is complete."""
        body = b'{"inputs": {"x": {"how": "slow", "payload": "SECRET-body"}}}'
        length = len(body) + (0 if whole else 10)
        head = (
            f"POST /fn/moody HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {id}\r\nContent-Length: {length}\r\n"
        )
        with socket.create_connection(self.address, END_S) as connection:
            connection.sendall(f"{head}\r\n".encode() + body)
        self.expected[id] = "client_left", 0


@contextmanager
def logging(
    folder: Path, form: str, *options: str, **settings: str
) -> Iterator[tuple[ServerProcess, Calls]]:
    """A server with an access log in this format, and a function whose input chooses its
    behaviour."""
    source = folder / "moody"
    source.mkdir()
    (source / "handler.py").write_text(HANDLER)
    (source / "function.toml").write_text(MANIFEST)
    with server_process(
        folder / "data",
        "--log-format",
        form,
        *options,
        environment={"FN_ACCESS_LOG": "1", **settings},
    ) as server:
        server.fnctl_json("deploy", str(source), "--trust")
        yield server, Calls(server)


def told(server: ServerProcess) -> list[dict[str, Any]]:
    """Return the access log of a server that has ended."""
    lines = [json.loads(line) for line in server.log if line.startswith("{")]
    return [line for line in lines if line["event"] == "request"]


def in_turn(calls: Calls, number: int) -> None:
    """Make one caller's calls, with every possible outcome."""
    for turn in range(4):
        id = f"{number}-{turn}"
        calls.call(f"{id}-ok", "well", "ok")
        calls.leave(f"{id}-left", whole=True)
        calls.call(f"{id}-failed", "fail", "function_failed")
        calls.leave(f"{id}-broken", whole=False)
        calls.call(
            f"{id}-input", "well", "unsupported_type", **{"Content-Type": "application/x-npy"}
        )
        calls.call(f"{id}-unknown", "well", "unknown_function", path="/fn/nobody")
        calls.call(f"{id}-key", "well", "no_key", Authorization="Bearer SECRET-key")
        calls.call(f"{id}-wish", "well", "bad_request", **{"Inference-Header-Content-Length": "x"})


@pytest.mark.parametrize("workers", ["1", "2"])
def test_each_call_leaves_one_line(tmp_path: Path, workers: str) -> None:
    """Each call has one line, whether answered, refused or given up by its client, while replicas
    are killed."""
    with logging(tmp_path, "json", "--workers", workers) as (server, calls):
        callers = [threading.Thread(target=in_turn, args=(calls, number)) for number in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        calls.call("late", "late", "execution_timeout")
        calls.call("dead", "die", "replica_died")
        server.stop()

        lines = told(server)
        counts = Counter(line["request_id"] for line in lines)
        assert counts == Counter(calls.expected.keys())
        for line in lines:
            outcome, status = calls.expected[line["request_id"]]
            assert (line["outcome"], line["status"]) == (outcome, status), line
            assert line["ms"] > 0
        by_id = {line["request_id"]: line for line in lines}
        assert by_id["dead"]["replica"]
        assert by_id["late"]["sends"] >= 1
        assert (by_id["0-1-ok"]["rows"], by_id["0-1-ok"]["bytes_in"] > 30) == (1, True)
        assert by_id["0-0-broken"]["bytes_in"] == 0


@pytest.mark.parametrize("form", ["json", "human"])
@pytest.mark.parametrize("front", ["true", "false"])
def test_no_log_has_a_secret(tmp_path: Path, form: str, front: str) -> None:
    """Neither the server's nor a replica's log has bodies, keys, headers or query strings."""
    with logging(tmp_path, form, FN_FAST_FRONT=front) as (server, calls):
        calls.call("1", "well", "ok", path="/fn/moody?token=SECRET-query")
        calls.call("2", "well", "unknown_function", path="/fn/SECRET-path%0aSECRET-path")
        calls.call("3", "well", "no_key", Authorization="Bearer SECRET-key")
        calls.call("4", "fail", "function_failed")
        calls.call("5", "die", "replica_died")
        calls.call("6", "well", "ok", **{"Content-Type": "application/SECRET-header"})
        calls.call("7", "late", "execution_timeout")
        calls.leave("8", whole=False)
        for raw in (
            b"POST /fn/moody?SECRET-query HTTP/1.1\r\nHost: a\r\nAuthorization: SECRET-key\x01\r\n",
            b"POST /fn/moody HTTP/1.1\r\nHost: localhost\r\nContent-Length: SECRET-body\r\n",
            b"SECRET-body SECRET-query\r\n",
        ):
            with socket.create_connection(calls.address, END_S) as connection:
                connection.sendall(raw + b"\r\n")
                assert connection.recv(4096)
        keys = [server.token, *SECRETS]
        server.stop()

        written = "".join(server.log)
        logs = [path for path in (server.data / "logs").rglob("*") if path.is_file()]
        written += "".join(path.read_text(errors="replace") for path in logs)
        assert logs
        # A handler's exceptions are in the log of its replica alone.
        assert "the handler says no" not in "".join(server.log)
        assert [key for key in keys if key in written] == []
        ids = re.findall(r"request_id\W+(\d+)\b", written)
        assert sorted(ids) == sorted(calls.expected)
