"""What all requests to /v1 have in common: who calls, which model, and what its server gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.access import Anonymous, Caller, Credential
from gateway.http.exchanges import find_credential
from gateway.proxy.fields import Field, Fields
from gateway.proxy.targets import FunctionTarget
from gateway.v1.endpoints import PREFIX
from gateway.v1.model_list import unknown_model
from gateway.v1.upstream_key import checked_key
from registry.errors import NoKey, WrongScope
from registry.field_classes import fold

if TYPE_CHECKING:
    from gateway.access import Access
    from gateway.cross_origins import CrossOrigins
    from gateway.http.context import Invoker
    from registry.catalog import Deployed
    from registry.model import ModelApi
    from registry.upstream_keys import UpstreamKey

OWN: Final = frozenset({b"authorization", b"x-api-key", b"cookie"})
"""Fields of a request that its server does not get: they are the caller's, at this server."""
UNANSWERED: Final = frozenset({b"set-cookie"})
"""Fields of an answer that its client does not get: all models share one host."""


def check_model_caller(
    access: Access,
    origins: CrossOrigins,
    header: Callable[[str], str | None],
    sender: Anonymous,
    keys: tuple[str, ...],
) -> Credential:
    """Return the credential of a request to /v1, after all checks that need no model.

    `header(name)` returns the value of a header. `keys`: what the request has where only its
    protocol has keys. Raises FnError. Whatever a `sender` who needs no key sends as a key is no key
    of this server.
    """
    host = header("Host") or ""
    access.check_host(host)
    origins.check(header("Origin"), header("Sec-Fetch-Site"), host, PREFIX.decode())
    sent, own = header("Authorization"), header("Fn-Key")
    if not access.lets_in(sender):
        known = {one.strip() for one in (own, *keys, _secret(sent)) if one is not None}
        if len(known) > 1:
            raise NoKey("expected one key, got different ones in different fields")
    if keys:
        sent = f"Bearer {keys[0]}"
    credential, _ = find_credential(access, own, sent, sender)
    access.check_caller(credential)
    return credential


def _secret(authorization: str | None) -> str | None:
    """Return the key in a field Authorization, None if it has none: its scheme is another one."""
    scheme, _, secret = (authorization or "").partition(" ")
    return secret if scheme.lower() == "bearer" else None


def resolve(
    invoker: Invoker,
    origins: CrossOrigins,
    credential: Credential,
    model: str,
    header: Callable[[str], str | None],
) -> tuple[Deployed, Caller]:
    """Return what a model's name means, and the caller. `header` as in `check_model_caller`.

    Raises UnknownModel, also for a function that the caller may not invoke: its name is none of the
    caller's business.
    """
    origin, host = header("Origin"), header("Host") or ""
    access, catalog = invoker.access, invoker.catalog
    found = catalog.find_model(model)
    if found is not None:
        try:
            caller = access.check(credential, "invoke", found.function.name)
        except WrongScope:
            found = None
        else:
            origins.check_call(origin, host, found)
            return found, caller
    raise unknown_model(
        catalog,
        model,
        lambda other: (
            origins.may_call(origin, host, other)
            and access.allows(credential, "invoke", other.function.name)
        ),
    )


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
