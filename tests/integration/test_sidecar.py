"""Tests of a real sidecar process around a tiny HTTP server, from launch to exit."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.marked import marked
from pool_manager.replicas.messages import WORDS
from runtime_image.contract.link import Flag, Kind, NotStarted
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.server import ServerSpec
from runtime_image.server import namespaces, reaper
from runtime_image.server.process_tree import Process, descendants
from tests.support import foreign_servers
from tests.support.own_engine import await_condition
from tests.support.sidecar_process import PATIENCE_S, PATIENT_FOR_LESS, Sidecar, ask, sidecar, tiny

HIDING = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    if os.getuid() == 0:
        os.setuid(65534)
    os.execve("/bin/sleep", ["sleep", "1000"], {})
os.execve(sys.executable, ["python", "-I", "server.py", sys.argv[1]], {"HOME": os.environ["HOME"]})
"""
"""A server of which a process is an orphan with another user, a session of its own and an empty
environment, and ignores TERM."""
NO_NAMESPACES = """
from pathlib import Path
from runtime_image.server import libc, namespaces
namespaces.enter(libc.CLONE_NEWUSER, 0)
for kind in ("user", "mnt", "net"):
    Path(f"/proc/sys/user/max_{kind}_namespaces").write_text("0")
"""
"""A sidecar that may create no namespaces: the limits are those of its user namespace alone."""
REFUSED = namespaces.in_child(partial(namespaces.enter, namespaces.OWN, 8000))
"""Why this machine refuses namespaces, "" if it does not."""
ISOLATED = pytest.mark.skipif(bool(REFUSED), reason=f"namespaces are refused: {REFUSED}")
NO_PIDS = namespaces.in_child(partial(namespaces.enter_all, namespaces.OWN, 8000))
"""Why it refuses a PID namespace in them."""
OWN_PIDS = pytest.mark.skipif(bool(NO_PIDS), reason=f"PID namespaces are refused: {NO_PIDS}")


@pytest.fixture
def web() -> Iterator[Sidecar]:
    """A sidecar whose server is ready."""
    with sidecar(tiny(concurrency=2)) as started:
        started.ready()
        yield started


def script(text: str, **changes: object) -> ServerSpec:
    """Return the specification of a server that is this Python program."""
    return tiny(command=(sys.executable, "-I", "-c", text, "${PORT}"), **changes)


def last_line(started: Sidecar) -> str:
    """Return the last line of the log, which is the reason that people see."""
    line = started.log.read_text().splitlines()[-1]
    assert line.startswith(WORDS), started.log.read_text()
    return line.removeprefix(WORDS)


def tree(started: Sidecar) -> dict[Process, int]:
    """Return all processes below the sidecar, each with a pidfd."""
    return {one: os.pidfd_open(one.pid) for one in descendants(started.process.pid)}


def of_server(started: Sidecar) -> list[int]:
    """Return the pids of the server's processes."""
    pids = [one.pid for one in descendants(started.process.pid)]
    return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().strip() != reaper.NAME]


def all_end(processes: dict[Process, int]) -> bool:
    """Wait until all processes have ended, and close their pidfds; False if one does not."""
    ended = []
    for pidfd in processes.values():
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        ended.append(bool(poll.poll(PATIENCE_S * 1e3)))
        os.close(pidfd)
    return all(ended)


def drain(started: Sidecar, if_idle_ms: int = 0) -> None:
    """Ask for a drain."""
    started.control.send(Kind.DRAIN, aux=if_idle_ms)


def test_the_server_gets_ready_and_its_start_is_reported() -> None:
    """LOADED has the limit, the phases and the memory."""
    with sidecar(tiny(concurrency=7)) as started:
        loaded = started.ready()

        assert loaded["revision"] == "web@1"
        assert loaded["limit"] == 7
        assert loaded["marks_started"] is True
        assert loaded["session"] == "none"
        assert {"start", "import", "bind", "load"} == set(loaded["phases"])
        assert 1 < loaded["memory_mib"] < 500


