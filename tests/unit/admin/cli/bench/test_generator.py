"""Loads on real sockets: closed, open, with errors, time limits and a server that goes away."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from selectors import SelectorKey
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from admin.cli.bench import generator
from admin.cli.bench.generator import AWAY, Selector, run_load
from admin.cli.bench.load import LoadPlan, LoadResult
from admin.cli.bench.points import Limits
from admin.client.transport import Dial, Endpoint, Unreachable
from tests.support.load_target import Script, Target, answer, problem, target

OF_PLAN = ("rate", "is_poisson", "is_detailed", "status")
REQUEST = b"POST /x HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


def there(port: int, *, is_secure: bool = False, dial: Dial | None = None) -> Endpoint:
    """A server of this machine."""
    return Endpoint("127.0.0.1", port, is_secure, prefix="", key=None, dial=dial)


def plan(connections: int = 3, seconds: float = 0.3, **limits: Any) -> LoadPlan:
    """A short load."""
    return LoadPlan(connections, Limits(**{"seconds": seconds, "warmup_s": 0.0, **limits}))


def run(port: int, connections: int = 2, seconds: float = 0.2, **options: Any) -> LoadResult:
    """Make a load in this process; `options` are of its plan, or of its limits."""
    own = {name: options.pop(name) for name in OF_PLAN if name in options}
    return run_load(there(port), replace(plan(connections, seconds, **options), **own), REQUEST)


def loaded(script: Script, **options: Any) -> tuple[LoadResult, Target]:
    """Make a load on a server with this script."""
    with target(script) as server:
        return run(server.port, **options), server


def test_each_connection_makes_its_calls() -> None:
    """Every request has one answer, on connections that stay open."""
    found, server = loaded(
        lambda _: answer(), connections=3, seconds=60.0, calls_max=15, is_detailed=True
    )

    assert (len(found.taken_s), len(found.ended_s), found.errors, found.cut) == (15, 15, {}, 0)
    assert (server.requests, server.opened) == (15, 3)
    assert 0 < max(found.taken_s) <= found.elapsed_s


def test_a_load_ends_by_its_limit_of_calls() -> None:
    """Calls in flight end before the load does; the warm-up is not limited."""
    found, server = loaded(lambda _: answer(), warmup_s=0.05, seconds=60.0, calls_max=40)

    assert 40 <= len(found.taken_s) < 42
    assert server.requests > 40
    assert found.cut == 0


def test_errors_count_by_kind_and_have_no_latency() -> None:
    """A refusal, a broken connection and an answer that closes it each count once; the load goes
    on with a new connection."""
    answers: dict[int, bytes] = {
        1: problem(429, "queue_full"),
        2: answer(500),
        3: b"",
        4: answer(503, b"", "Connection: close"),
    }

    found, server = loaded(
        lambda number: answers.get(number, answer()), connections=1, seconds=60.0, calls_max=8
    )

    assert found.errors == {"429 queue_full": 1, "500": 1, "connection lost": 1, "503": 1}
    assert (len(found.taken_s), server.requests, server.opened) == (4, 8, 3)


def test_another_status_may_be_the_expected_one() -> None:
    """With an expected status, every other one is an error."""
    found, _ = loaded(
        lambda number: answer(404 if number else 200),
        connections=1,
        seconds=60.0,
        calls_max=3,
        status=404,
    )
    assert (len(found.taken_s), found.errors) == (2, {"200": 1})


def test_a_call_has_a_time_limit() -> None:
    """A call without an answer fails at its limit, and another connection takes its place."""
    free = threading.Event()

    def script(number: int) -> bytes:
        if number == 0:
            free.wait()
        else:
            free.set()
        return answer()

    found, server = loaded(script, connections=1, seconds=60.0, calls_max=2, timeout_s=0.1)

    assert (found.errors, len(found.taken_s), server.opened) == ({"timeout": 1}, 1, 2)


def test_an_open_load_measures_from_planned_starts() -> None:
    """One stalled answer delays the calls behind it, whose latency says so: a closed load would
    show one long call only (coordinated omission)."""
    stall, stalled_s = threading.Event(), 0.2

    def script(number: int) -> bytes:
        if number == 0:
            stall.wait(stalled_s)
        return answer()

    found, _ = loaded(script, connections=1, seconds=0.4, rate=100.0, is_poisson=False)

    assert len(found.taken_s) == pytest.approx(39, abs=1)
    assert sum(taken > stalled_s / 4 for taken in found.taken_s) >= 10
    assert found.unsent == 0


def test_calls_that_wait_too_long_are_never_sent() -> None:
    """A rate above what the connections allow shows in the count of unsent calls."""
    free = threading.Event()

    def script(_: int) -> bytes:
        free.wait()
        return answer()

    with target(script) as server:
        found = run(server.port, connections=1, seconds=0.2, rate=100.0, timeout_s=0.1)
        free.set()

    assert found.unsent > 5
    assert set(found.errors) <= {"timeout", "connection lost"}


def test_a_server_that_goes_away_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier calls count, and the reason is reported."""
    monkeypatch.setattr(generator, "AWAY_S", 0.3)
    servers: list[Target] = []

    def script(number: int) -> bytes:
        if number == 50:
            servers[0].close()
            return b""
        return answer()

    with target(script) as server:
        servers.append(server)
        found = run(server.port, connections=2, seconds=60.0)

    assert found.stopped.startswith(AWAY)
    assert len(found.taken_s) == pytest.approx(50, abs=2)
    assert found.errors["no connection"] > 0


