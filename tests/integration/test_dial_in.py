"""Real replica processes that dial in; what differs from those at the end of a tunnel.

`test_remote_replica` has what is the same.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runtime_image.contract.enrolment import GATEWAY_NAME
from runtime_image.contract.link import Kind
from tests.support.blocking import BlockingLink
from tests.support.dial_in_replica import DialInReplica
from tests.support.remote_replica import MODEL_ROW
from tests.support.sidecar_process import ask, tiny

pytestmark = pytest.mark.slow
LEASE_S = 3.0


@pytest.fixture
def root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="fn-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def model(root: Path) -> Iterator[DialInReplica]:
    with closing(DialInReplica(root)) as made:
        yield made


def served(link: BlockingLink, id: int) -> bool:
    """Whether a request is answered."""
    link.request(id, body=MODEL_ROW)
    return link.answer().kind is Kind.RESPONSE


def certificate_seen(replica: DialInReplica) -> str:
    """Return the serial number of the certificate that a replica shows."""
    return str(replica.door.dial().peer()["serialNumber"])


def test_a_refused_replica_says_why(model: DialInReplica) -> None:
    """The reason is the last line of its log, and its exit code tells it from other ends."""
    model.door.refuse = "port 7443 of 10.0.0.7 cannot be reached"

    model.launch()

    assert model.exit() == 77
    assert model.log.read_text().endswith(
        "fngate replica: the server refused the enrolment: port 7443 of 10.0.0.7 cannot be"
        " reached\n"
    )


def test_a_malformed_entrance_ends_a_replica(model: DialInReplica) -> None:
    """The log names the field."""
    model.write_entrance(listen="7443")

    model.launch()

    assert model.exit() == 65
    assert "entrance.json: listen: expected tls://HOST:PORT, got '7443'" in model.log.read_text()


def test_a_sidecar_dials_out_of_its_namespace(root: Path) -> None:
    """A sidecar in a network of its own, in which there is no server, finds its server again."""
    with closing(DialInReplica(root, tiny())) as web:
        link = web.ready()
        assert web.process is not None
        pids = (web.process.pid, os.getpid())
        if len({Path(f"/proc/{pid}/ns/net").readlink() for pid in pids}) == 1:
            pytest.skip("this machine refuses network namespaces")
        for dial in (2, 3):
            link.close()
            link, hello = web.dialled()
            link.send(Kind.WELCOME)
            link.send(Kind.PING)
            assert hello["dial"] == dial
            assert link.next(Kind.PONG)

        assert ask(web.gateway().open(1)) == b"hello"


def test_a_certificate_is_replaced(model: DialInReplica) -> None:
    """New connections meet the new certificate, both ways; open links stay. A malformed one ends
    the control link, and the one before stays."""
    link = model.ready()
    data = model.connect()
    data.hello()
    before = certificate_seen(model)

    link.send(Kind.CERTIFICATE, body=json.dumps(model.door.certificate()).encode())
    link.send(Kind.PING)
    link.next(Kind.PONG)
    after = certificate_seen(model)
    link.send(Kind.CERTIFICATE, body=json.dumps({**model.door.certificate(), "key": ""}).encode())
    _, hello = model.dialled()

    assert before != after == certificate_seen(model)
    assert hello["dial"] == 2
    assert served(data, 1)


def test_calls_go_on_while_the_server_hangs(model: DialInReplica) -> None:
    """A server that neither accepts nor refuses blocks nobody, and is found when it is back."""
    link = model.ready()
    data = model.connect()
    data.hello()
    with ExitStack() as stack:
        model.deafen()
        hung = stack.enter_context(closing(socket.create_server(model.door.address[:2], backlog=0)))
        hung.setblocking(False)
        for _ in range(8):  # the queue of the listener is full, and answers nobody
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(model.door.address[:2])
        link.close()

        assert all(served(data, id) for id in range(1, 200))

    model.listen()
    again, hello = model.dialled()
    again.send(Kind.WELCOME)
    again.send(Kind.PING)
    assert again.next(Kind.PONG)
    assert hello["dial"] >= 2


def test_an_earlier_server_has_lost_its_replica(root: Path) -> None:
    """After a gateway of a later epoch, neither gateways nor the door of an earlier one count: the
    lease ends the replica."""
    with closing(DialInReplica(root, orphan_s=LEASE_S)) as model:
        link = model.ready()
        model.door.dial(epoch=2)

        refused = model.door.dial(GATEWAY_NAME, 1)
        with pytest.raises(ConnectionError):
            refused.recv(1)  # not even a greeting
        link.close()

        assert model.exit() == 70


def test_strangers_disturb_nobody(model: DialInReplica) -> None:
    """Hostile bytes and half-open connections neither end nor slow a gateway's link, and use little
    memory."""
    model.ready()
    data = model.connect()
    data.hello()
    assert served(data, 1)
    before_mib = model.resident_mib()

    with ExitStack() as stack:
        for number in range(500):
            sock = stack.enter_context(socket.create_connection(model.door.data[:2], 60))
            with suppress(OSError):
                sock.sendall(b"\x16\x03\x01\x40\x00\x01" + bytes(4000) if number % 2 else b"G" * 99)
            if number % 50 == 0:
                assert served(data, number + 2)

        assert model.resident_mib() < before_mib + 8


def test_a_drained_replica_ends_its_links(model: DialInReplica) -> None:
    """The last answers of a replica that drains arrive, and then the end of the stream, though it
    leaves requests unread."""
    link = model.ready()
    data = model.connect()
    data.hello()
    data.request(*range(1, 3), body=MODEL_ROW)

    link.send(Kind.DRAIN)
    while data.next().kind is not Kind.GOAWAY:  # the first requests may have begun
        pass
    with suppress(OSError):
        data.request(*range(3, 200), body=MODEL_ROW)

    with pytest.raises(EOFError):
        data.last()
    data.close()
    assert model.exit() == 0


def test_a_replica_on_a_gpu_greets_with_what_it_sees(root: Path) -> None:
    """Where no driver answers, HELLO comes all the same, without GPUs."""
    with closing(DialInReplica(root, device_kind="cuda", devices=("c/n/gpu-0",))) as one:
        one.listen()
        one.launch()
        _, hello = one.dialled()

        assert all(gpu["uuid"] for gpu in hello.get("gpus", []))
        assert "gpus" not in hello or Path("/dev/nvidiactl").exists()