def test_a_gateway_talks_to_the_server_over_a_socket_that_was_passed(web: Sidecar) -> None:
    """The connection is an ordinary one, and the first grant is reported."""
    gateway = web.gateway()
    assert gateway.greeting == {"revision": "web@1", "limit": 2}

    assert ask(gateway.open(1)) == b"hello"
    assert web.expect(Kind.FIRST_RUN).aux == 0


@ISOLATED
def test_nobody_outside_reaches_the_server(web: Sidecar) -> None:
    """The port is the server's own, in a network of its own."""
    assert ask(web.gateway().open(1)) == b"hello"

    with socket.socket() as outside, pytest.raises(ConnectionRefusedError):
        outside.connect(("127.0.0.1", 8000))


@ISOLATED
def test_the_server_sees_its_bundle_read_only_and_no_run_folder(web: Sidecar) -> None:
    """It can read neither the token nor a socket of a replica, and has no descriptor of the
    sidecar's."""
    gateway, ids = web.gateway(), itertools.count(1)

    def look() -> dict[str, Any]:
        id = next(ids)
        with closing(gateway.open(id)) as connection:
            found: dict[str, Any] = json.loads(ask(connection, "/look"))
        gateway.end(id)
        return found

    def has_two_sockets() -> bool:
        files: list[str] = look()["fds"]
        return sum(file.startswith("socket:") for file in files) == 2

    seen = look()
    assert seen["bundle"] == "Read-only file system"
    assert seen["cwd"] == str(web.model_dir)
    assert seen["run"] == ["server"]
    assert seen["token"] == "Permission denied"
    assert seen["pids"] == [1, 2] or NO_PIDS
    assert seen["sid"] is True
    files = [file for file in seen["fds"] if not file.startswith("socket:")]
    assert set(files) <= {"/dev/null", str(web.log)}
    # Its listener and this connection; for a moment that of a probe, and of one before.
    await_condition(has_two_sockets, "it has more sockets than its own")


def test_the_server_gets_a_small_environment() -> None:
    """Only what the driver passes on, the specification's variables, and ours."""
    with sidecar(tiny(env={"APP": "at ${PORT}", "FN_REPLICA": "other"})) as started:
        started.ready()
        environment = json.loads(ask(started.gateway().open(1), "/environment"))

    own = {"PATH", "HOME", "TMPDIR", "LANG", "PORT", "FN_REPLICA", "FN_BUNDLE", "APP"}
    assert set(environment) == own
    assert environment["APP"] == f"at {environment['PORT']}"
    assert environment["FN_REPLICA"] == str(started.run_dir)


def test_a_full_server_offers_the_next_slot(web: Sidecar) -> None:
    """FULL, then WINDOW once an exchange ends; an exchange without slot is served meanwhile."""
    one, other = web.gateway(), web.gateway()
    one.open(1)
    one.open(2)
    other.link.send(Kind.OPEN, 1)
    assert other.link.next(Kind.NOT_STARTED).aux == NotStarted.FULL
    assert ask(other.open(2, Flag.FREE)) == b"hello"

    one.end(1)

    assert other.link.next(Kind.WINDOW).aux == 1
    assert ask(other.open(3)) == b"hello"


def test_a_kept_connection_is_reused_and_recalled(web: Sidecar) -> None:
    """REUSE takes no answer; a link that waits gets idle connections recalled."""
    one, other = web.gateway(), web.gateway()
    kept = one.open(1)
    one.open(2)
    assert ask(kept) == b"hello"
    one.end(1, is_kept=True)
    one.link.send(Kind.OPEN, 3, flags=Flag.REUSE, aux=1)
    assert ask(kept) == b"hello"
    one.end(3, is_kept=True)

    other.link.send(Kind.OPEN, 1)

    # Exchange 2 may have ended without having been told: ends are told at once from now on.
    assert [one.link.next(Kind.RECALL).id for _ in range(2)] == [0, 3]
    one.end(3)
    assert other.link.next(Kind.NOT_STARTED).aux == NotStarted.FULL
    assert other.link.next(Kind.WINDOW).aux == 1


