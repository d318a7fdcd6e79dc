"""A whole replica process; the test plays its manager."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from runtime_image.contract.control import CONTROL_SOCKET, DATA_SOCKET, RECORD_FILE, ReplicaRecord
from runtime_image.contract.link import VERSION, Kind
from runtime_image.contract.model import InputRule, ModelSpec
from runtime_image.link.frames import pack
from runtime_image.link.meta import unpack_answer
from runtime_image.link.record import EXIT_OTHER_LINK
from runtime_image.replica.worker import EXIT_FAULT
from tests.support import mixing, prepared
from tests.support.blocking import BlockingLink
from tests.support.greetings import bind_request

SPEC = ModelSpec("digits@1", handler="handler.py", inputs={"x": InputRule("json")})
RECORD = ReplicaRecord(
    "aaaa0001",
    "secret",
    "serve",
    "default",
    "default/digits@1",
    "",
    ("cpu:0",),
    "cpu",
    "python",
    threads=1,
    orphan_s=0.0,
    memory_mib=0,
    launched_s=0.0,
    link=VERSION,
    phases={"place": 1.5},
)
STANDBY = {"role": "standby", "bound": "", "namespace": "", "devices": (), "phases": {}}

pytestmark = pytest.mark.slow


class Play:
    """Run folder, both listeners and the replica process."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        (run_dir / "handler.py").write_text("def predict(inputs, ctx): return {'y': 1}\n")
        self._listeners = {name: listener(run_dir / name) for name in (CONTROL_SOCKET, DATA_SOCKET)}
        self._process: subprocess.Popen[str] | None = None
        self._links: list[BlockingLink] = []

    def launch(self, **changes: Any) -> None:
        record = replace(
            RECORD, model_dir=str(self.run_dir), launched_s=time.monotonic(), **changes
        )
        (self.run_dir / RECORD_FILE).write_text(json.dumps(asdict(record)))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-m", "runtime_image", str(self.run_dir)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def accept(self) -> BlockingLink:
        """Accept the replica's next connection."""
        sock, _ = self._listeners[CONTROL_SOCKET].accept()
        self._links.append(BlockingLink(sock))
        return self._links[-1]

    def greet(self, **changes: Any) -> tuple[BlockingLink, dict[str, Any]]:
        """Launch and welcome the replica; return the control link and the fields of HELLO."""
        self.launch(**changes)
        link = self.accept()
        hello: dict[str, Any] = json.loads(link.next(Kind.HELLO).body)
        data = self._listeners[DATA_SOCKET].fileno()
        socket.send_fds(link.sock, [b"".join(pack(Kind.WELCOME))], [data])
        return link, hello

    def gateway(self) -> BlockingLink:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(self.run_dir / DATA_SOCKET))
        self._links.append(BlockingLink(sock))
        return self._links[-1]

    def deafen(self) -> None:
        """Close the listener, so that the replica cannot reconnect."""
        self._listeners[CONTROL_SOCKET].close()

    def term(self) -> None:
        assert self._process is not None
        self._process.terminate()

    def end(self) -> tuple[int, str]:
        """Wait for the exit; return exit code and output."""
        assert self._process is not None
        output, _ = self._process.communicate(timeout=30)
        return self._process.returncode, output

    def close(self) -> None:
        for link in self._links:
            link.close()
        for sock in self._listeners.values():
            sock.close()
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.listen()
    return sock


def bind(link: BlockingLink, spec: ModelSpec = SPEC, **changes: Any) -> None:
    link.send(Kind.BIND, body=json.dumps(bind_request(spec, **changes)).encode())


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    made = Play(tmp_path)
    yield made
    made.close()


