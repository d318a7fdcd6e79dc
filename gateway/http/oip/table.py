"""The routes below /v2, and what their handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web

from gateway.http.bodies import BodySink, receive
from gateway.http.call_route import credential_in
from gateway.http.oip.served import ServedModels

if TYPE_CHECKING:
    from gateway.admission.callers import Need
    from gateway.http.context import Invoker
    from gateway.http.reservations import BodyReservation, OnEvicted
    from registry.catalog import Deployed

PREFIX: Final = "/v2"
BODY_MAX: Final = 64 * 1024
"""Max bytes of a request's body, except of inferences."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Row(NamedTuple):
    """A route: its method, its path below PREFIX, and its handler. GET stands for HEAD, too."""

    method: str
    path: str
    handler: Handler


class Serving:
    """What the handlers share: the models, the caller and the model of a request, bodies."""

    def __init__(self, invoker: Invoker) -> None:
        self.invoker = invoker
        self.models = ServedModels(invoker)

    def check_caller(self, request: web.Request) -> None:
        """Raise NoKey unless the caller has any key, or needs none."""
        self.models.identify(credential_in(request))

    def check(self, request: web.Request, need: Need) -> None:
        """Raise NoKey or WrongScope unless the caller has the scope `need`."""
        self.models.check(credential_in(request), need)

    def party(self, request: web.Request) -> str:
        """Return whose request it is, as in `Shares`: its key's, or its address's."""
        return self.models.identify(credential_in(request)).id or request.remote or ""

    def model(self, request: web.Request, need: Need) -> Deployed:
        """Return the revision that a path names; see `ServedModels.find`."""
        name = request.match_info["model"]
        version = request.match_info.get("version", "")
        return self.models.find(credential_in(request), need, name, version)

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

    def room(self, most: int) -> memoryview | None:  # noqa: ARG002 - the protocol's signature
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
