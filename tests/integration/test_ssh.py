"""fnctl against a real server behind a real SSH server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import models
from tests.support.process_server import FNCTL, ServerProcess, server_process
from tests.support.sshd import Sshd, sshd

pytestmark = pytest.mark.slow

END_S = 60.0
MIB = 48
HANDLER = """
def predict(inputs, ctx):
    print("asked to", inputs.get("do"), flush=True)
    if inputs.get("do") == "hang":
        with open(inputs["began"], "w") as began:
            began.write("now")
        with open(inputs["end"]) as end:
            end.read()
    return {"did": inputs.get("do")}
"""
MANIFEST = """
schema = 1
name = "worker"
[runtime]
engine = "python"
[input.request]
kind = "json"
[limits]
timeout_s = 30
retry = "never"
"""


class Box:
    """A machine with a server, which is reached by SSH alone: nothing else of it is told."""

    def __init__(self, server: ServerProcess, far: Sshd, home: Path) -> None:
        self.server = server
        self.far = far
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "FN_SSH": far.target,
            "FN_IDENTITY": str(far.identity),
            "FN_KNOWN_HOSTS": str(far.known_hosts),
            "FN_URL": server.url,
            "FN_DATA": str(server.data),
        }

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """fnctl, running."""
        return subprocess.Popen(
            [FNCTL, *words],
            env={**self._environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fnctl(self, *words: str, **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of fnctl."""
        with self.start(*words, **environment) as process:
            out, err = process.communicate(timeout=END_S)
        return process.returncode, out, err


@pytest.fixture
def box(leaks: object, tmp_path: Path) -> Iterator[Box]:
    (tmp_path / "home").mkdir()
    with server_process(tmp_path / "data") as server, sshd(tmp_path / "ssh") as far:
        yield Box(server, far, tmp_path / "home")


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """A function that prints what it is asked, and hangs if it is asked to."""
    folder = tmp_path / "worker"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    (folder / "function.toml").write_text(MANIFEST)
    return folder


@contextmanager
def hanging(box: Box, worker: Path) -> Iterator[subprocess.Popen[str]]:
    """fnctl that waits for an answer which comes only after the block; the replica has begun."""
    code, _, err = box.fnctl("deploy", str(worker), "--trust")
    assert code == 0, err
    began, end = worker / "began", worker / "end"
    os.mkfifo(began)
    os.mkfifo(end)
    body = json.dumps({"inputs": {"do": "hang", "began": str(began), "end": str(end)}})
    with box.start("invoke", "worker", "-d", body) as process:
        assert began.read_text() == "now"
        yield process
    end.write_text("now")


def test_a_function_is_shipped_called_and_looked_at(box: Box, worker: Path) -> None:
    """Deploy, invoke, logs and ls give through SSH what they give beside the server."""
    shipped, _, err = box.fnctl("deploy", str(worker), "--trust")
    assert shipped == 0, err

    called, answer, _ = box.fnctl("invoke", "worker", "-d", '{"inputs": {"do": "it"}}', "--json")
    printed, log, _ = box.fnctl("logs", "worker")
    listed, functions, _ = box.fnctl("ls", "--json")

    assert (called, printed, listed) == (0, 0, 0)
    assert json.loads(answer)["outputs"] == {"did": "it"}
    assert "asked to it" in log
    near = box.server.fnctl_json("ls")["items"]
    assert [each["revision"] for each in json.loads(functions)["items"]] == ["worker@1"]
    assert [each["revision"] for each in near] == ["worker@1"]


def test_a_large_model_arrives_whole(box: Box, tmp_path: Path) -> None:
    """Many MiB go through, the server finds their digest right and the model answers."""
    code, out, err = box.fnctl("deploy", str(models.big(tmp_path, MIB)), "--json")
    assert code == 0, err

    assert json.loads(out)["state"] == "done"
    assert json.loads(out)["result"]["revision"] == "big@1"


def test_sshd_killed_in_the_middle_ends_the_command(box: Box, worker: Path) -> None:
    """Whoever waits for an answer is told that the connection broke, and may go on."""
    with hanging(box, worker) as process:
        box.far.stop()
        _, err = process.communicate(timeout=END_S)

    assert process.returncode == 3
    assert f"the SSH connection to {box.far.target} broke" in err
    assert "next: started operations may continue there" in err


def test_ctrl_c_ends_the_command(box: Box, worker: Path) -> None:
    """An interrupted command leaves at once, without a traceback, and so does its connection."""
    with hanging(box, worker) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=END_S)

    assert process.returncode == 130
    assert "Traceback" not in err


def test_ctrl_c_ends_a_login(box: Box) -> None:
    """A machine that says nothing can be left at any time, without a word of what was cut off."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(END_S)
        port = silent.getsockname()[1]
        with box.start("ls", FN_SSH=f"nn@127.0.0.1:{port}") as process, silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=END_S)

    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Task was destroyed" not in err


def test_without_a_token_the_refusal_says_why(box: Box, worker: Path, tmp_path: Path) -> None:
    """What needs no key works; for the rest the missing file is named."""
    assert box.fnctl("deploy", str(worker), "--trust")[0] == 0
    elsewhere = str(tmp_path / "elsewhere")

    called, _, _ = box.fnctl(
        "invoke", "worker", "-d", '{"inputs": {"do": "it"}}', FN_DATA=elsewhere
    )
    listed, _, err = box.fnctl("ls", FN_DATA=elsewhere)

    assert (called, listed) == (0, 1)
    assert f"has no file {elsewhere}/admin.token: set the folder with --data" in err


def test_nobody_on_the_port_is_told(box: Box) -> None:
    """The machine is there and the server is not."""
    code, _, err = box.fnctl("ls", FN_URL="http://127.0.0.1:9")

    assert code == 3
    assert f"nothing listens on 127.0.0.1:9 of {box.far.target}" in err
    assert "next: start it there with fnctl serve" in err


@pytest.mark.parametrize(
    ("settings", "sftp", "code", "text"),
    [
        (("AllowTcpForwarding no",), True, 3, "AllowTcpForwarding local"),
        ((), False, 1, "by SFTP"),
    ],
)
def test_a_narrow_ssh_server_says_what_it_forbids(
    box: Box, tmp_path: Path, settings: tuple[str, ...], sftp: bool, code: int, text: str
) -> None:
    """Without forwarding nothing goes, without SFTP a key is needed: each with its remedy."""
    with sshd(tmp_path / "narrow", *settings, sftp=sftp) as narrow:
        environment = {
            "FN_SSH": narrow.target,
            "FN_IDENTITY": str(narrow.identity),
            "FN_KNOWN_HOSTS": str(narrow.known_hosts),
        }
        refused, _, err = box.fnctl("ls", **environment)
        keyed, _, _ = box.fnctl("ls", FN_KEY=box.server.token, **environment)

    assert refused == code
    assert text in err
    assert keyed == (0 if code == 1 else 3)
