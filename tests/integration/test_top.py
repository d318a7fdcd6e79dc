"""Tests of fnctl top and fnctl ls --watch on a terminal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from tests.support import models
from tests.support.event_server import EventServer, beat, device, line, replica, snapshot
from tests.support.process_server import FNCTL, ServerProcess, server_process
from tests.support.pseudo_terminal import (
    ENTER_SCREEN,
    LEAVE_SCREEN,
    PseudoTerminal,
    terminal,
)
from tests.support.sshd import sshd

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ONE = '{"inputs": {"x": [[1, 0, 0, 0]]}}'


def free_port() -> int:
    """Return a port that a server can use again after its restart."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shown(
    server: ServerProcess, *words: str, **environment: str
) -> AbstractContextManager[PseudoTerminal]:
    """Run fnctl on a terminal for a real server."""
    given = {"FN_URL": server.url, "FN_DATA": str(server.data), **environment}
    return terminal([FNCTL, *words], given)


def before(
    server: EventServer, *words: str, **environment: str
) -> AbstractContextManager[PseudoTerminal]:
    """Run fnctl on a terminal for a server with scripted events."""
    return terminal([FNCTL, *words], {"FN_URL": server.url, "FN_KEY": "k", **environment})


@pytest.fixture
def telling(leaks: object) -> Iterator[EventServer]:
    """A scripted server with functions, a device and a replica."""
    devices = ("devices", {"items": [device("cpu:0", state="taken")]})
    replicas = ("replicas", {"items": [replica("r1", "f01", "cpu:0")]})
    functions = [line(f"f{number:02d}") for number in range(40)]
    with closing(EventServer(snapshot(functions, devices, replicas))) as server:
        yield server


def test_a_function_is_seen_from_its_deploy_to_its_sleep(tmp_path: Path) -> None:
    """From deploy to sleep everything shows without a key; keys act, and q restores the
    terminal."""
    folder = tmp_path / "model"
    folder.mkdir()
    model = models.affine(folder, 2, 0)
    with (
        server_process(tmp_path / "data", "--cpu-slots", "2") as server,
        shown(server, "top") as top,
    ):
        top.until("live", "no functions yet", "cpu:0", "cpu:1")
        server.fnctl_json("deploy", str(model), "--name", "scale")
        top.until("scale  ", "cold", "deploy done")
        server.fnctl_json("invoke", "scale", "-d", ONE)
        top.until("warm", "scale@1 ready", "sleeps in", "cold start: revision 1 ready")

        top.press("\r")
        top.until("decisions", "cold starts", "load")
        top.press("\x1b")
        top.resize(70, 18)
        top.until_so(lambda: len(top.screen) == 18 and "scale" in "".join(top.screen), "18 lines")
        top.press("z")
        top.until("stop the idle replicas of scale now? y/n")
        top.press("y")
        top.until("cold", "warm 0 of 1")
        top.press("w")
        top.until("scale@1 is warm", "warm 1 of 1")
        top.press("q")

        assert top.ended() == (0, True)
        assert top.written.rstrip().rpartition(LEAVE_SCREEN)[2].startswith("[ended 0")


def test_a_restarted_server_is_watched_on(tmp_path: Path) -> None:
    """After a restart of the server the display goes on; in between it is marked as stale."""
    port = str(free_port())
    folder = tmp_path / "model"
    folder.mkdir()
    model = models.affine(folder, 2, 0)
    with server_process(tmp_path / "data", "--port", port) as server, shown(server, "top") as top:
        server.fnctl_json("deploy", str(model), "--name", "scale")
        top.until("live", "scale")

        server.kill()
        top.until("reconnecting", "s old", "scale")
        server.start()
        top.until("live", "scale", "cold")
        server.fnctl_json("invoke", "scale", "-d", ONE)
        top.until("live", "scale@1 ready")

        top.press("\x03")
        assert top.ended() == (130, True)


def test_several_gateway_processes_are_one_picture(tmp_path: Path) -> None:
    """The actions of every gateway process show, on a terminal and in a pipe."""
    folder = tmp_path / "model"
    folder.mkdir()
    model = models.affine(folder, 2, 0)
    with server_process(tmp_path / "data", "--workers", "2") as server:
        server.fnctl_json("deploy", str(model), "--name", "scale")
        with shown(server, "top") as top, shown(server, "ls", "-w") as ls:
            top.until("live", "2 workers", "scale", "cold")
            ls.until_written("scale@1")
            server.fnctl_json("invoke", "scale", "-d", ONE)
            top.until("warm", "scale@1 ready")
            ls.until_written("warm")
            top.press("q")
            ls.press("\x03")
            assert top.ended() == (0, True)
            assert ls.ended() == (130, True)
            assert ENTER_SCREEN not in ls.written
        found = server.fnctl_json("top", "--once")

        assert [(each["name"], each["state"]) for each in found["functions"]] == [("scale", "warm")]
        assert found["server"]["workers"] == 2
        assert found["ignored"] == {}