def test_the_end_of_a_link_ends_its_exchanges(web: Sidecar) -> None:
    """Every holder of the socket reads its end, and the slot is free."""
    one, other = web.gateway(), web.gateway()
    stream = one.open(1)
    assert b"begun" in ask(stream, "/stream", to_end=False) or stream.recv(16) == b"begun"
    one.open(2)

    one.close()

    assert stream.recv(16) == b""
    assert ask(other.open(1)) == b"hello"


def test_an_exchange_is_shut_after_max_s() -> None:
    """The sidecar does it by itself, MAX_GRACE_S later."""
    with sidecar(tiny(max_s=0.1), preamble=PATIENT_FOR_LESS) as started:
        started.ready()
        stream = started.gateway().open(1)

        assert stream.recv(16) == b""


def test_a_conditional_drain_is_refused_while_in_use(web: Sidecar) -> None:
    """NOT_IDLE with 0, and the server serves on."""
    gateway = web.gateway()
    gateway.open(1)
    web.expect(Kind.FIRST_RUN)

    drain(web, 500)

    assert web.expect(Kind.NOT_IDLE).aux == 0
    assert ask(gateway.open(2)) == b"hello"


def test_an_idle_server_stops_once_its_gateways_agree(web: Sidecar) -> None:
    """QUIESCE to every gateway; after the last answer the server gets TERM, and the exit is 0."""
    gateway = web.gateway()
    processes = tree(web)

    drain(web, 1)
    gateway.link.next(Kind.QUIESCE)
    gateway.link.send(Kind.QUIESCED)

    assert web.exit_code() == 0
    assert all_end(processes)


def test_a_soft_drain_is_revoked(web: Sidecar) -> None:
    """QUIESCE and RESUME of the manager: the gateways get WINDOW, the manager NOT_IDLE."""
    gateway = web.gateway()
    gateway.open(1)
    web.expect(Kind.FIRST_RUN)
    web.control.send(Kind.QUIESCE)
    gateway.link.next(Kind.QUIESCE)
    gateway.link.send(Kind.QUIESCED, aux=1)

    web.control.send(Kind.RESUME)

    assert web.expect(Kind.NOT_IDLE).aux == 0
    assert gateway.link.next(Kind.WINDOW).aux == 0
    assert ask(gateway.open(2)) == b"hello"


def test_a_gateway_that_does_not_answer_quiesce_is_ended() -> None:
    """Its exchange is shut, and the drain ends."""
    with sidecar(tiny(), preamble=PATIENT_FOR_LESS) as started:
        started.ready()
        stream = started.gateway().open(1)

        drain(started)

        assert stream.recv(16) == b""
        assert started.exit_code() == 0


def test_term_shuts_what_is_open(web: Sidecar) -> None:
    """TERM to the sidecar's group does not reach the server's, which ends by its own TERM."""
    stream = web.gateway().open(1)

    os.killpg(web.process.pid, signal.SIGTERM)

    assert stream.recv(16) == b""
    assert web.exit_code() == 0


def test_a_server_that_ignores_term_is_killed() -> None:
    """After `stop_grace_s`."""
    with sidecar(tiny("ignore-term", stop_grace_s=0.3)) as started:
        started.ready()
        processes = tree(started)

        drain(started)

        assert started.exit_code() == 0
        assert all_end(processes)


def test_orphans_end_with_the_server(web: Sidecar) -> None:
    """A process that forked twice and has a session of its own is found below the subreaper."""
    assert ask(web.gateway().open(1), "/orphan") == b"hello"
    processes = tree(web)
    assert len(of_server(web)) == 2

    os.killpg(web.process.pid, signal.SIGTERM)

    assert web.exit_code() == 0
    assert all_end(processes)


def test_a_process_that_forks_for_ever_is_caught() -> None:
    """Each one forks and exits, in a session of its own: a list of processes is always too old."""
    hopping = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    while True:\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "os.execv(sys.executable, ['python', '-I', 'server.py', sys.argv[1]])"
    )
    with sidecar(script(hopping, stop_grace_s=0.1)) as started:
        started.ready()

        drain(started)

        assert started.exit_code() == 0
        assert marked(started.run_dir.parent) == {}


