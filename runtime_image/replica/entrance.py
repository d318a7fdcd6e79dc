"""How a replica that dials in gets its record and its certificate (`contract.enrolment`)."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime_image.contract.addresses import TlsAddress, is_tls
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import ENROL_MAX, ENTRANCE_FILE, Enrol, Entrance
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.credentials import Credentials
from runtime_image.link.data_listener import pack_greeting
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack
from runtime_image.link.record import EXIT_BAD_RECORD, RecordRefused, checked_record
from runtime_image.link.tls_listener import BACKLOG, TlsListener
from runtime_image.link.tls_socket import TlsSocket
from runtime_image.replica.seen_gpus import SeenGpus, seen_gpus
from runtime_image.replica.tls_dialling import DIAL_S, TlsDialler, certificate_of

EXIT_NO_DOOR: Final = 69
"""Exit code of a replica that cannot reach the server's door (sysexits.h: EX_UNAVAILABLE)."""
EXIT_NOT_ENROLLED: Final = 77
"""Exit code of a replica that was refused, or refuses the door (sysexits.h: EX_NOPERM)."""
DOOR_S: Final = 60.0
"""Seconds for which a door that does not answer is dialled again."""
RETRY_S: Final = 0.5
ANSWER_S: Final = 30.0
"""Seconds that the door has for each of its answers."""
ANSWER_MAX: Final = 256 * 1024
"""Max bytes of an answer: a record, a certificate, a key."""
REASON_MAX: Final = 2000
"""Max characters of a refusal that are shown."""
CALLBACKS_MAX: Final = 4
"""Max connections that are kept until WELCOME: the door makes one."""


class Enrolment(NamedTuple):
    """What a replica that was enrolled goes on with."""

    record: ReplicaRecord
    credentials: Credentials
    listener: TlsListener
    """The data listener."""
    dialler: TlsDialler
    """Connects to the door."""
    gpus: SeenGpus | None
    """Reads its GPUs, which its manager cannot; None on a CPU slot."""


def enrol(path: Path) -> Enrolment:
    """Enrol by the entrance at `path`, blocking. Raises RecordRefused, with the reason and an
    exit code of its own.

    The phase `start` is the time that this took, unless the replica is a standby.
    """
    began_s = time.monotonic()
    entrance = read_entrance(path)
    token = _token_of(entrance)
    try:
        credentials = Credentials(entrance["authority"])
    except LinkError as error:
        raise _bad(f"authority: {error}") from error
    listening = _listen(TlsAddress.parse(entrance["listen"]))
    try:
        with _dial(TlsAddress.parse(entrance["server"]), credentials) as sock:
            return _enter(_Door(sock), token, credentials, listening, began_s)
    except (LinkError, OSError) as error:
        listening.close()
        raise _refused(f"cannot enrol at {entrance['server']}: {error}") from error
    except BaseException:
        listening.close()
        raise


def read_entrance(path: Path) -> Entrance:
    """Read the entrance at `path`. Raises RecordRefused."""
    try:
        with path.open("rb") as file:
            text = file.read(ENROL_MAX + 1)
        if len(text) > ENROL_MAX:
            raise _bad(f"expected at most {ENROL_MAX} bytes")
        data = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise _bad(str(error)) from error
    if not isinstance(data, dict):
        raise _bad(f"expected an object, got {type(data).__name__}")
    _check(data)
    return Entrance(
        server=data["server"],
        authority=data["authority"],
        token=data["token"],
        token_file=data["token_file"],
        listen=data["listen"],
    )


def _check(data: dict[str, Any]) -> None:
    names = set(Entrance.__annotations__)
    if data.keys() != names:
        expected, got = ", ".join(sorted(names)), ", ".join(sorted(data))[:200]
        raise _bad(f"expected the fields {expected}, got {got or 'none'}")
    for name in sorted(names):
        if not isinstance(data[name], str):
            raise _bad(f"expected a string as {name}, got {str(data[name])[:100]!r}")
    if bool(data["token"]) == bool(data["token_file"]):
        raise _bad("expected either a token or a token_file")
    for name in ("server", "listen"):
        try:
            address = TlsAddress.parse(data[name])
        except ValueError as error:
            raise _bad(f"{name}: {error}") from error
        if name == "server" and not (address.host and address.port):
            raise _bad(f"server: expected a host and a port, got {data[name][:100]!r}")


def _token_of(entrance: Entrance) -> str:
    """Return the token. Raises RecordRefused."""
    if entrance["token"]:
        return entrance["token"]
    path = Path(entrance["token_file"])
    try:
        with path.open("rb") as file:
            token = file.read(ENROL_MAX).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise _bad(f"token_file: {error}") from error
    if not token:
        raise _bad(f"expected a token in {path}, got nothing")
    return token


def _listen(address: TlsAddress) -> socket.socket:
    """Listen for gateways. Raises RecordRefused."""
    is_dual = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if is_dual or ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(
            address[:2], family=family, backlog=BACKLOG, dualstack_ipv6=is_dual
        )
    except OSError as error:
        raise _bad(f"cannot listen at {address}: {error}") from error


