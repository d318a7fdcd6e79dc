"""Enrolment: a replica shows its one-time token, gets its certificate, and is dialled back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any, Final, TypeVar

from hosts.tls.admission import Identify, ReplicaEntry, ReplicaTable
from hosts.tls.authority import Authority, Contexts
from hosts.tls.limits import Refusal
from hosts.tls.peers import (
    HANDSHAKE_S,
    Peer,
    PeerRefused,
    dial,
    explain,
    parse_enrol,
    read_body,
    read_head,
)
from registry.errors import FnError
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import Enrolled, replica_name
from runtime_image.contract.link import Kind
from runtime_image.link.frames import LinkError
from runtime_image.link.handshake_limits import source_of

ANSWER_S: Final = 10.0
"""Seconds that the manager may take to store an enrolment, and `Identify` to name a replica."""
IDENTIFYING_MAX: Final = 16
"""Credentials that are asked about at the same time; more wait, within ANSWER_S."""
LISTENING_S: Final = 10.0
"""Seconds that a replica with a new certificate may take until it listens."""
GREETING_MAX: Final = 4096
"""Max bytes of the greeting of a replica."""
T = TypeVar("T")


class Enrolments:
    """Enrols replicas, for the connections that begin with ENROL."""

    def __init__(
        self,
        table: ReplicaTable,
        authority: Authority,
        contexts: Contexts,
        owner: asyncio.AbstractEventLoop,
    ) -> None:
        """`owner` is the loop in which admissions are asked."""
        self.identify: Identify | None = None
        self._table, self._authority, self._contexts = table, authority, contexts
        self._owner = owner
        self._turns = asyncio.Semaphore(IDENTIFYING_MAX)

    async def serve(self, peer: Peer, body: bytes) -> None:
        """Enrol a peer whose first frame was ENROL with this body. Raises PeerRefused, OSError."""
        try:
            await self._enrol(peer, body)
        except (LinkError, PeerRefused) as error:
            refused = error
            if isinstance(error, LinkError):
                refused = PeerRefused(Refusal.FIRST_FRAME, str(error))
            await peer.send_json(Kind.FAILED, {"reason": str(refused)})
            raise refused from error

    async def _enrol(self, peer: Peer, body: bytes) -> None:
        # 1. The replica that the token belongs to.
        request = parse_enrol(body)
        entry = await self._entry(request["token"], peer.host)
        # 2. Its token is used up before anything is sent, here and durably in the manager.
        entry.spend_token()
        try:
            record = await self._asked(entry.admission.enrol(peer.host, request["port"]))
        except FnError as error:
            raise PeerRefused(Refusal.ENROLMENT, error.message) from error
        except TimeoutError as error:
            text = f"the server could not store the enrolment within {ANSWER_S:g} s"
            raise PeerRefused(Refusal.ENROLMENT, text) from error
        except OSError as error:
            text = f"the server could not store the enrolment: {error.strerror}"
            raise PeerRefused(Refusal.ENROLMENT, text) from error
        self._table.set_source(entry, source_of(peer.host))
        # 3. Its certificate.
        issued = self._authority.issue(replica_name(entry.id))
        answer = Enrolled(certificate=issued.certificate, key=issued.key, record=asdict(record))
        await peer.send_json(Kind.ENROLLED, answer)
        # 4. It listens: is that where gateways will find it?
        try:
            async with asyncio.timeout(LISTENING_S):
                head = await read_head(peer.reader, {Kind.ENROLLED: 0})
        except TimeoutError as error:
            text = f"expected replica {entry.id} to listen within {LISTENING_S:g} s"
            raise PeerRefused(Refusal.ENROLMENT, text) from error
        if head is None:
            text = f"replica {entry.id} closed the connection before it listened"
            raise PeerRefused(Refusal.ENROLMENT, text)
        await self._dial_back(entry.id, peer.host, request["port"], record)
        await peer.send_json(Kind.WELCOME, {})

    async def _entry(self, token: str, host: str) -> ReplicaEntry:
        """Return the replica that may enrol with this token. Raises PeerRefused."""
        found = self._table.find_by_token(token)
        if found is None and token and self.identify is not None:
            try:
                async with asyncio.timeout(ANSWER_S), self._turns:
                    id = await self._asked(self.identify(token, host))
            except TimeoutError as error:
                text = f"nobody has said within {ANSWER_S:g} s whose token this is"
                raise PeerRefused(Refusal.ENROLMENT, text) from error
            except FnError as error:
                raise PeerRefused(Refusal.ENROLMENT, error.message) from error
            found = None if id is None else self._table.find(id)
        if found is None:
            raise PeerRefused(
                Refusal.CREDENTIAL, "expected the token of a replica that this server has started"
            )
        if not found.may_enrol:
            raise PeerRefused(
                Refusal.CREDENTIAL,
                f"replica {found.id} has enrolled before: its token is used up. A replica cannot be"
                " started again, nor have a copy; the server starts another one",
            )
        return found

    async def _dial_back(self, id: str, host: str, port: int, record: ReplicaRecord) -> None:
        """Connect to a replica as gateways will. Raises PeerRefused."""
        try:
            peer = await dial(host, port, self._contexts.gateway(), replica_name(id))
            try:
                greeting = await _greeting(peer)
            finally:
                # At once: a close waits for the end of the replica, which reads nothing here until
                # it has WELCOME.
                peer.transport.abort()
            if greeting == record.greeting.encode():
                return
            fault = "it has another greeting than this replica"
        except LinkError as error:
            fault = f"it does not greet as a replica: {error}"
        except OSError as error:
            fault = explain(error)
        raise PeerRefused(
            Refusal.UNREACHABLE,
            f"the server cannot dial replica {id} at {host} port {port}: {fault}. Gateways dial a"
            " replica at the address from which it dials the server: open that port to the"
            " server's machine, and let no NAT hide the replica's address",
        )

    async def _asked(self, answer: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns in the owner's loop. Raises TimeoutError."""
        asked = asyncio.run_coroutine_threadsafe(answer, self._owner)
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.wrap_future(asked)


async def _greeting(peer: Peer) -> bytes:
    """Return the greeting of a replica. Raises LinkError."""
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            head = await read_head(peer.reader, {Kind.WELCOME: GREETING_MAX})
            if head is None:
                raise LinkError("it closes the connection")
            return await read_body(peer.reader, head)
    except TimeoutError as error:
        raise LinkError(f"it sends nothing within {HANDSHAKE_S:g} s") from error