def test_the_server_dies_with_a_killed_sidecar(web: Sidecar) -> None:
    """The kernel ends it, without help."""
    processes = tree(web)

    web.process.kill()

    assert all_end(processes)


@OWN_PIDS
def test_what_hides_dies_with_a_killed_sidecar() -> None:
    """In a PID namespace the kernel ends also what no search finds."""
    with sidecar(script(HIDING)) as started:
        started.ready()
        processes = tree(started)
        assert len(processes) == 3
        assert marked(started.run_dir.parent) == {}

        started.process.kill()

        assert all_end(processes)


@OWN_PIDS
def test_workers_of_nginx_die_with_a_killed_sidecar(tmp_path: Path) -> None:
    """They write over their environment, so that no marker is left in it."""
    foreign = foreign_servers.nginx(tmp_path, 8000)
    with sidecar(tiny(command=tuple(foreign.command), port=8000)) as started:
        started.ready()
        processes = tree(started)
        assert len(processes) == 3
        names = {Path(f"/proc/{one.pid}/comm").read_text().strip() for one in processes}
        assert names == {reaper.NAME, "nginx"}

        started.process.kill()

        assert all_end(processes)


def test_what_hides_ends_with_its_sidecar() -> None:
    """Also without namespaces: it is below the sidecar, a subreaper."""
    with sidecar(script(HIDING, network="egress", stop_grace_s=0.1)) as started:
        started.ready()
        processes = tree(started)
        assert len(processes) == 2

        drain(started)

        assert started.exit_code() == 0
        assert all_end(processes)


@OWN_PIDS
def test_the_end_of_the_reaper_is_that_of_the_server(web: Sidecar) -> None:
    """The kernel ends all others; the sidecar exits as for any end of its server."""
    processes = tree(web)
    (first,) = {one.pid for one in processes} - {*of_server(web)}

    os.kill(first, signal.SIGKILL)

    assert web.exit_code() == 1
    assert last_line(web) == "the server was killed by SIGKILL"
    assert all_end(processes)


def test_the_exit_of_the_server_is_the_end_of_the_replica(web: Sidecar) -> None:
    """The log's last line says how it ended."""
    gateway = web.gateway()
    connection = gateway.open(1)

    connection.sendall(b"GET /exit HTTP/1.1\r\n\r\n")

    assert web.exit_code() == 1
    assert last_line(web) == "the server exited with code 3"


def test_a_server_over_its_memory_is_ended() -> None:
    """All its processes count together, and the reason names both numbers."""
    with sidecar(tiny(), memory_mib=200) as started:
        started.ready()
        started.gateway().open(1).sendall(b"GET /eat HTTP/1.1\r\n\r\n")

        assert started.exit_code() == 1
        # The eater may be seen before it has everything.
        said = r"the server used (\d+) MiB of memory, its cap is 200 MiB"
        found = re.fullmatch(said, last_line(started))
        assert found
        assert int(found[1]) > 200


def test_a_server_that_exits_at_once_is_a_failed_start() -> None:
    """The reason says so, with what was expected and got."""
    with sidecar(tiny("exit")) as started:
        failure = started.failed()

        assert failure["stage"] == "start"
        assert failure["reason"].startswith(
            "the server exited with code 0 before it was ready (it must stay in the foreground);"
            " expected a status from 200 to 499 for /, got: "
        )


def test_a_command_that_does_not_exist_is_a_failed_start() -> None:
    """The reason names it, the folders that were searched, and the setting of these."""
    with sidecar(tiny(command=("no-such-command",))) as started:
        failure = started.failed()

        reason = failure["reason"]
        assert failure["stage"] == "start"
        assert reason.startswith("cannot start the server: no-such-command: not found in /")
        assert "(FN_SERVER_PATH)" in reason
        drain(started)
        assert started.exit_code() == 1
        assert last_line(started) == reason