def test_the_life_of_a_replica(play: Play) -> None:
    """A replica greets with its token, answers PING, loads, serves, and exits on request."""
    link, hello = play.greet()
    link.send(Kind.PING)
    pong = link.next(Kind.PONG)
    bind(link)
    loaded = json.loads(link.next(Kind.LOADED).body)
    gateway = play.gateway()
    gateway.request(1)
    gateway.next(Kind.STARTED)
    answer = gateway.next(Kind.RESPONSE)
    first_run = link.next(Kind.FIRST_RUN)
    link.send(Kind.DRAIN)

    assert (hello["token"], hello["bound"]) == ("secret", "default/digits@1")
    assert {"place", "start", "import"} == set(hello["phases"])
    assert "loaded" not in hello
    assert pong.aux == 0
    assert (loaded["revision"], loaded["limit"]) == ("digits@1", 2)
    assert loaded["session"] == "none"
    assert {"place", "start", "import", "bind", "load"} == set(loaded["phases"])
    assert json.loads(answer.body)["outputs"] == {"y": 1}
    assert first_run.aux >= 0
    assert play.end() == (0, "")


JOINS = ModelSpec("digits@1", model="compress.onnx", batch_max=8, batch_wait_ms=200.0)


def body(*rows: float) -> bytes:
    return json.dumps({"inputs": {"x": [[row] * 4 for row in rows]}}).encode()


def test_a_replica_that_sees_rows_mix_says_so(play: Play) -> None:
    """A replica that detects mixed rows reports it once, and again to a later manager; from then on
    it answers all requests singly."""
    mixing.compress(play.run_dir)
    link, _ = play.greet(engine="onnx")
    bind(link, JOINS)
    link.next(Kind.LOADED)
    gateway = play.gateway()

    gateway.request(1, body=body(1))
    gateway.request(2, body=body(-5))
    told = next(frame for frame in iter(link.next, None) if frame.kind is Kind.BATCHING_OFF)
    found = [gateway.answer() for _ in range(2)]
    answers = {frame.id: json.loads(frame.body)["outputs"]["y"] for frame in found}
    link.close()
    hello = json.loads(play.accept().next(Kind.HELLO).body)

    assert answers == {1: [[1.0] * 4], 2: []}
    reason = "output y of a joined run of 2 rows has shape [1, 4]"
    assert json.loads(told.body) == {"reason": reason}
    assert hello["loaded"]["batching_off"] == reason


def test_a_replica_told_to_stop_batching_runs_requests_singly(play: Play) -> None:
    """BATCHING_OFF takes effect before and after the load."""
    mixing.compress(play.run_dir)
    link, _ = play.greet(engine="onnx")
    link.send(Kind.BATCHING_OFF)
    bind(link, JOINS)
    link.next(Kind.LOADED)
    gateway = play.gateway()

    gateway.request(1, 2, body=body(-5))
    answers = [gateway.answer() for _ in range(2)]

    assert [unpack_answer(frame.meta).rows for frame in answers] == [1, 1]
    link.send(Kind.PING)
    assert {link.next().kind for _ in range(2)} == {Kind.FIRST_RUN, Kind.PONG}


def test_a_standby_becomes_what_it_is_bound_to(play: Play) -> None:
    """A standby greets unbound and answers PING. Once bound it loads and serves. Its receipt holds
    only phases that delayed a caller; `bind` counts from the decision."""
    link, hello = play.greet(**STANDBY)
    link.send(Kind.PING)
    pong = link.next(Kind.PONG)
    now_s = time.monotonic()
    bind(link, phases={"place": 1.5, "evict": 2.0}, assigned_s=now_s / 2)
    loaded = json.loads(link.next(Kind.LOADED).body)
    gateway = play.gateway()
    gateway.request(1)
    gateway.next(Kind.STARTED)
    answer = gateway.next(Kind.RESPONSE)

    assert (hello["token"], hello["bound"], hello["phases"]) == ("secret", "", {})
    assert "loaded" not in hello
    assert pong.aux == 0
    assert loaded["phases"].keys() == {"place", "evict", "bind", "load"}
    assert (loaded["phases"]["place"], loaded["phases"]["evict"]) == (1.5, 2.0)
    assert loaded["phases"]["bind"] >= now_s / 2 * 1e3
    assert json.loads(answer.body)["outputs"] == {"y": 1}


