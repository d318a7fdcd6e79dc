"""The processes of a load begin together and end together, at the latest with their parent."""

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

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from admin.cli.bench.load import LoadPlan
from admin.cli.bench.processes import run_load
from admin.client.transport import ApiError, Unreachable
from tests.support.load_target import answer, target

REQUEST = b"GET / HTTP/1.1\r\n\r\n"


def plan(port: int, connections: int = 3, seconds: float = 0.3) -> LoadPlan:
    """A short load."""
    return LoadPlan("127.0.0.1", port, connections, seconds)


def test_several_processes_are_one_load() -> None:
    """Their answers add up; the progress reaches the sum; sockets may come from this process."""
    reports: list[int] = []
    dialled: list[int] = []

    def dial(host: str, port: int) -> socket.socket:
        dialled.append(port)
        return socket.create_connection((host, port))

    with target(lambda _: answer()) as server:
        plans = plan(server.port).split(2)
        found = run_load(
            plans, REQUEST, dial=dial, report=lambda _, answers, __: reports.append(answers)
        )
        # Calls on their way at the end of the window end before the load does.
        assert server.requests == len(found.taken_s)

    assert (found.errors, found.cut, found.stopped) == ({}, 0, "")
    assert dialled == [server.port] * 3
    assert reports[-1] == len(found.taken_s)


def test_a_load_without_a_server_is_unreachable() -> None:
    """The reason is that of the process, or of the tunnel."""

    def dial(host: str, port: int) -> socket.socket:
        raise Unreachable("the tunnel has no end")

    with target(lambda _: answer()) as server:
        pass
    for dials, text in ((None, "refused"), (dial, "the tunnel has no end")):
        with pytest.raises(Unreachable, match=text):
            run_load([plan(server.port)], REQUEST, dial=dials)


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
        one = replace(plan(server.port, seconds=60.0), is_secure=True, each=2)
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            run_load([one], request)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        found = run_load([one], request)

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
        one = plan(server.port, connections=1, seconds=60.0)
        if calls:
            found = run_load([one], REQUEST)
            assert (len(found.taken_s), found.cut, found.stopped) == (calls, 1, "interrupted")
        else:
            with pytest.raises(KeyboardInterrupt):
                run_load([one], REQUEST, dial=dial)
        free.set()


def test_the_total_limit_stops_a_load() -> None:
    """As Ctrl-C does, with another reason."""
    with target(lambda _: answer()) as server:
        found = run_load([plan(server.port, seconds=60.0)], REQUEST, until_s=0.0)
    assert found.stopped == "the total limit was reached"
    assert found.window_s < 60.0


def test_a_killed_load_generator_is_not_an_unreachable_server() -> None:
    """As by the kernel without memory. The error says what ended, and how."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")

    def script(number: int) -> bytes:
        if number == 3:
            os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        return answer()

    with target(script) as server, pytest.raises(ApiError) as caught:
        run_load([plan(server.port, seconds=60.0)], REQUEST)
    assert str(caught.value) == "A load generator failed: it was ended by signal 9"