def test_a_server_that_never_gets_ready_is_a_failed_start() -> None:
    """After `start_s`, with the last answer."""
    with sidecar(tiny(ready="/busy", start_s=0.5)) as started:
        failure = started.failed()

        assert failure["reason"] == (
            "not ready within 0.5 s; expected a status from 200 to 399 for /busy,"
            " got: 503 Service Unavailable"
        )


def test_a_start_tells_what_its_probes_meet() -> None:
    """Every second, until the server is ready; with how long that is so."""
    with sidecar(tiny(ready="/busy", env={"REFUSAL": "404"})) as started:
        started.bind()
        told = [json.loads(started.expect(Kind.PROBED).body) for _ in range(2)]

    seconds = [one.pop("seconds") for one in told]
    assert told == [{"path": "/busy", "status": 404, "answer": "404 Not Found"}] * 2
    assert 0 <= seconds[0] < seconds[1]


@ISOLATED
def test_a_server_on_another_port_is_a_failed_start() -> None:
    """The reason names the address where it listens."""
    elsewhere = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=9321)"
    with sidecar(script(elsewhere, start_s=2.0)) as started:
        reason = started.failed()["reason"]

    assert "the server listens on 0.0.0.0:9321, expected port 8000 (${PORT})" in reason


@ISOLATED
def test_a_trial_of_a_server_that_answers_elsewhere_fails_early() -> None:
    """Long before `start_s`: it is idle, and answers at another port."""
    elsewhere = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=9321)"
    with sidecar(script(elsewhere, start_s=600.0), role="trial") as started:
        failure = started.failed()

    assert failure["stage"] == "start"
    assert failure["reason"] == (
        "not ready, and idle for 10 s; expected a status from 200 to 499 for /, got: connection"
        " refused; the server listens on 0.0.0.0:9321, expected port 8000 (${PORT})"
    )


@ISOLATED
@pytest.mark.parametrize(
    ("role", "first"),
    [
        ("serve", "s.HTTPServer(('', 9321), s.SimpleHTTPRequestHandler)"),
        ("trial", "socket.create_server(('', 9321))"),
    ],
)
def test_a_slow_server_with_another_port_gets_ready(role: str, first: str) -> None:
    """A cold start goes on, and so does a trial if the other port does not speak HTTP. The log has
    the address."""
    slow = (
        "import http.server as s, signal, socket, sys, threading\n"
        f"first = {first}\n"
        "if hasattr(first, 'serve_forever'):\n"
        "    threading.Thread(target=first.serve_forever, daemon=True).start()\n"
        "signal.sigtimedwait([], 12)\n"
        "s.HTTPServer(('127.0.0.1', int(sys.argv[1])), s.SimpleHTTPRequestHandler).serve_forever()"
    )
    with sidecar(script(slow, start_s=60.0), role=role) as started:
        started.ready()

        told = "fngate: the server listens on 0.0.0.0:9321, expected port 8000 (${PORT})"
        assert told in started.log.read_text().splitlines()


def test_a_server_whose_port_was_taken_is_started_again(tmp_path: Path) -> None:
    """In the host's network another process may take the port until the server listens there."""
    told, go = tmp_path / "told", tmp_path / "go"
    os.mkfifo(told)
    os.mkfifo(go)
    waiting = (
        "import os, sys\n"
        f"if os.path.exists({str(told)!r}):\n"
        f"    open({str(told)!r}, 'w').write(sys.argv[1])\n"
        f"    open({str(go)!r}).read()\n"
        "os.execv(sys.executable, ['python', '-I', 'server.py', sys.argv[1]])"
    )
    with sidecar(script(waiting, network="egress")) as started:
        started.bind()
        port = int(told.read_text())
        told.unlink()
        with socket.create_server(("127.0.0.1", port)):
            go.write_text("")
            started.expect(Kind.LOADED)
        connection = started.gateway().open(1)

        assert ask(connection) == b"hello"
        assert connection.getpeername()[1] != port
        log = started.log.read_text()
        assert f"another process listens on port {port}: the server is started again" in log
        lines = Path(f"/proc/{started.process.pid}/status").read_text().splitlines()
        assert "Seccomp:\t2" in lines


