"""Tests of enrolment: tokens, identities, and the dial-back."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from hosts.tls import enrolling, listener
from hosts.tls.authority import Authority
from hosts.tls.limits import Refusal
from registry.errors import HostDown, StoreUnavailable
from runtime_image.contract.enrolment import SERVER_NAME, epoch_of, replica_name
from runtime_image.contract.link import VERSION, Kind
from tests.support.link_door import (
    GREETING,
    SILENCE_S,
    Admitted,
    Listening,
    Peer,
    Scene,
    blocking,
    greets,
    record_of,
)

Answer = tuple[Kind, Any] | None


def enrolled(scene: Scene, port: int, token: str = "token of r1") -> tuple[Peer, Answer]:
    """Send ENROL with a token; return the connection and the answer."""
    peer = scene.peer()
    peer.enrol(token, port)
    return peer, peer.answer()


def refused(scene: Scene, token: str, port: int = 1) -> str:
    """Return why an enrolment is refused; the connection ends after it."""
    peer, answer = enrolled(scene, port, token)
    with peer:
        assert answer is not None
        kind, body = answer
        assert kind is Kind.FAILED
        assert peer.answer() is None
        return str(body["reason"])


async def test_a_replica_enrols(scene: Scene) -> None:
    """A token buys a certificate of the replica and its record; the manager gets the address from
    which the replica came, and the server dials it back with a gateway's certificate."""
    one = scene.admit()

    def replica() -> tuple[Answer, Answer, Answer]:
        with Listening(greets(scene.authority.pem, issued)) as place:
            peer, first = enrolled(scene, place.port)
            with peer:
                peer.send(Kind.ENROLLED)
                assert one.enrolled == [("127.0.0.1", place.port)]
                return first, peer.answer(), peer.answer()

    issued = scene.door.certificate("r1")
    first, second, third = await blocking(replica)
    assert first is not None
    kind, body = first
    assert kind is Kind.ENROLLED
    found = x509.load_pem_x509_certificate(body["certificate"].encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName(replica_name("r1"))]
    assert epoch_of(found.serial_number) == scene.authority.epoch
    assert body["record"]["id"] == "r1"
    assert body["record"]["data"].startswith("tls://127.0.0.1:")
    assert (second, third) == ((Kind.WELCOME, {}), None)


async def test_a_token_is_used_up(scene: Scene) -> None:
    """It is good for one enrolment, whatever became of it, and for none of an earlier server."""
    scene.admit()
    peer, answer = await blocking(lambda: enrolled(scene, 1))
    assert answer is not None
    assert answer[0] is Kind.ENROLLED
    peer.sock.close()
    again = await blocking(lambda: refused(scene, "token of r1"))
    assert again.startswith("replica r1 has enrolled before: its token is used up.")

    one = scene.admit("r2", was_enrolled=True)
    again = await blocking(lambda: refused(scene, "token of r2"))
    assert again.startswith("replica r2 has enrolled before")
    assert not one.enrolled
    assert scene.door.refusals()[Refusal.CREDENTIAL] == 2


async def test_a_token_used_twice_at_once_enrols_once(scene: Scene) -> None:
    """While the manager stores an enrolment, another one with the same token is refused."""
    one, stored = scene.admit(), asyncio.Event()
    store = one.enrol

    async def slowly(host: str, port: int) -> Any:
        begun.set()
        await stored.wait()
        return await store(host, port)

    one.enrol, begun = slowly, asyncio.Event()  # type: ignore[method-assign]
    first = asyncio.create_task(blocking(lambda: enrolled(scene, 1)))
    await begun.wait()
    assert "used up" in await blocking(lambda: refused(scene, "token of r1"))
    stored.set()
    peer, answer = await first
    peer.sock.close()
    assert answer is not None
    assert answer[0] is Kind.ENROLLED
    assert len(one.enrolled) == 1


