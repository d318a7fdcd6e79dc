"""Classes of header fields that do not pass between clients and a function's server as they are.

Everything that forwards fields takes its answer from this table, and `docs/reference/fields.md` is
made from it. Plain data: names in lower case; a field in no class passes unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from string import ascii_lowercase, digits
from typing import Final, NamedTuple


class Direction(Enum):
    """Direction of a message: a client's request, or the answer of a function's server."""

    REQUEST = "request"
    ANSWER = "answer"


class FieldClass(NamedTuple):
    """One class of fields: the names, the beginnings of names, and of these the `kept` exceptions.

    `treatment`: what happens to such a field. `reason`: why. Both in Markdown.
    """

    title: str
    treatment: str
    reason: str
    names: frozenset[bytes] = frozenset()
    prefixes: tuple[bytes, ...] = ()
    kept: frozenset[bytes] = frozenset()

    def has(self, low: bytes) -> bool:
        """Return whether a name in lower case belongs to this class."""
        return low in self.names or (low.startswith(self.prefixes) and low not in self.kept)


def _names(text: str) -> frozenset[bytes]:
    return frozenset(text.encode().split())


_DROPPED: Final = "dropped"
_FILES: Final = (b"x-accel-", b"x-sendfile")

HOP_BY_HOP: Final = FieldClass(
    "Of one connection",
    f"{_DROPPED}, as is each field that `Connection` names",
    "They are about one connection, not about the message (RFC 9110, 7.6.1).",
    _names(
        "connection keep-alive te upgrade http2-settings transfer-encoding proxy-connection"
        " proxy-authorization proxy-authenticate proxy-authentication-info proxy-features"
        " proxy-instruction"
    ),
    (b"proxy-",),
)
WRITTEN: Final = FieldClass(
    "Written by fngate",
    "replaced; of a [trusted proxy](settings.md#fn_trusted_proxies) continued",
    "Only the gateway knows them: where a request came from, and how its body is sent on.",
    _names(
        "content-length expect x-request-id forwarded x-forwarded-for x-forwarded-proto"
        " x-forwarded-host x-forwarded-prefix"
    ),
)
OWN: Final = FieldClass(
    "The caller's key", _DROPPED, "It is meant for fngate alone.", _names("fn-key")
)
PATHS: Final = FieldClass(
    "Paths and prefixes",
    f"{_DROPPED}, also of a trusted proxy",
    "Servers take the path, or what to cut from it, from these: `wake`, `free` and `deny` would"
    " judge another path than the one that is served.",
    _names(
        "script-name script-filename path-info path-translated request-uri"
        " x-script-name x-path-info x-request-uri x-base-path x-ingress-path x-replaced-path"
        " x-original-path x-original-uri x-original-url x-rewrite-path x-rewrite-uri x-rewrite-url"
        " x-envoy-original-path x-waws-unencoded-url x-ms-original-url x-proxycontextpath"
        " x-rstudio-root-path x-rstudio-request x-rsc-request"
    ),
)
FILES: Final = FieldClass(
    "Answers from files",
    f"{_DROPPED}, also of a trusted proxy",
    "By these a proxy asks for file names instead of contents (`Rack::Sendfile`): a client that"
    " sends them gets names.",
    prefixes=_FILES,
)
UNDERSCORES: Final = FieldClass(
    "Any name with `_`",
    f"{_DROPPED}, unless [`[server] fields`](manifest.md#serverfields) names it",
    "Servers of the CGI family cannot tell `X_Forwarded_For` from `X-Forwarded-For`, and some take"
    " `SCRIPT_NAME` for their own.",
)
CLAIMS: Final = FieldClass(
    "Claims",
    "passed on from a trusted proxy, otherwise dropped",
    "Servers believe in them what only a proxy can know: address, host and scheme of the client.",
    _names(
        "x-real-ip x-client-ip x-cluster-client-ip true-client-ip cf-connecting-ip x-original-host"
        " x-host front-end-https x-scheme x-url-scheme"
    ),
    (b"x-forwarded-",),
)
CREDENTIALS: Final = FieldClass(
    "Credentials",
    "dropped if a value is a key of fngate, as is every other field, and every cookie, that"
    " contains one",
    "A function's program could call other functions with the caller's key.",
    _names(
        "authorization x-authorization x-forwarded-authorization x-api-key api-key apikey x-apikey"
        " x-api-token x-auth-key x-auth-token x-access-token x-token x-goog-api-key"
        " x-functions-key x-amz-security-token ocp-apim-subscription-key private-token"
    ),
)
METHODS: Final = FieldClass(
    "Methods",
    "passed on; `deny` counts the methods that they name",
    "Some servers run a request by the method in them.",
    _names("x-http-method-override x-method-override x-http-method"),
)
DESTINATIONS: Final = FieldClass(
    "Second paths",
    "passed on; `deny` counts the path in them",
    "WebDAV's COPY and MOVE write to it (RFC 4918, 10.3).",
    _names("destination"),
)
MESSAGE: Final = FieldClass(
    "The message itself",
    "passed on, `Host` as [`host`](manifest.md#serverhost) says; a key of fngate in them as above,"
    " and fngate's own cookies are cut",
    "fngate and the program must read the same in them.",
    _names(
        "host origin cookie content-type content-encoding content-range content-disposition"
        " accept-encoding trailer range"
    ),
)
REQUEST_CLASSES: Final = (
    *(HOP_BY_HOP, WRITTEN, OWN, PATHS, FILES, UNDERSCORES, CLAIMS, CREDENTIALS),
    *(METHODS, DESTINATIONS, MESSAGE),
)

REDIRECTS: Final = FieldClass(
    "Orders to a proxy",
    _DROPPED,
    "A proxy in front of fngate would serve another path, a file of its own, or another cache"
    " entry. `X-Accel-Buffering` only keeps events from being collected.",
    prefixes=(*_FILES, b"x-reproxy-", b"x-lighttpd-", b"x-litespeed-"),
    kept=_names("x-accel-buffering"),
)
HEALTH: Final = FieldClass(
    "Health of the gateway",
    _DROPPED,
    "A proxy in front would take all of fngate for unhealthy, not this function.",
    _names("x-envoy-immediate-health-check-fail"),
)
ANSWERED: Final = FieldClass(
    "Written by fngate", "replaced", "A function cannot speak for fngate.", prefixes=(b"fn-",)
)
ORIGIN_WIDE: Final = FieldClass(
    "Beyond the function's host",
    _DROPPED,
    "They hold for other hosts too, or for how clients connect.",
    _names("clear-site-data alt-svc strict-transport-security nel report-to"),
)
SHARED_ORIGIN: Final = FieldClass(
    "For a whole origin",
    "dropped below `/fn/NAME`, passed on at the function's own host",
    "Below `/fn/` the origin is the dashboard's, too.",
    _names(
        "service-worker-allowed accept-ch critical-ch use-as-dictionary set-login"
        " sec-session-registration secure-session-registration reporting-endpoints"
    ),
)
ANSWER_CLASSES: Final = (HOP_BY_HOP, ANSWERED, REDIRECTS, HEALTH, ORIGIN_WIDE, SHARED_ORIGIN)

TRAILERS: Final = FieldClass(
    "Not in trailers",
    "the message is refused (400, 502), or cut where it is under way; so is a request with"
    " a trailer of any class above, or with one that contains what looks like a key of fngate, and"
    " an answer with a trailer of its classes",
    "Some servers and proxies join trailers with the fields of the head (RFC 9110, 6.5.1), after"
    " all checks.",
    _names(
        "transfer-encoding content-length host connection expect upgrade te trailer authorization"
        " cookie set-cookie content-encoding content-type content-range forwarded fn-key"
    ),
    (b"x-forwarded-",),
)

PLAIN: Final = f"{ascii_lowercase}{digits}-".encode()
"""Characters of names that mean the same to every server."""
_FOLDED: Final = bytes(code if code in PLAIN else ord("-") for code in range(256))


def fold(low: bytes) -> bytes:
    """Return a name as servers of the CGI family compare it: some read every character but letters
    and digits as one and the same."""
    return low.translate(_FOLDED)


def class_of(low: bytes) -> FieldClass | None:
    """Return the class of requests that has a name, as `fold` returns it; None for none."""
    return next((one for one in REQUEST_CLASSES if one.has(low)), None)


def is_barred(low: bytes, direction: Direction) -> bool:
    """Return whether a field may not be among the trailers of a message."""
    classes: Iterable[FieldClass] = ANSWER_CLASSES
    if direction is Direction.REQUEST:
        if b"_" in low:
            return True
        classes, low = REQUEST_CLASSES, fold(low)
    return TRAILERS.has(low) or any(one.has(low) for one in classes)