def test_a_port_that_is_named_is_not_changed(tmp_path: Path) -> None:
    """The start fails, and the reason is the server's exit."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with sidecar(tiny(network="egress", port=port)) as started:
            reason = started.failed()["reason"]

    assert reason.startswith("the server exited with code 1 before it was ready;")


def test_a_server_that_accepts_and_never_answers_is_not_ready() -> None:
    """A connection proves nothing."""
    silent = (
        "import socket, sys\n"
        "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "kept = [listener.accept() for _ in range(1000)]"
    )
    with sidecar(script(silent, start_s=1.5)) as started:
        assert started.failed()["reason"].endswith("got: no answer within 1 s")


def test_a_server_on_ipv6_loopback_is_reached() -> None:
    """`localhost` may be either address."""
    with sidecar(tiny("v6")) as started:
        started.ready()

        assert ask(started.gateway().open(1)) == b"hello"


def test_a_server_may_listen_on_a_unix_socket() -> None:
    """${SOCKET} is in a folder that holds nothing else."""
    spec = tiny(command=(sys.executable, "-I", "server.py", "${SOCKET}"))
    with sidecar(spec) as started:
        started.ready()

        assert ask(started.gateway().open(1)) == b"hello"


@ISOLATED
@pytest.mark.parametrize("network", ["none", "egress"])
def test_without_mounts_of_its_own_a_server_runs_and_the_log_says_so(network: str) -> None:
    """Where the kernel refuses namespaces, a command starts as before, with the host's /run."""
    with sidecar(tiny(network=network), preamble=NO_NAMESPACES) as started:
        started.ready()
        seen = json.loads(ask(started.gateway().open(1), "/look"))
        said = started.log.read_text()

    assert seen["bundle"] == "written"
    assert "the server can reach the sockets below /run: namespaces are refused: " in said


def test_egress_uses_the_hosts_network_and_says_so() -> None:
    """A port of a range, and a warning."""
    with sidecar(tiny(network="egress")) as started:
        started.ready()
        connection = started.gateway().open(1)

        port = connection.getpeername()[1]
        assert ask(connection) == b"hello"
        assert 20_000 <= port < 30_000
        warning = f"fngate: local users can reach the server at port {port}: its network is egress"
        assert warning in started.log.read_text().splitlines()


def test_a_stranger_at_the_port_does_not_count_as_the_server() -> None:
    """In the host's network another process may listen there; it gets no request of callers."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        spec = script("import time; time.sleep(600)", network="egress", port=port, start_s=0.5)
        with sidecar(spec) as started:
            reason = started.failed()["reason"]

    assert reason.endswith(f"got: another process listens on port {port}")


def test_a_restarted_manager_adopts_a_ready_server(web: Sidecar) -> None:
    """HELLO carries LOADED; gateways' links and exchanges go on meanwhile."""
    gateway = web.gateway()
    stream = gateway.open(1)

    web.restart_manager()

    assert web.hello["loaded"]["limit"] == 2
    assert web.hello["bound"] == "default/web@1"
    assert ask(stream) == b"hello"
    web.control.send(Kind.PING)
    assert web.expect(Kind.PONG).aux > 0


def test_a_sidecar_without_a_manager_ends() -> None:
    """After `orphan_s`, with its server."""
    with sidecar(tiny()) as started:
        started.ready()
        processes = tree(started)

        started.control_listener.close()
        started.control.close()

        assert started.exit_code() == 70
        assert all_end(processes)


