"""The routes below /v2, and what their handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web

from gateway.http.bodies import BodySink, receive
from gateway.oip.names import find_served
from registry.errors import ShuttingDown

if TYPE_CHECKING:
    from gateway.access import Need
    from gateway.http.context import Invoker
    from gateway.http.reservations import BodyReservation, OnEvicted
    from registry.catalog import Deployed

PREFIX: Final = "/v2"
BODY_MAX: Final = 64 * 1024
"""Max bytes of a request's body, except of inferences."""
RETRY_S: Final = 5.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Row(NamedTuple):
    """A route: its method, its path below PREFIX, and its handler. GET stands for HEAD, too."""

    method: str
    path: str
    handler: Handler


class Serving:
    """What the handlers share: access checks, models of a path, bodies."""

    def __init__(self, invoker: Invoker) -> None:
        self.invoker = invoker
        self._access = invoker.access
        self._catalog = invoker.catalog

    def check_caller(self, request: web.Request) -> None:
        """Raise NoKey unless the caller has any key, or needs none."""
        authorization = request.headers.get("Authorization")
        if authorization is not None or not self._access.is_open:
            self._access.caller(authorization)

    def check(self, request: web.Request, need: Need, name: str = "") -> None:
        """Raise NoKey or WrongScope unless the caller has the scope `need`, for function `name`.

        While the server is open to anyone, only `admin` needs a key.
        """
        authorization = request.headers.get("Authorization")
        if authorization is not None or need == "admin" or not self._access.is_open:
            self._access.check(authorization, need, name)

    def is_allowed(self, request: web.Request, deployed: Deployed) -> bool:
        """Return whether the caller, who has a key or needs none, may invoke a function."""
        authorization = request.headers.get("Authorization")
        return self._access.allows(authorization, "invoke", deployed.function.name)

    def model(self, request: web.Request, need: Need) -> Deployed:
        """Return the revision that a path names. Raises FnError, first for a lack of rights: a
        caller whose key is for one function learns of no other names."""
        name = request.match_info["model"]
        version = request.match_info.get("version", "")
        found = self._catalog.find_oip(name, version)
        self.check(request, need, name if found is None else found.function.name)
        return find_served(self._catalog, name, version)

    def check_open(self) -> None:
        """Raise ShuttingDown once no calls are accepted any more."""
        if not self.invoker.gate.is_open:
            raise ShuttingDown("the server is shutting down", retry_after_s=RETRY_S)

    async def body(self, request: web.Request) -> bytes:
        """Return the body of a request of an authorized caller. Raises FnError."""
        invoker, counted = self.invoker, _CountedBody(self.invoker)
        seconds = invoker.settings.body_read_s
        try:
            return bytes(await receive(request, BODY_MAX, seconds, counted, invoker.inflation))
        finally:
            counted.release()


class _CountedBody(BodySink):
    """Sink that counts a small body in the memory for bodies."""

    def __init__(self, invoker: Invoker) -> None:
        self._budget = invoker.body_budget
        self._reservation: BodyReservation | None = None

    def buffer(self, length: int) -> memoryview | None:  # noqa: ARG002 - the protocol's signature
        """Return None: the reader uses its own memory."""
        return None

    def count(self, count: int, on_evicted: OnEvicted) -> None:
        """Implement `BodySink.count`."""
        if self._reservation is None:
            self._reservation = self._budget.open(on_evicted)
        self._reservation.grow(count)

    def release(self) -> None:
        """Release the memory."""
        if self._reservation is not None:
            self._reservation.release()