def test_the_end_of_an_open_load_costs_no_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last planned start the generator waits for answers. Polling without a pause would
    take processor time from the server, and cause the note about a busy generator."""
    free = threading.Event()
    turns = 0

    class Counted(Selector):
        def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
            nonlocal turns
            turns += 1
            return super().select(timeout)

    def script(_: int) -> bytes:
        free.wait(0.5)
        return answer()

    monkeypatch.setattr(generator, "Selector", Counted)
    with target(script) as server:
        found = run(server.port, 8, 0.05, rate=100.0, is_poisson=False)

    assert len(found.taken_s) == pytest.approx(4, abs=1)
    assert turns < 200


def test_sockets_may_come_from_elsewhere() -> None:
    """As those of a tunnel; the progress reaches the sum of answers."""
    reports: list[int] = []
    dialled: list[int] = []

    def dial(host: str, port: int) -> socket.socket:
        dialled.append(port)
        return socket.create_connection((host, port))

    with target(lambda _: answer()) as server:
        found = run_load(
            there(server.port, dial=dial),
            plan(),
            REQUEST,
            report=lambda _, answers, __: reports.append(answers),
        )
        # Calls on their way at the end of the window end before the load does.
        assert server.requests == len(found.taken_s)

    assert (found.errors, found.cut, found.stopped) == ({}, 0, "")
    assert dialled == [server.port] * 3
    assert reports[-1] == len(found.taken_s)


def test_a_load_without_a_server_is_unreachable() -> None:
    """The reason is that of the system, or of the tunnel."""

    def dial(host: str, port: int) -> socket.socket:
        raise Unreachable("the tunnel has no end")

    with target(lambda _: answer()) as server:
        pass
    for dials, text in ((None, "refused"), (dial, "the tunnel has no end")):
        with pytest.raises(Unreachable, match=text):
            run_load(there(server.port, dial=dials), plan(), REQUEST)


def test_tls_is_checked_and_carries_large_bodies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted certificate is refused; a trusted one is accepted."""
    file = tmp_path / "certificate.pem"
    file.write_bytes(certificate())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    request = b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000)

    with target(lambda _: answer(200, bytes(300_000)), context) as server:
        secure, one = there(server.port, is_secure=True), plan(seconds=60.0, calls_max=6)
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            run_load(secure, one, request)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        found = run_load(secure, one, request)

    assert (len(found.taken_s), found.errors) == (6, {})


def certificate() -> bytes:
    """A key and a certificate of 127.0.0.1 by itself, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + made.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize("calls", [0, 5])
def test_ctrl_c_keeps_the_figures_so_far(calls: int) -> None:
    """Before the load there are no figures; within it, calls in flight are counted apart."""
    free = threading.Event()

    def script(number: int) -> bytes:
        if number == calls:
            os.kill(os.getpid(), signal.SIGINT)
        if number >= calls:
            free.wait()
        return answer()

    def dial(host: str, port: int) -> socket.socket:
        if not calls:
            os.kill(os.getpid(), signal.SIGINT)
        return socket.create_connection((host, port))

    with target(script) as server:
        one = plan(connections=1, seconds=60.0)
        if calls:
            found = run_load(there(server.port), one, REQUEST)
            assert (len(found.taken_s), found.cut, found.stopped) == (calls, 1, "interrupted")
        else:
            with pytest.raises(KeyboardInterrupt):
                run_load(there(server.port, dial=dial), one, REQUEST)
        free.set()


def test_the_figures_do_not_wait_for_a_dial() -> None:
    """A server that answers no attempt to connect keeps its dial for seconds; Ctrl-C in it ends the
    load."""
    free, dialled = threading.Event(), list[int]()

    def dial(host: str, port: int) -> socket.socket:
        dialled.append(port)
        if len(dialled) > 1:
            os.kill(os.getpid(), signal.SIGINT)
            free.wait()
        return socket.create_connection((host, port))

    with target(lambda _: b"") as server:
        try:
            found = run_load(there(server.port, dial=dial), plan(1, seconds=60.0), REQUEST)
        finally:
            free.set()

    assert (len(dialled), found.stopped, found.errors) == (2, "interrupted", {"connection lost": 1})


def test_the_total_limit_stops_a_load() -> None:
    """As Ctrl-C does, with another reason."""
    with target(lambda _: answer()) as server:
        found = run_load(there(server.port), plan(seconds=60.0), REQUEST, until_s=0.0)
    assert found.stopped == "the total limit was reached"
    assert found.window_s < 60.0