def test_a_trial_reports_its_samples() -> None:
    """Status, time, content type and the beginning of the body."""
    samples = (SampleRequest("/a"), SampleRequest("/busy", "POST", {"X": "y"}, "@server.py", 503))
    with sidecar(tiny(samples=samples), role="trial") as started:
        loaded = started.ready()

    report = loaded["report"]
    assert loaded["limit"] == 0
    assert report["signature"] == {"kind": "http", "inputs": [], "outputs": []}
    assert report["memory_mib"] > 1
    shown = report["sample_outputs"]["requests"]
    assert [(one["method"], one["path"], one["status"]) for one in shown] == [
        ("GET", "/a", 200),
        ("POST", "/busy", 503),
    ]
    assert shown[0]["body"] == "hello"


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"host": "app.example:81"}, "app.example:81"),
        ({}, "127.0.0.1:${PORT}"),
        ({"command": (*tiny().command[:-1], "${SOCKET}")}, "localhost"),
    ],
)
def test_the_host_of_probes_and_samples(changes: dict[str, object], host: str) -> None:
    """A fixed one, or the server's address, which loopback-only servers accept. The server answers
    503 to any other host, so that it gets ready only with this one."""
    env = {"HOST": host}
    spec = tiny(ready="/host", samples=(SampleRequest("/host"),), env=env, **changes)
    with sidecar(spec, role="trial") as started:
        loaded = started.ready()

    assert loaded["report"]["sample_outputs"]["requests"][0]["status"] == 200


@pytest.mark.parametrize(
    ("ready", "refusal", "checks"),
    [
        ("/host", "403", True),
        ("/host", "421", True),
        ("/host", "400", True),
        ("/host", "503", False),
        ("", "403", False),
    ],
)
def test_a_trial_finds_out_whether_the_server_checks_its_host(
    ready: str, refusal: str, checks: bool
) -> None:
    """It does if it refuses a name that it does not know, where it answers its own address, with a
    status for that."""
    env = {"HOST": "127.0.0.1:${PORT}", "REFUSAL": refusal}
    spec = tiny(ready=ready, env=env)
    with sidecar(spec, role="trial") as started:
        loaded = started.ready()

    assert loaded["report"]["checks_host"] is checks


def test_a_trial_with_an_endless_answer_ends() -> None:
    """Its beginning is reported."""
    spec = tiny(samples=(SampleRequest("/stream"),))
    with sidecar(spec, role="trial", preamble=PATIENT_FOR_LESS) as started:
        loaded = started.ready()

    assert loaded["report"]["sample_outputs"]["requests"][0]["body"] == "begun"


def test_a_server_that_exits_at_a_sample_fails_the_trial() -> None:
    """The reason does not say that it never got ready."""
    with sidecar(tiny(samples=(SampleRequest("/exit"),)), role="trial") as started:
        failure = started.failed()

    assert failure["stage"] == "sample"


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (
            SampleRequest("/busy"),
            "GET /busy: expected a status below 400, got 503 Service Unavailable: hello",
        ),
        (SampleRequest("/", status=201), "GET /: expected status 201, got 200 OK: hello"),
        (
            SampleRequest("/", "POST", {}, "@../../log"),
            "/: expected a file of the bundle as body, got log",
        ),
    ],
)
def test_a_sample_that_is_answered_otherwise_fails_the_trial(
    sample: SampleRequest, reason: str
) -> None:
    """The reason has what was expected and got."""
    with sidecar(tiny(samples=(sample,)), role="trial") as started:
        assert started.failed() == {"stage": "sample", "reason": reason}


def test_the_sidecar_has_the_filter_and_its_server_has_not(web: Sidecar) -> None:
    """The filter is inherited for good, and belongs to the sidecar."""
    (server,) = of_server(web)

    def mode(pid: int) -> str:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith("Seccomp:"))

    assert mode(web.process.pid) == "2"
    assert mode(server) == mode(os.getpid())


def test_a_flood_of_frames_ends_its_link_only(web: Sidecar) -> None:
    """A gateway that reads nothing is ended; the others are served."""
    other = web.gateway()
    flood = web.gateway()
    first = other.open(1)
    other.open(2)
    flood.link.sock.settimeout(None)

    def send_all() -> None:
        for id in range(3, 1_000_000):
            flood.link.send(Kind.OPEN, id)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        send_all()

    assert ask(first) == b"hello"
