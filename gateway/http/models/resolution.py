"""What all requests to /v1 have in common: the model's settings, and what its server gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.proxy.fields import Field, Fields
from gateway.proxy.targets import FunctionTarget
from gateway.v1.endpoints import PREFIX
from gateway.v1.upstream_key import checked_key
from registry.field_classes import fold

if TYPE_CHECKING:
    from gateway.http.context import Invoker
    from registry.catalog import Deployed
    from registry.model.servers import ModelApi
    from registry.upstream_keys import UpstreamKey

OWN: Final = frozenset({b"authorization", b"x-api-key", b"cookie"})
"""Fields of a request that its server does not get: they are the caller's, at this server."""
UNANSWERED: Final = frozenset({b"set-cookie"})
"""Fields of an answer that its client does not get: all models share one host."""


def api_of(deployed: Deployed) -> ModelApi:
    """Return the settings of a function that answers at /v1."""
    server = deployed.revision.server
    assert server is not None
    assert server.api is not None
    return server.api


def upstream_key(invoker: Invoker, deployed: Deployed, api: ModelApi) -> UpstreamKey | None:
    """Return the key that the server gets, None for none. Raises FunctionFailing."""
    secret = api.upstream_key
    if not secret:
        return None
    found = invoker.upstream_keys.find(secret, deployed.revision.namespace)
    return checked_key(deployed.function.name, secret, found)


def model_target(
    deployed: Deployed, model: str, api: ModelApi, path: bytes, query: bytes
) -> FunctionTarget:
    """Return the target of a request to the endpoint at `path`. A model that names a revision stays
    with it."""
    is_pinned = model == deployed.revision.ref
    name = deployed.function.name
    ref = deployed.revision.ref if is_pinned else name
    return FunctionTarget(name, ref, PREFIX, api.base.encode() + path, query or None)


def without(fields: Fields, names: frozenset[bytes], added: tuple[Field, ...]) -> Fields:
    """Return the fields without some, and with others. Names count alike that servers of the CGI
    family cannot tell apart."""
    pairs = zip(fields.names, fields.lines, strict=True)
    lines = [line for low, line in pairs if fold(low) not in names]
    lines += added
    values = {low: value for low, value in fields.values.items() if low not in names}
    lows = tuple(name.lower() for name, _ in lines)
    return Fields(tuple(lines), lows, values, fields.repeated)