@pytest.mark.parametrize("token", ["", "token of r2", "token of r", "\ud800", "x" * 30_000])
async def test_other_tokens_are_refused(scene: Scene, token: str) -> None:
    """A token must be that of a replica; an empty one is not that of a replica without a token."""
    scene.admit()
    scene.door.admit("r3", Admitted("r3", token=""))
    reason = await blocking(lambda: refused(scene, token))
    assert reason == "expected the token of a replica that this server has started"


async def test_a_forgotten_replica_cannot_enrol(scene: Scene) -> None:
    """Its token is worth nothing any more."""
    scene.admit()
    scene.door.forget("r1")
    assert "expected the token" in await blocking(lambda: refused(scene, "token of r1"))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff", "ENROL: expected JSON: "),
        (b"[" * 30_000, "ENROL: expected JSON: "),
        (b"[]", "ENROL: expected an object"),
        ({"version": VERSION - 1}, f"ENROL: expected link version {VERSION} to {VERSION}, got 10"),
        ({"version": True}, f"ENROL: expected link version {VERSION} to {VERSION}, got True"),
        ({"token": 5}, "ENROL: expected text as token"),
        ({"port": 0}, "ENROL: expected a port of 1 to 65535, got 0"),
        ({"port": 65_536}, "ENROL: expected a port of 1 to 65535, got 65536"),
        ({"port": True}, "ENROL: expected a port of 1 to 65535, got True"),
    ],
)
async def test_malformed_requests_are_refused(scene: Scene, body: Any, reason: str) -> None:
    """The text says what was expected; the token is not used up."""
    one = scene.admit()
    if isinstance(body, dict):
        body = {"version": VERSION, "token": "token of r1", "port": 1, **body}

    def replica() -> Answer:
        with scene.peer() as peer:
            peer.send(Kind.ENROL, body)
            return peer.answer()

    answer = await blocking(replica)
    assert answer is not None
    assert answer[0] is Kind.FAILED
    assert answer[1]["reason"].startswith(reason)
    assert not one.is_enrolled


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (StoreUnavailable("disk full: /run"), "disk full: /run"),
        (HostDown("r1 was released"), "r1 was released"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            "the server could not store the enrolment: No space left on device",
        ),
    ],
)
async def test_what_the_manager_refuses(scene: Scene, fault: Exception, reason: str) -> None:
    """Its reason reaches the replica; no certificate is issued, and the token is used up."""
    scene.admit(fault=fault)
    assert await blocking(lambda: refused(scene, "token of r1")) == reason
    assert "used up" in await blocking(lambda: refused(scene, "token of r1"))
    assert scene.door.refusals()[Refusal.ENROLMENT] == 1


async def test_identities(scene: Scene) -> None:
    """Another credential is a matter of `identify`, which sees the peer's address: it names an
    admitted replica, which may then enrol once, or nobody."""
    asked = []

    async def identify(credential: str, host: str) -> str | None:
        asked.append((credential, host))
        return {"pod 1": "r1", "pod 2": "gone"}.get(credential)

    scene.door.identify(identify)
    scene.door.admit("r1", Admitted("r1", token=""))
    peer, answer = await blocking(lambda: enrolled(scene, 1, "pod 1"))
    peer.sock.close()
    assert answer is not None
    assert answer[1]["record"]["id"] == "r1"

    assert "used up" in await blocking(lambda: refused(scene, "pod 1"))
    for credential in ("pod 2", "pod 3"):
        assert "expected the token" in await blocking(lambda one=credential: refused(scene, one))
    assert "expected the token" in await blocking(lambda: refused(scene, ""))
    assert asked == [(one, "127.0.0.1") for one in ("pod 1", "pod 1", "pod 2", "pod 3")]

    scene.door.identify(None)
    assert "expected the token" in await blocking(lambda: refused(scene, "pod 1"))


