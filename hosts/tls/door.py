"""The door of links over TLS: the listener at which replicas on other machines dial in."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
import uvloop

from hosts.tls.admission import Admission, Identify, ReplicaTable
from hosts.tls.authority import Authority, Contexts, Issued
from hosts.tls.enrolling import Enrolments
from hosts.tls.limits import Tally
from hosts.tls.listener import BACKLOG, LinkListener
from registry.errors import BadRequest
from registry.exchange import TlsRoute
from runtime_image.contract.addresses import TLS, TlsAddress
from runtime_image.contract.enrolment import GATEWAY_NAME, replica_name
from runtime_image.link.handshake_limits import source_of

log = structlog.get_logger()

GRACE_S: Final = 2.0
"""Seconds that a closing door gives to control links that are being closed."""
CLOSED: Final = "the door for replicas is closed"


class LinkDoor:
    """Accepts connections of replicas, in a thread with an event loop of its own: neither
    handshakes nor files slow calls. Its methods are for the loop that opens it."""

    def __init__(
        self,
        listen: TlsAddress,
        address: TlsAddress | None,
        authority: Authority,
        wall: Callable[[], float],
    ) -> None:
        """`listen`: host and port to listen at; port 0 lets the system choose. `address`: what
        replicas dial, None for `listen`. `wall` returns Unix seconds."""
        self._listen, self._address = listen, address
        self._authority, self._wall = authority, wall
        self._table = ReplicaTable()
        self._route: tuple[Issued, TlsRoute] | None = None
        self._identify: Identify | None = None
        self._tally = Tally()
        self._thread: _DoorThread | None = None

    async def open(self) -> None:
        """Listen. Raises BadRequest with the remedy if the address cannot be listened at."""
        listener = self._bind()
        if self._address is None:
            self._address = self._listen._replace(port=listener.getsockname()[1])
        thread = _DoorThread(listener, self._table, self._tally, self._authority, self._wall)
        await thread.start()
        self._thread = thread
        self.identify(self._identify)

    def _bind(self) -> socket.socket:
        host, port, _ = self._listen
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server(
                (host, port), family=family, backlog=BACKLOG, dualstack_ipv6=host == "::"
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise BadRequest(
                f"FN_LINK_LISTEN={str(self._listen).removeprefix(TLS)}: cannot listen there:"
                f" {reason}. Choose an address of this machine and a port of 1024 or more that no"
                " other program uses, or unset it if no replica dials in"
            ) from error
        listener.setblocking(False)
        return listener

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._thread is not None:
            await self._thread.stop()
            self._thread = None

    def reasons(self) -> list[str]:
        """Return a reason for /readyz if the door has ended by itself: no replica can dial in."""
        return [self._thread.fault] if self._thread is not None and self._thread.fault else []

    @property
    def address(self) -> TlsAddress:
        """Where replicas dial, for `Entrance.server`. Known once the door is open."""
        assert self._address is not None
        return self._address

    @property
    def authority_pem(self) -> str:
        """The authority's certificate, for `Entrance.authority`."""
        return self._authority.pem

    def admit(self, id: str, admission: Admission, host: str = "") -> None:
        """Let a replica in from now on. `host` is the address from which it has enrolled, "" if it
        has not: floods of unknown sources do not keep out what comes from there."""
        self._call(self._table.admit, id, admission, source_of(host) if host else "")

    def forget(self, id: str) -> None:
        """Refuse a replica from now on, and end its connections."""
        self._call(self._table.forget, id)

    def identify(self, identify: Identify | None) -> None:
        """Ask `identify` about credentials that are no token of an admission; None: ask nobody."""
        self._identify = identify
        if self._thread is not None:
            self._thread.set_identify(identify)

    def served_bytes(self, id: str) -> int:
        """Return how many bytes of files an admitted replica has been sent; 0 for any other."""
        found = self._table.find(id)
        return 0 if found is None else found.served_bytes

    def gateway_route(self) -> TlsRoute:
        """Return what gateways dial replicas with. It is another one once half of the certificate's
        life is over: call it again within the other half."""
        if self._route is None or self._route[0].is_due(self._wall()):
            issued = self._authority.issue(GATEWAY_NAME)
            epoch = self._authority.epoch
            route = TlsRoute(self._authority.pem, issued.certificate, issued.key, epoch)
            self._route = issued, route
        return self._route[1]

    def certificate(self, id: str) -> Issued:
        """Return a new certificate for a replica, to be sent to it on its control link
        (CERTIFICATE) as soon as the last one is due (`authority.is_due`)."""
        return self._authority.issue(replica_name(id))

    async def connect(self, address: str) -> socket.socket:
        """Return a socket, non-blocking, that is joined with a new connection to the replica which
        listens at an address with its name. Raises OSError, also while the door is closed."""
        if self._thread is None:
            raise ConnectionError(CLOSED)
        return await self._thread.connect(TlsAddress.parse(address))

    def refusals(self) -> Mapping[str, int]:
        """Return how many connections were refused since the start, by reason (`Refusal`)."""
        return {str(reason): count for reason, count in self._tally.counts.items()}

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something in the door's thread; in this one while the door is not open."""
        if self._thread is None:
            call(*arguments)
        else:
            self._thread.call(call, *arguments)