def test_a_standby_may_become_a_trial(play: Play) -> None:
    """A standby's role is part of its BIND."""
    link, _ = play.greet(**STANDBY)

    bind(link, role="trial")

    assert json.loads(link.next(Kind.LOADED).body)["report"]["signature"]["kind"] == "json"


def test_a_bound_standby_says_so_to_a_new_manager(play: Play) -> None:
    """A bound standby's HELLO to a new manager names its revision."""
    link, _ = play.greet(**STANDBY)
    bind(link)
    link.next(Kind.LOADED)

    link.close()
    hello = json.loads(play.accept().next(Kind.HELLO).body)

    assert (hello["bound"], hello["loaded"]["revision"]) == ("default/digits@1", "digits@1")
    assert hello["phases"].keys() == {"place", "bind"}


def test_a_decision_of_the_future_has_no_phase(play: Play) -> None:
    """A decision time in the future gives no `bind` phase, because no phase is negative."""
    link, _ = play.greet(**STANDBY)

    bind(link, assigned_s=time.monotonic() + 3600)

    assert json.loads(link.next(Kind.LOADED).body)["phases"]["bind"] == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"threads": "all"}, "malformed BIND: expected a number of 0 or more as threads"),
        ({"bound": "default/letters@1"}, "expected BIND to default/digits@1, got one to"),
    ],
)
def test_a_bind_that_does_not_fit_is_refused(
    play: Play, changes: dict[str, Any], reason: str
) -> None:
    """An invalid BIND is refused with a reason, loads nothing, and does not prevent a valid one."""
    link, _ = play.greet()

    bind(link, **changes)
    refused = json.loads(link.next(Kind.LOAD_FAILED).body)
    bind(link)

    assert refused["stage"] == "load"
    assert refused["reason"].startswith(reason)
    assert link.next(Kind.LOADED)


def test_a_recently_used_replica_stays(play: Play) -> None:
    """If it has been idle for less than requested, a replica stays and reports its idle time in
    milliseconds."""
    link, _ = play.greet()
    bind(link)
    link.next(Kind.LOADED)

    link.send(Kind.DRAIN, aux=3_600_000)

    assert link.next(Kind.NOT_IDLE).aux < 3_600_000


@pytest.mark.parametrize("record", [{}, STANDBY], ids=["launched", "standby"])
@pytest.mark.parametrize("how", ["drain", "term"])
def test_a_replica_without_a_model_exits_at_once(
    play: Play, how: str, record: dict[str, Any]
) -> None:
    """A replica without a model exits at once, because it owes no answer."""
    link, _ = play.greet(**record)
    link.send(Kind.PING)
    link.next(Kind.PONG)

    if how == "drain":
        link.send(Kind.DRAIN)
    else:
        play.term()

    assert play.end() == (0, "")


def test_a_failed_load_is_reported_and_can_be_repeated(play: Play) -> None:
    """A failed load is reported with its reason, and the replica can be bound again."""
    link, _ = play.greet()

    bind(link, replace(SPEC, handler="missing.py"))
    failed = json.loads(link.next(Kind.LOAD_FAILED).body)
    bind(link)

    assert failed["stage"] == "load"
    assert "FileNotFoundError" in failed["reason"]
    assert link.next(Kind.LOADED)


def test_a_load_may_raise_anything(play: Play) -> None:
    """A load that raises a BaseException is refused like any other."""
    (play.run_dir / "gives_up.py").write_text(
        "def load(ctx): raise KeyboardInterrupt('no')\ndef predict(inputs, ctx): return {}\n"
    )
    link, _ = play.greet()

    bind(link, replace(SPEC, handler="gives_up.py"))

    assert json.loads(link.next(Kind.LOAD_FAILED).body)["reason"] == (
        "handler.py load(ctx) raised KeyboardInterrupt: no (gives_up.py:1 in load)"
    )


ESCAPES = """
import runtime_image.replica.{module} as module

def predict(inputs, ctx):
    def broken(*_):
        raise SystemExit(0)
    module.{name} = broken
    raise ValueError
"""


