"""How a replica on a machine that is not ours gets its identity and its files, over TLS.

The replica is started with an `Entrance` and dials the server's door:

1. Without a certificate of its own it may send one frame, ENROL. The answer ENROLLED has its
   certificate, key and record; the token is then used up.
2. It listens at the stated port and sends ENROLLED back, empty. The door dials that port at the
   address from which ENROL came, by TLS, and expects the name and the greeting of the replica.
   WELCOME says that this succeeded; FAILED has the reason why it did not, and ends both.
3. With its certificate it dials again: a connection that begins with HELLO is its control link; one
   that begins with FETCH is for its files.

CERTIFICATE on the control link replaces certificate and key before they expire.

A certificate has one DNS name, which says who its owner is: the server, a gateway process, or one
replica. Its serial number says in which epoch it was issued: how often the server's store had been
opened. A replica refuses a peer of an earlier epoch than the latest that it has met, so that an
earlier server, or a copy of one, cannot use it any more.
"""

from __future__ import annotations

from typing import Any, Final, TypedDict

ENTRANCE_FILE: Final = "entrance.json"
"""File in the run folder of a replica that dials in, in place of its record; an engine may have it
elsewhere, and then names it to the replica."""
FETCHED_FILE: Final = "fetched"
"""File that a sidecar makes in its run folder once it has fetched the files of a server that is
apart: an engine starts that server no earlier."""
ENROL_MAX: Final = 32 * 1024
"""Max bytes of the body of ENROL, and of an `Entrance`."""
FETCHES_MAX: Final = 4
"""Connections of one replica that fetch files at the same time."""
FETCH_MAX: Final = 64 * 1024 * 1024
"""Max bytes that one FETCH may name."""
FETCH_PATIENCE_S: Final = 180.0
"""Seconds in which all connections of a replica that fetches together have to bring
FETCH_PROGRESS_MIN; then it gives up. FETCHes of many replicas wait for their turn."""
FETCH_PROGRESS_MIN: Final = 1024 * 1024
SERVER_NAME: Final = "server.fngate"
GATEWAY_NAME: Final = "gateway.fngate"
REPLICA_SUFFIX: Final = ".replica.fngate"
CURVE: Final = "prime256v1"
"""The only group of key exchanges, by its name in OpenSSL, with which Python's `ssl` takes one: of
larger groups a client could make each handshake cost milliseconds. An end that offered another one
first would need one more round trip, so both ends of every link set it."""
EPOCH_SHIFT: Final = 96
"""Bits of a serial number that are random; the epoch stands above them (RFC 5280 section 4.1.2.2
allows 159 bits in all)."""


def replica_name(id: str) -> str:
    """Return the name in the certificate of a replica."""
    return f"{id}{REPLICA_SUFFIX}"


def replica_of(name: str) -> str:
    """Return the id of the replica that a name is of, "" for one of another owner."""
    return name.removesuffix(REPLICA_SUFFIX) if name.endswith(REPLICA_SUFFIX) else ""


def epoch_of(serial: int) -> int:
    """Return the epoch in which a certificate was issued, by its serial number."""
    return serial >> EPOCH_SHIFT


class Entrance(TypedDict):
    """What the program that starts a replica gives to it."""

    server: str
    """Address of the server's door, `tls://HOST:PORT`."""
    authority: str
    """The certificate of the server's authority, PEM."""
    token: str
    """One-time token, or "" if it is in a file."""
    token_file: str
    """Path of the file that has the token, "" for none."""
    listen: str
    """Address at which it is to listen for gateways, `tls://HOST:PORT`; the host may be ""."""


class Enrol(TypedDict):
    """Body of ENROL: who asks for a certificate."""

    version: int
    """Link version of the replica."""
    token: str
    """The token of its entrance."""
    port: int
    """TCP port at which it is going to listen for gateways."""


class Certificate(TypedDict):
    """Body of CERTIFICATE: an identity. The server makes the key, as the libraries of a replica
    cannot; the owner of the authority could impersonate the replica anyway."""

    certificate: str
    """PEM."""
    key: str
    """PEM, not encrypted."""


class Enrolled(Certificate):
    """Body of the server's ENROLLED."""

    record: dict[str, Any]
    """`ReplicaRecord` as JSON."""


class Refusal(TypedDict):
    """Body of FAILED on a connection to the door."""

    reason: str


class FetchedFile(TypedDict):
    """A file that a replica is to fetch before it loads; in BIND and UPGRADE."""

    path: str
    """Path relative to the model folder, without links and dots."""
    size: int
    """Bytes."""
    sha256: str
    """SHA-256 of the content, in hexadecimal digits."""


class Fetch(TypedDict):
    """Body of FETCH to the door: a range of a file by its content. Answered by PARTs of up to
    PART_MAX bytes and END, with the id of the FETCH, or by FAILED."""

    sha256: str
    offset: int
    length: int
    """Bytes, at most FETCH_MAX."""