class _DoorThread:
    """The door's thread. A thread has its own loop, as a process would; but files and admissions
    need no protocol between both. Its methods are for the owner's loop."""

    def __init__(
        self,
        listener: socket.socket,
        table: ReplicaTable,
        tally: Tally,
        authority: Authority,
        wall: Callable[[], float],
    ) -> None:
        self.fault = ""
        """Why it has ended by itself, "" if it has not."""
        self._owner = owner = asyncio.get_running_loop()
        self._socket, self._table, self._tally = listener, table, tally
        self._authority, self._contexts = authority, Contexts(authority, wall)
        self._thread = threading.Thread(target=self._run, name="link door")
        self._started: asyncio.Future[None] = owner.create_future()
        self._answers: set[asyncio.Future[socket.socket]] = set()
        """Of dials that are not over."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._enrolments: Enrolments | None = None
        self._listener: LinkListener | None = None

    async def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        await self._started

    async def stop(self) -> None:
        """End all connections and the thread."""
        self.call(self._stop.set)
        await asyncio.to_thread(self._thread.join)

    def call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something in the thread; in this one if that has ended."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # its loop is closed
            call(*arguments)

    async def connect(self, address: TlsAddress) -> socket.socket:
        """Dial a replica. Raises OSError."""
        assert self._listener is not None
        if self.fault:
            raise ConnectionError(self.fault)
        answer: asyncio.Future[socket.socket] = self._owner.create_future()
        self._answers.add(answer)
        try:
            self.call(self._listener.connect, address, answer)
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:
                answer.result().close()
            raise
        finally:
            self._answers.discard(answer)

    def set_identify(self, identify: Identify | None) -> None:
        """Set who is asked about credentials."""
        assert self._enrolments is not None
        self.call(setattr, self._enrolments, "identify", identify)

    def _run(self) -> None:
        """Run the loop. In the thread, as `_serve`."""
        fault: BaseException | None = None
        try:
            # uvloop: its TLS takes 50 KiB for a connection, asyncio's 300 KiB (256 KiB of them for
            # reading), which hostile peers would take UNFINISHED_MAX times.
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            log.exception("the door for replicas has ended")
            fault = error
        finally:
            self._socket.close()
            self._owner.call_soon_threadsafe(self._ended, fault)

    def _ended(self, fault: BaseException | None) -> None:
        """Fail all that waits for the thread."""
        if fault is not None:
            self.fault = f"links: the door for replicas has ended: {type(fault).__name__}: {fault}"
        if not self._started.done():
            self._started.set_exception(ConnectionError(self.fault))
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(ConnectionError(self.fault or CLOSED))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._enrolments = Enrolments(self._table, self._authority, self._contexts, self._owner)
        self._listener = LinkListener(
            self._socket, self._table, self._tally, self._contexts, self._enrolments, self._owner
        )
        self._listener.open()
        self._owner.call_soon_threadsafe(self._started.set_result, None)
        await self._stop.wait()
        await self._listener.close(GRACE_S)
