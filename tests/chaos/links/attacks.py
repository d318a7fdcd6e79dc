"""Hostile connections to a door of links over TLS, one function for each kind.

Each attack makes one connection, and ends with what the other side did. Nothing that it sends may
bring it a frame that only a replica or a gateway gets: that is `Outcome.ENTERED`.
"""

from __future__ import annotations

import contextlib
import enum
import json
import random
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.enrolment import ENROL_MAX
from runtime_image.contract.link import HEADER, VERSION, Kind
from runtime_image.link.frames import FrameReader, LinkError, pack

PATIENCE_S: Final = 8.0
"""Longer than the doors keep a peer that says nothing."""
SILENCE_S: Final = 0.05
READ: Final = 65536
TLS_RECORD: Final = 16384
ALERT, HANDSHAKE = 21, 22
RECORDS: Final = range(20, 24)
"""Content types of TLS records (RFC 8446 section 5.1)."""


class Outcome(enum.StrEnum):
    """What the other side did."""

    ENTERED = "entered"
    REFUSED = "refused by FAILED"
    ALERT = "TLS alert"
    CLOSED = "closed"
    SILENT = "left without an answer"


@dataclass(frozen=True)
class Target:
    """A door, and what an attacker may know about it."""

    host: str
    port: int
    server_name: str
    """Name in the door's certificate."""
    folder: Path
    """Has `authority.pem` and the papers, NAME.pem."""
    good: str = ""
    """Id of a replica that is connected; "" where the door is a replica's own."""
    good_token: str = ""
    used_token: str = ""
    """A token with which somebody has enrolled."""
    file: str = ""
    """SHA-256 of a file of the good replica."""
    contexts: dict[tuple[str, int], ssl.SSLContext] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Target:
        """Read one that was written as JSON."""
        text = json.loads(path.read_text())
        return cls(**{**text, "folder": Path(text["folder"])})

    @cached_property
    def is_loopback(self) -> bool:
        """Whether attackers may choose their own address: 127.0.0.0/8 is all of this machine."""
        return self.host.startswith("127.")

    def context(self, paper: str = "", at_most: int = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
        """Return a client's context that shows a paper; "" for none."""
        if (found := self.contexts.get((paper, at_most))) is None:
            found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            found.load_verify_locations(self.folder / "authority.pem")
            found.maximum_version = ssl.TLSVersion(at_most)
            if paper:
                found.load_cert_chain(self.folder / f"{paper}.pem")
            self.contexts[paper, at_most] = found
        return found


class Peer:
    """One hostile connection, from a random address of this machine."""

    def __init__(self, target: Target, chance: random.Random, sources: int) -> None:
        """Connect from one of `sources` addresses. Raises OSError."""
        self.target, self.chance = target, chance
        source = None
        if target.is_loopback:
            number = chance.randrange(sources)
            source = (f"127.1.{number // 250}.{number % 250 + 1}", 0)
        self.sock: socket.socket = socket.create_connection(
            (target.host, target.port), PATIENCE_S, source
        )

    def close(self) -> None:
        """End the connection."""
        self.sock.close()

    def wrap(self, paper: str = "", at_most: int = ssl.TLSVersion.TLSv1_3) -> None:
        """Do the handshake. Raises OSError."""
        context = self.target.context(paper, at_most)
        self.sock = context.wrap_socket(self.sock, server_hostname=self.target.server_name)

    def send(self, kind: Kind, body: Any, **more: int) -> None:
        """Send one frame with a JSON body, or one of bytes. Raises OSError."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.sock.sendall(b"".join(pack(kind, body=data, **more)))

    def outcome(self, patience_s: float = PATIENCE_S) -> Outcome:
        """Read to the end, and judge by what came."""
        self.sock.settimeout(patience_s)
        frames = FrameReader()
        found = Outcome.CLOSED
        try:
            while data := self.sock.recv(READ):
                if not isinstance(self.sock, ssl.SSLSocket):
                    return _in_the_clear(data)
                frames.buffer()[: len(data)] = data
                for frame in frames.received(len(data)):
                    if frame.kind is not Kind.FAILED:
                        return Outcome.ENTERED
                    found = Outcome.REFUSED
        except TimeoutError:
            return Outcome.SILENT
        except (ssl.SSLEOFError, ConnectionError):
            return found
        except ssl.SSLError:
            return Outcome.ALERT
        except LinkError:
            return Outcome.ENTERED
        return found


def _in_the_clear(data: bytes) -> Outcome:
    """Judge the first bytes that a door answers to one who has no TLS: its own TLS is fine."""
    if data[0] not in RECORDS or data[1:2] != b"\x03":
        return Outcome.ENTERED
    return Outcome.ALERT if data[0] == ALERT else Outcome.CLOSED


def hello(peer: Peer, token: str) -> None:
    """Send HELLO."""
    peer.send(
        Kind.HELLO,
        {
            "token": token,
            "version": VERSION,
            "pid": 1,
            "features": [],
            "dial": 2**31,
            "bound": "",
            "phases": {},
        },
    )


def fetch(peer: Peer, **changes: Any) -> None:
    """Send FETCH of the good replica's file."""
    body = {"sha256": peer.target.file, "offset": 0, "length": 1024}
    peer.send(Kind.FETCH, {**body, **changes}, id=1)


def enrol(peer: Peer, **changes: Any) -> None:
    """Send ENROL with an unknown token."""
    unknown = f"{peer.chance.getrandbits(256):064x}"
    peer.send(Kind.ENROL, {"version": VERSION, "token": unknown, "port": 7443, **changes})


def _shows(paper: str, then: str) -> Callable[[Peer], None]:
    def attack(peer: Peer) -> None:
        peer.wrap(paper)
        match then:
            case "HELLO":
                hello(peer, peer.target.good_token)
            case "FETCH":
                fetch(peer)
            case "ENROL":
                enrol(peer)

    return attack


def _enrols(**changes: Any) -> Callable[[Peer], None]:
    def attack(peer: Peer) -> None:
        peer.wrap()
        enrol(peer, **changes)

    return attack


def _fetches(**changes: Any) -> Callable[[Peer], None]:
    def attack(peer: Peer) -> None:
        peer.wrap("other")
        fetch(peer, **changes)

    return attack


def _sends(kind: Kind, body: Any, paper: str = "", **more: int) -> Callable[[Peer], None]:
    def attack(peer: Peer) -> None:
        peer.wrap(paper)
        peer.send(kind, body, **more)

    return attack


def replayed_token(peer: Peer) -> None:
    """A token that somebody has used."""
    peer.wrap()
    enrol(peer, token=peer.target.used_token)


def near_token(peer: Peer) -> None:
    """A token that differs in its last character."""
    token = peer.target.used_token
    peer.wrap()
    enrol(peer, token=token[:-1] + ("0" if token[-1:] != "0" else "1"))


def other_token(peer: Peer) -> None:
    """The certificate of one replica, the token of another."""
    peer.wrap("other")
    hello(peer, peer.target.good_token)


def unknown_hello_token(peer: Peer) -> None:
    """A genuine certificate without the record's token."""
    peer.wrap("other")
    hello(peer, f"{peer.chance.getrandbits(256):064x}")


def garbage(peer: Peer) -> None:
    """Random bytes in place of TLS."""
    peer.sock.sendall(peer.chance.randbytes(peer.chance.randrange(1, 4096)))


def http(peer: Peer) -> None:
    """A browser at the wrong port."""
    peer.sock.sendall(b"GET / HTTP/1.1\r\nHost: fngate\r\n\r\n")


def frame_without_tls(peer: Peer) -> None:
    """ENROL in the clear."""
    enrol(peer, token=peer.target.good_token)


def older_tls(peer: Peer) -> None:
    """TLS 1.2 at most."""
    peer.wrap("other", ssl.TLSVersion.TLSv1_2)
    hello(peer, peer.target.good_token)


def huge_client_hello(peer: Peer) -> None:
    """A ClientHello of 16 MiB."""
    start = b"\x01\xff\xff\xff" + b"\x03\x03" + bytes(32)
    for record in range(1024):
        data = (start if not record else b"").ljust(TLS_RECORD, b"\0")
        peer.sock.sendall(struct.pack(">BHH", HANDSHAKE, 0x0301, len(data)) + data)


def mutated_client_hello(peer: Peer) -> None:
    """A genuine ClientHello with a few bytes changed."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    wrapped = peer.target.context("other").wrap_bio(
        incoming, outgoing, server_hostname=peer.target.server_name
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        wrapped.do_handshake()
    data = bytearray(outgoing.read())
    for _ in range(peer.chance.randrange(1, 5)):
        data[peer.chance.randrange(len(data))] = peer.chance.randrange(256)
    peer.sock.sendall(data)


def huge_enrol(peer: Peer) -> None:
    """ENROL of 8 MiB."""
    peer.wrap()
    peer.sock.sendall(HEADER.pack(8 << 20, 0, Kind.ENROL, 0, 0, 0))
    for _ in range(128):
        peer.sock.sendall(bytes(65536))


def huge_meta(peer: Peer) -> None:
    """The largest meta, which ENROL has not."""
    peer.wrap()
    body = b'{"version": 11, "token": "x", "port": 1}'
    peer.sock.sendall(HEADER.pack(len(body), 0, Kind.ENROL, 0, 65535, 0) + bytes(65535) + body)


def largest_length(peer: Peer) -> None:
    """A header that announces 4 GiB."""
    peer.wrap(peer.chance.choice(["", "other"]))
    kind = peer.chance.choice([Kind.ENROL, Kind.HELLO, Kind.FETCH])
    peer.sock.sendall(HEADER.pack(2**32 - 1, 0, kind, 0, 65535, 2**32 - 1))


def odd_json(peer: Peer) -> None:
    """A body that is no JSON object, or one that is costly to read."""
    body = peer.chance.choice(
        [
            b"",
            b"[]",
            b"null",
            b'"' + b"x" * (ENROL_MAX - 2) + b'"',
            b"[" * ENROL_MAX,
            b'{"a":' * (ENROL_MAX // 5),
            b"{" + b'"a":0,' * (ENROL_MAX // 6 - 1) + b'"a":0}',
            b'{"port": ' + b"9" * 30000 + b"}",
            b'{"version": NaN, "token": Infinity, "port": -Infinity}',
            b'{"version": 11, "token": "\xff\xfe", "port": 1}',
            b'{"version": 11, "token": "\\ud800", "port": 1}',
            peer.chance.randbytes(1000),
        ]
    )
    paper = peer.chance.choice(["", "other"])
    peer.wrap(paper)
    kind = peer.chance.choice([Kind.HELLO, Kind.FETCH]) if paper else Kind.ENROL
    peer.send(kind, body)


ODD: Final = (None, True, -1, 0, 65536, 2**31, 2**63, 2**64, 1.5, 1e400, "", "7443", [], {}, "\0")


def odd_enrol(peer: Peer) -> None:
    """Members of other types, missing ones, and ones that are not known."""
    body: dict[str, Any] = {"version": VERSION, "token": peer.target.used_token, "port": 7443}
    name = peer.chance.choice(list(body))
    body[name] = peer.chance.choice(ODD)
    if peer.chance.random() < 0.3:
        del body[name]
    if peer.chance.random() < 0.3:
        body["id"] = peer.target.good
    peer.wrap()
    peer.send(Kind.ENROL, body)


def odd_fetch(peer: Peer) -> None:
    """Absurd ranges, and hashes that are paths."""
    digests = ("../../fngate.db", "/etc/passwd", peer.target.file.upper(), "x" * 64)
    odd = peer.chance.choice(
        [
            {"offset": peer.chance.choice(ODD)},
            {"length": peer.chance.choice(ODD)},
            {"sha256": peer.chance.choice([*ODD, *digests])},
        ]
    )
    peer.wrap("other")
    fetch(peer, **odd)


def many_optional(peer: Peer) -> None:
    """Unknown frames that may be skipped, without an end."""
    peer.wrap(peer.chance.choice(["", "other"]))
    for _ in range(200):
        peer.sock.sendall(HEADER.pack(0, 0, 200, 1, 0, 0) * 100)


def after_the_end(peer: Peer) -> None:
    """ENROL again and again on one connection."""
    peer.wrap()
    for _ in range(1000):
        enrol(peer)


def enrolled_first(peer: Peer) -> None:
    """The answer of a replica that has enrolled, without having done so."""
    peer.wrap()
    peer.send(Kind.ENROLLED, b"")


def half_enrol(peer: Peer) -> None:
    """Half of ENROL, then the end."""
    peer.wrap()
    peer.sock.sendall(b"".join(pack(Kind.ENROL, body=bytes(100)))[:60])
    peer.sock.shutdown(socket.SHUT_WR)


def reset(peer: Peer) -> None:
    """A reset in the middle of the handshake."""
    peer.sock.sendall(b"\x16\x03\x01\x02\x00\x01")
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.sock.close()
    raise ConnectionResetError


def resumed(peer: Peer) -> None:
    """A session ticket in place of a certificate: there must be none."""
    peer.wrap("other")
    assert isinstance(peer.sock, ssl.SSLSocket)
    hello(peer, "")
    with contextlib.suppress(OSError):
        peer.sock.recv(READ)
    session = peer.sock.session
    if session is not None and session.has_ticket:
        raise AssertionError("the door gave a session ticket")


REFUSED_PAPERS: Final = (
    "self-signed",
    "wrong authority",
    "authority of the same name",
    "wrong authority, gateway",
    "wrong authority, server",
    "expired",
    "not yet valid",
    "signed by a replica",
    "gateway signed by a replica",
    "for servers only",
    "without a name",
    "name in the common name only",
    "gone replica",
    "name with a path",
)
WITHOUT_TLS: Final[Mapping[str, Callable[[Peer], None]]] = {
    "random bytes": garbage,
    "HTTP": http,
    "a frame without TLS": frame_without_tls,
    "TLS 1.2": older_tls,
    "a ClientHello of 16 MiB": huge_client_hello,
    "a mutated ClientHello": mutated_client_hello,
    "a reset": reset,
}
AT_SERVER: Final[Mapping[str, Callable[[Peer], None]]] = {
    **WITHOUT_TLS,
    **{f"{paper}, HELLO": _shows(paper, "HELLO") for paper in REFUSED_PAPERS},
    **{f"{paper}, FETCH": _shows(paper, "FETCH") for paper in REFUSED_PAPERS},
    **{
        f"{paper or 'no certificate'}, {then}": _shows(paper, then)
        for paper in ("", "gateway", "server")
        for then in ("HELLO", "FETCH")
    },
    "gateway, ENROL": _shows("gateway", "ENROL"),
    "other, ENROL": _shows("other", "ENROL"),
    "unknown token": _enrols(),
    "replayed token": replayed_token,
    "near token": near_token,
    "other version": _enrols(version=2**31),
    "token of the other replica": other_token,
    "unknown token in HELLO": unknown_hello_token,
    "file of the other replica": _fetches(),
    "unknown file": _fetches(sha256="ab" * 32),
    "odd FETCH": odd_fetch,
    "odd ENROL": odd_enrol,
    "odd JSON": odd_json,
    "ENROL of 8 MiB": huge_enrol,
    "meta of 64 KiB": huge_meta,
    "a length of 4 GiB": largest_length,
    "frames to skip": many_optional,
    "ENROL 1,000 times": after_the_end,
    "ENROLLED first": enrolled_first,
    "half of ENROL": half_enrol,
    "CERTIFICATE": _sends(Kind.CERTIFICATE, {"certificate": "", "key": ""}, "other"),
    "WELCOME": _sends(Kind.WELCOME, b""),
    "REQUEST": _sends(Kind.REQUEST, b"{}", "other", id=1),
    "a session ticket": resumed,
}
AT_REPLICA: Final[Mapping[str, Callable[[Peer], None]]] = {
    **WITHOUT_TLS,
    **{f"{paper}, HELLO": _shows(paper, "HELLO") for paper in (*REFUSED_PAPERS, "other", "")},
}


def attack(target: Target, kind: str, chance: random.Random, sources: int) -> Outcome:
    """Make one hostile connection; return what came of it. Raises AssertionError for what only
    this attack can see."""
    kinds = AT_SERVER if target.good else AT_REPLICA
    try:
        peer = Peer(target, chance, sources)
    except OSError:
        return Outcome.CLOSED
    try:
        try:
            kinds[kind](peer)
        except (ConnectionError, ssl.SSLEOFError):
            pass  # what came before the end counts
        except ssl.SSLError:
            return Outcome.ALERT
        except TimeoutError:
            return Outcome.SILENT
        return peer.outcome() if peer.sock.fileno() >= 0 else Outcome.CLOSED
    finally:
        peer.close()