@pytest.mark.parametrize(
    ("thread", "module", "name"),
    [("worker", "runner", "_failure"), ("MainThread", "main", "Replica._pong")],
)
def test_an_exception_that_nothing_handles_ends_the_process(
    play: Play, thread: str, module: str, name: str
) -> None:
    """An unhandled exception in the worker thread or the loop ends the process with a message and a
    non-zero code."""
    (play.run_dir / "escapes.py").write_text(ESCAPES.format(module=module, name=name))
    link, _ = play.greet()
    bind(link, replace(SPEC, handler="escapes.py"))
    link.next(Kind.LOADED)
    gateway = play.gateway()
    gateway.request(1)
    gateway.next(Kind.STARTED)
    if thread == "MainThread":
        gateway.next(Kind.FAILED)
        link.send(Kind.PING)

    code, output = play.end()

    said = output.splitlines()[-1]
    assert (code, said) == (
        EXIT_FAULT,
        f"fngate replica: the thread {thread} ended with SystemExit(0)",
    )


def test_a_trial_reports(play: Play) -> None:
    """A trial replica measures and serves no requests."""
    link, _ = play.greet(role="trial")

    bind(link, role="trial")
    loaded = json.loads(link.next(Kind.LOADED).body)

    assert loaded["limit"] == 0
    assert loaded["report"]["signature"]["kind"] == "json"


def test_a_trials_sample_may_fail(play: Play) -> None:
    """The reported stage distinguishes a bad sample from a bad model."""
    link, _ = play.greet(role="trial")

    bind(link, replace(SPEC, sample={"x": "@missing.bin"}), role="trial")

    assert json.loads(link.next(Kind.LOAD_FAILED).body)["stage"] in ("load", "sample")


@pytest.mark.parametrize("record", [{}, STANDBY], ids=["launched", "standby"])
def test_a_second_bind_is_not_a_second_load(play: Play, record: dict[str, Any]) -> None:
    """A BIND for the revision that is already served does not load again."""
    link, _ = play.greet(**record)
    bind(link)
    link.next(Kind.LOADED)

    bind(link)
    link.send(Kind.PING)

    assert link.next().kind is Kind.PONG


def test_a_frame_of_the_data_link_ends_the_control_link(play: Play) -> None:
    """A replica closes the control link on a protocol violation and reconnects."""
    link, _ = play.greet()

    link.send(Kind.REQUEST)

    with pytest.raises(EOFError):
        link.next()
    assert play.accept().next(Kind.HELLO)


@pytest.mark.parametrize("record", [{}, STANDBY], ids=["launched", "standby"])
def test_an_orphan_exits(play: Play, record: dict[str, Any]) -> None:
    """Without a manager for `orphan_s` the replica exits with its own exit code."""
    link, _ = play.greet(**record)
    play.deafen()
    link.close()

    assert play.end() == (70, "")


def test_a_refused_greeting_is_the_end(play: Play) -> None:
    """A refused replica reports it and exits."""
    play.launch()
    play.accept().close()

    code, output = play.end()

    assert code == 1
    assert output.startswith("fngate replica: ")


def test_a_manager_of_another_link_is_refused(play: Play) -> None:
    """For a manager of another link version the replica exits with its own code and one line,
    without connecting."""
    play.launch(link=VERSION + 1)

    code, output = play.end()

    assert code == EXIT_OTHER_LINK
    assert output.startswith(f"fngate replica: this replica speaks link version {VERSION}, ")
    assert output.count("\n") == 1


def test_a_prepared_model_is_said_to_be_one(play: Play) -> None:
    """LOADED says which session serves first, also to a later manager."""
    prepared.prepare(prepared.layers(play.run_dir))
    link, _ = play.greet(engine="onnx")

    bind(link, prepared.spec(prepared.preparation()))
    loaded = json.loads(link.next(Kind.LOADED).body)
    link.close()
    hello = json.loads(play.accept().next(Kind.HELLO).body)

    assert loaded["session"] == hello["loaded"]["session"] == "quick"