def test_a_server_is_watched_over_ssh(tmp_path: Path) -> None:
    """top works over SSH as it does locally."""
    home = tmp_path / "home"
    home.mkdir()
    with server_process(tmp_path / "data") as server, sshd(tmp_path / "sshd") as far:
        way = {
            "HOME": str(home),
            "FN_SSH": far.target,
            "FN_IDENTITY": str(far.identity),
            "FN_KNOWN_HOSTS": str(far.known_hosts),
        }
        with shown(server, "top", **way) as top:
            top.until("live", "no functions yet")
            top.press("q")
            assert top.ended() == (0, True)
        with shown(server, "top", **way) as top:
            top.until("live")
            far.stop()
            top.until("reconnecting")
            top.press("q")
            assert top.ended() == (0, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_leaves_the_terminal_as_it_was(
    telling: EventServer, number: signal.Signals
) -> None:
    """A signal restores echo, line mode, cursor and the earlier screen."""
    with before(telling, "top") as top:
        top.until("live")

        top.send(number)

        assert top.ended() == (128 + number, True)
        assert LEAVE_SCREEN in top.written
        assert top.written.rindex("\x1b[?25h") > top.written.rindex("\x1b[?25l")


def test_a_refusal_leaves_the_terminal_as_it_was(telling: EventServer) -> None:
    """A refusal while top runs restores the terminal and is reported like any error."""
    with before(telling, "top") as top:
        top.until("live")

        telling.refuse()
        telling.drop()

        assert top.ended() == (1, True)
        assert "error: A key is needed" in top.written.rpartition(LEAVE_SCREEN)[2]


def test_ctrl_z_and_fg(telling: EventServer) -> None:
    """Ctrl-Z restores the shell's terminal; after fg the display is current."""
    with before(telling, "top") as top:
        top.until("live", "f01")
        top.press("\x1a")
        top.until_written("[stopped same]")
        assert top.written.index(LEAVE_SCREEN) < top.written.index("[stopped same]")

        telling.tell(("functions", {"items": [line("f00", state="warm", held=7)]}))
        top.press("\n")
        top.until_so(lambda: top.written.count(ENTER_SCREEN) == 2, "the screen again")
        telling.tell(beat())
        top.until("warm 1 of 40")

        top.press("q")
        assert top.ended() == (0, True)


def test_sizes_and_keys(telling: EventServer) -> None:
    """Rows scroll, a filter narrows them, and a terminal that is too small shows a message
    instead."""
    with before(telling, "top") as top:
        top.until("live", "f00")
        top.press("\x1b[F")
        top.until("f39")
        top.press("/f2")
        top.until("/f2", "f20")
        top.press("\x1b[B\r")
        top.until("filter f2")
        top.resize(50, 10)
        top.until("50x10 is too small")
        top.resize(60, 15)
        top.until_so(lambda: len(top.screen) == 15 and "f20" in "".join(top.screen), "15 lines")
        top.press("\x1b")
        top.press("?")
        top.until("escape back", "select a function")
        top.press("qq")
        assert top.ended() == (0, True)


def test_no_color_is_heard(telling: EventServer) -> None:
    """With NO_COLOR no colours are written, on a full screen or in place."""
    with before(telling, "top", NO_COLOR="1") as top:
        top.until("live")
        top.press("q")
        top.ended()

    for code in range(30, 38):
        assert f"\x1b[{code}m" not in top.written
        assert f";{code}m" not in top.written


def test_a_terminal_that_knows_nothing_gets_one_picture(telling: EventServer) -> None:
    """With TERM=dumb one snapshot is printed."""
    with before(telling, "top", TERM="dumb") as top:
        assert top.ended() == (0, True)

    assert "f39" in top.written
    assert ENTER_SCREEN not in top.written


def test_a_thousand_functions_are_some_rows(telling: EventServer) -> None:
    """A thousand functions fit the screen's lines."""
    telling.first = snapshot([line(f"f{number:04d}", rate=1.0) for number in range(1000)])
    with before(telling, "top") as top:
        top.until("live", "warm 0 of 1000", "f0000")
        assert "f0100" not in top.written
        top.press("\x1b[F")
        top.until("f0999")
        top.press("q")
        assert top.ended() == (0, True)


def test_a_pipe_that_is_closed_ends_the_stream(telling: EventServer) -> None:
    """A closed pipe, as in `fnctl top --json | head -1`, ends the command without an error."""
    environment = {**os.environ, "FN_URL": telling.url, "FN_KEY": "k"}
    with subprocess.Popen(
        [FNCTL, "top", "--json"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        process.stdout.close()
        telling.tell(*[beat()] * 100)
        assert process.stderr.read() == b""
        process.wait(30)

    assert first["event"] == "reset"