async def test_an_identity_is_not_waited_for_for_ever(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question without an answer ends; an error of the one who is asked is passed on."""
    monkeypatch.setattr(enrolling, "ANSWER_S", 0.1)

    async def never(credential: str, host: str) -> str | None:
        await asyncio.Event().wait()
        return None

    async def fails(credential: str, host: str) -> str | None:
        raise HostDown("the API server is away")

    scene.door.identify(never)
    reason = await blocking(lambda: refused(scene, "pod"))
    assert reason == "nobody has said within 0.1 s whose token this is"
    monkeypatch.undo()
    scene.door.identify(fails)
    assert await blocking(lambda: refused(scene, "pod")) == "the API server is away"


async def test_a_door_that_closes_during_an_enrolment(scene: Scene) -> None:
    """What the manager was asked is cancelled, and the replica's connection ends."""
    one, asked, ended = scene.admit(), asyncio.Event(), asyncio.Event()

    async def enrol(host: str, port: int) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    setattr(one, "enrol", enrol)  # noqa: B010 - in place of its method
    with await blocking(scene.peer) as peer:
        peer.enrol(one.token, 7443)
        await asked.wait()
        await scene.door.close()
        assert await blocking(peer.answer) is None
    await ended.wait()


def unreachable(fault: str) -> Callable[[int], str]:
    """Return the text of a failed dial-back to a port."""
    return lambda port: (
        f"the server cannot dial replica r1 at 127.0.0.1 port {port}: {fault}. Gateways dial a"
        " replica at the address from which it dials the server: open that port to the server's"
        " machine, and let no NAT hide the replica's address"
    )


def silent(sock: socket.socket) -> None:
    """Read and answer nothing."""
    while sock.recv(1024):
        pass


def other_protocol(sock: socket.socket) -> None:
    """Speak first, as SSH does."""
    sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


@pytest.mark.parametrize(
    ("behaviour", "fault"),
    [
        ("closed", "Connection refused"),
        ("silent", "no TLS handshake within 0.3 s"),
        ("other protocol", "wrong version number"),
        ("other authority", "its certificate is refused: unable to get local issuer certificate"),
        (
            "other replica",
            "its certificate is refused: Hostname mismatch, certificate is not valid for"
            " 'r1.replica.fngate'.",
        ),
        ("expired", "its certificate is refused: certificate has expired"),
        ("other greeting", "it has another greeting than this replica"),
        ("no greeting", "it does not greet as a replica: it sends nothing within 0.3 s"),
        ("closes", "it does not greet as a replica: it closes the connection"),
        (
            "long greeting",
            "it does not greet as a replica: WELCOME: expected a body of at most 4096 bytes"
            " without meta, got 5000 bytes with 0 of meta",
        ),
    ],
)
async def test_dial_back(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, fault: str
) -> None:
    """Only the replica itself, at the port that it stated and the address from which it came, is
    let in; any other listener is named with what is wrong."""
    if "within" in fault:
        for module in ("enrolling", "peers"):
            monkeypatch.setattr(f"hosts.tls.{module}.HANDSHAKE_S", 0.3)
    scene.admit()
    pem, own = scene.authority.pem, scene.door.certificate("r1")
    other = Authority.open(tmp_path / "other", 1, scene.wall)
    past = Authority.open(tmp_path / "link", 1, lambda: scene.wall() - 2 * 86_400)
    serve = {
        "closed": silent,
        "silent": silent,
        "other protocol": other_protocol,
        "other authority": greets(pem, other.issue(replica_name("r1"))),
        "other replica": greets(pem, scene.door.certificate("r2")),
        "expired": greets(pem, past.issue(replica_name("r1"))),
        "other greeting": greets(pem, own, "another"),
        "no greeting": greets(pem, own, None),
        "closes": greets(pem, own, None, stays=False),
        "long greeting": greets(pem, own, "x" * 5000),
    }[behaviour]

    def replica() -> tuple[int, Answer]:
        with Listening(serve) as place:
            port = place.port
            if behaviour == "closed":
                with socket.create_server(("127.0.0.1", 0)) as gone:
                    port = gone.getsockname()[1]
            peer, _ = enrolled(scene, port)
            with peer:
                peer.send(Kind.ENROLLED)
                return port, peer.answer()

    port, answer = await blocking(replica)
    assert answer is not None
    assert answer == (Kind.FAILED, {"reason": unreachable(fault)(port)})
    assert scene.door.refusals()[Refusal.UNREACHABLE] == 1


async def test_a_replica_that_never_listens(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The door waits for ENROLLED for a while, and for nothing else."""
    monkeypatch.setattr(enrolling, "LISTENING_S", 0.2)
    scene.admit()
    scene.admit("r2")
    peer, _ = await blocking(lambda: enrolled(scene, 1))
    with peer:
        reason = "expected replica r1 to listen within 0.2 s"
        assert await blocking(peer.answer) == (Kind.FAILED, {"reason": reason})

    peer, _ = await blocking(lambda: enrolled(scene, 1, "token of r2"))
    with peer:
        peer.send(Kind.HELLO, b"{}")
        answer = await blocking(peer.answer)
        assert answer == (Kind.FAILED, {"reason": "expected ENROLLED, got HELLO"})


async def test_a_restart_keeps_authority_and_enrolments(tmp_path: Path) -> None:
    """After a restart the certificates of replicas are good, those of the server have a later
    epoch, and no token that was used can be used again."""
    async with Scene(tmp_path, epoch=1) as before:
        issued, port = before.door.certificate("r1"), before.door.address.port
    async with Scene(tmp_path, epoch=2, port=port) as scene:
        assert scene.door.authority_pem == before.door.authority_pem
        one = scene.admit(was_enrolled=True)
        assert "used up" in await blocking(lambda: refused(scene, "token of r1"))
        peer = await blocking(lambda: scene.peer(issued))
        with peer:
            epoch = epoch_of(int(peer.sock.getpeercert()["serialNumber"], 16))  # type: ignore[index,arg-type]
            assert epoch == 2
            peer.send(Kind.HELLO, b"{}")
            (await one.links.get()).close()


async def test_the_manager_dials_a_replica(scene: Scene) -> None:
    """`connect` gives a socket that is joined with a connection to the replica; what is not the
    replica is an OSError, and a caller that left costs nothing."""
    serve = greets(scene.authority.pem, scene.door.certificate("r1"))
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        place = stack.enter_context(Listening(serve))
        sock = await scene.door.connect(f"tls://127.0.0.1:{place.port}/{replica_name('r1')}")
        with sock:
            assert (await loop.sock_recv(sock, 100)).endswith(GREETING.encode())
        with pytest.raises(ConnectionError, match="its certificate is refused: Hostname mismatch"):
            await scene.door.connect(f"tls://127.0.0.1:{place.port}/{SERVER_NAME}")
        left = asyncio.create_task(
            scene.door.connect(f"tls://127.0.0.1:{place.port}/{replica_name('r1')}")
        )
        await asyncio.wait([left], timeout=0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        await scene.door.close()
    with pytest.raises(ConnectionError, match="closed"):
        await scene.door.connect("tls://127.0.0.1:1/x")


async def test_a_dial_without_descriptors_leaves_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the manager's socket cannot be made, the connection to the replica is closed."""

    async def attach(end: Any) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    ended = threading.Event()
    greet = greets(scene.authority.pem, scene.door.certificate("r1"))

    def serve(sock: socket.socket) -> None:
        try:
            greet(sock)
        finally:
            ended.set()

    monkeypatch.setattr(listener, "attach", attach)
    with Listening(serve) as place:
        with pytest.raises(ConnectionError, match="Too many open files"):
            await scene.door.connect(f"tls://127.0.0.1:{place.port}/{replica_name('r1')}")
        assert await blocking(lambda: ended.wait(SILENCE_S / 2))


def test_records_have_greetings() -> None:
    """The record of these tests is one that a dial-back can check."""
    assert record_of("r1").greeting == GREETING