def _dial(address: TlsAddress, credentials: Credentials) -> TlsSocket:
    """Connect to the door, again until DOOR_S are over. Raises RecordRefused."""
    until_s = time.monotonic() + DOOR_S
    while True:
        try:
            return credentials.dial(address, DIAL_S)
        except ssl.SSLCertVerificationError as error:
            raise _refused(
                f"what listens at {address} is not the server of this entrance:"
                f" {error.verify_message}"
            ) from error
        except OSError as error:
            if time.monotonic() >= until_s:
                reason = f"no server at {address} for {DOOR_S:g} s: {error}"
                raise RecordRefused(reason, EXIT_NO_DOOR) from error
            time.sleep(RETRY_S)


def _enter(
    door: _Door,
    token: str,
    credentials: Credentials,
    listening: socket.socket,
    began_s: float,
) -> Enrolment:
    """Exchange ENROL and ENROLLED, and serve the door's connection until WELCOME."""
    request = Enrol(version=VERSION, token=token, port=listening.getsockname()[1])
    door.send(Kind.ENROL, json.dumps(request).encode())
    answer = door.receive(Kind.ENROLLED)
    credentials.replace(certificate_of(answer))
    record = _record_of(answer)
    listener = TlsListener(listening, credentials)
    try:
        door.send(Kind.ENROLLED)
        door.await_welcome(listener, record.greeting)
        dialler = TlsDialler(door.sock, credentials, TlsAddress.parse(record.control))
    except BaseException:
        listener.close()
        raise
    if record.role != "standby":  # no caller waits for a standby's start
        took_ms = (time.monotonic() - began_s) * 1e3
        record = replace(record, phases={**record.phases, "start": took_ms})
    return Enrolment(record, credentials, listener, dialler, seen_gpus(record))


def _record_of(answer: Frame) -> ReplicaRecord:
    """Return the record in ENROLLED. Raises RecordRefused or LinkError."""
    data = json.loads(answer.body).get("record")
    if not isinstance(data, dict):
        raise LinkError("malformed ENROLLED: expected an object as record")
    record = checked_record(data)
    if not (is_tls(record.data) and record.greeting):
        raise LinkError("malformed ENROLLED: expected a TLS address as data, and a greeting")
    try:
        TlsAddress.parse(record.control)
    except ValueError as error:
        raise LinkError(f"malformed ENROLLED: control: {error}") from error
    return record


class _Door:
    """The connection to the door."""

    def __init__(self, sock: TlsSocket) -> None:
        self.sock = sock
        self._reader = FrameReader(ANSWER_MAX)
        self._frames: list[Frame] = []

    def send(self, kind: Kind, body: bytes = b"") -> None:
        """Send one frame. Raises OSError."""
        self.sock.settimeout(ANSWER_S)
        self.sock.sendall(b"".join(pack(kind, body=body)))

    def receive(self, expected: Kind) -> Frame:
        """Wait for the next frame. Raises RecordRefused for FAILED, LinkError, OSError."""
        until_s = time.monotonic() + ANSWER_S
        while not self._frames:
            self.sock.settimeout(max(0.001, until_s - time.monotonic()))
            self._read()
        return self._taken(expected)

    def await_welcome(self, listener: TlsListener, greeting: str) -> None:
        """Greet whoever connects meanwhile: the door tries whether gateways can."""
        until_s = time.monotonic() + ANSWER_S
        frame = b"".join(pack_greeting(greeting))
        callers: list[TlsSocket] = []
        listener.setblocking(False)
        self.sock.setblocking(False)
        try:
            while not self._frames:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("timed out")
                # Wakes up to see handshakes expire. The reader leaves nothing decrypted behind.
                select.select([self.sock.fileno(), listener.fileno()], [], [], min(1.0, left_s))
                listener.expire()
                with contextlib.suppress(OSError):  # it is not there yet, or gone
                    caller, _ = listener.accept()
                    callers.append(caller)
                    caller.setblocking(False)
                    caller.send(frame)
                if len(callers) > CALLBACKS_MAX:
                    callers.pop(0).close()
                with contextlib.suppress(BlockingIOError):
                    self._read()
        finally:
            for caller in callers:
                caller.close()
        self._taken(Kind.WELCOME)

    def _read(self) -> None:
        count = self.sock.recv_into(self._reader.buffer())
        if not count:
            raise LinkError("the server ended the connection")
        self._frames += self._reader.received(count)

    def _taken(self, expected: Kind) -> Frame:
        frame = self._frames.pop(0)
        if frame.kind is Kind.FAILED:
            raise _refused(f"the server refused the enrolment: {_reason_of(frame)}")
        if frame.kind is not expected:
            raise LinkError(f"expected {expected.name}, got {frame.kind.name}")
        return frame


def _reason_of(frame: Frame) -> str:
    """Return the reason in FAILED, as one line of printable text."""
    try:
        reason = str(json.loads(frame.body)["reason"])
    except (ValueError, TypeError, LookupError):
        return "it gave no reason"
    return "".join(one if one.isprintable() else " " for one in reason[:REASON_MAX])


def _bad(reason: str) -> RecordRefused:
    return RecordRefused(f"malformed {ENTRANCE_FILE}: {reason}", EXIT_BAD_RECORD)


def _refused(reason: str) -> RecordRefused:
    return RecordRefused(reason, EXIT_NOT_ENROLLED)
