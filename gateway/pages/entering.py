"""The gateway's own pages on a function's host: entering by a ticket, leaving, a missing key. Pure.

The page at ENTER reads the ticket from the fragment of its address, removes it from there and sends
it by POST. The answer sets the cookie and names the path that the page then opens. The page at
LEAVE has a button that removes the cookie.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from html import escape
from typing import Final

from registry.errors import BadRequest, ForeignOrigin

OURS: Final = b"/.fngate"
"""Beginning of the paths on a function's host that its server does not get."""
ENTER: Final = "/.fngate/enter"
LEAVE: Final = "/.fngate/leave"
PATH_MAX: Final = 2048
"""Max characters of the path that a ticket opens."""
ASKED_MAX: Final = 256
"""Max bytes of the request that redeems a ticket."""

_SCRIPT: Final = """
const said = document.querySelector("p");
const ticket = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
async function enter() {
  const answer = await fetch(location.pathname, {method: "POST", body: ticket, redirect: "error"});
  if (!answer.ok) throw new Error((await answer.json()).detail);
  const there = new URL((await answer.json()).path, location.origin);
  if (there.origin !== location.origin) throw new Error("the path leads elsewhere");
  location.replace(there);
}
if (ticket) enter().catch((error) => { said.textContent = `Not opened: ${error.message}`; });
else said.textContent = "This address is complete only with a ticket.";
"""
_LEAVING: Final = """
const said = document.querySelector("p");
document.querySelector("button").onclick = async () => {
  const answer = await fetch(location.pathname, {method: "POST", redirect: "error"});
  said.textContent = answer.ok ? "This browser has left." : (await answer.json()).detail;
};
"""


def _page(content: str, script: str) -> bytes:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fngate</title></head>
<body>{content}<noscript>This page needs JavaScript.</noscript>
<script>{script}</script></body></html>
""".encode()


ENTER_PAGE: Final = _page("<p>Opening …</p>", _SCRIPT)
LEAVE_PAGE: Final = _page(
    '<p role="status">This browser then needs a new ticket.</p><button>Leave</button>', _LEAVING
)


def _policy(*more: str) -> str:
    common = ("base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
    return "; ".join(("default-src 'none'", *more, *common))


_COMMON: Final = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


def _headers(script: str) -> dict[str, str]:
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    return {
        **_COMMON,
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": _policy(f"script-src 'sha256-{digest}'", "connect-src 'self'"),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


ENTER_HEADERS: Final = _headers(_SCRIPT)
LEAVE_HEADERS: Final = _headers(_LEAVING)
CLOSED_HEADERS: Final = {**_COMMON, "Content-Security-Policy": _policy()}


def is_ours(path: bytes) -> bool:
    """Return whether the gateway itself answers a path on a function's host; undecoded, with or
    without a query."""
    return path.startswith(OURS) and path[len(OURS) :][:1] in (b"", b"/", b"?")


def closed_page(function: str) -> bytes:
    """Return the page for a browser without a valid cookie."""
    name = escape(function)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}: a key is needed</title></head>
<body><h1>{name} needs a key</h1>
<p>Open it with <code>fnctl open {name}</code>, or with <em>Open</em> on its page in the dashboard.
The browser may then use it for 12 hours.</p></body></html>
""".encode()


def check_path(path: str) -> str:
    """Return the path that a ticket opens. Raises BadRequest if it leaves the function's host."""
    is_path = path.startswith("/") and not path.startswith(("//", "/\\"))
    is_plain = path.isascii() and path.isprintable() and " " not in path and "\\" not in path
    if len(path) > PATH_MAX or not (is_path and is_plain) or is_ours(path.encode()):
        raise BadRequest(
            f"path: expected a path with its query, of at most {PATH_MAX} printable characters,"
            f" such as /lab?reset; got {path[:80]!r}"
        )
    return path


def check_entering(origin: str | None, site: str | None, host: str) -> bool:
    """Return whether a page that redeems a ticket, or leaves, was fetched by https.

    Raises ForeignOrigin unless it is the page of this very host: the fields are Origin,
    Sec-Fetch-Site and Host.
    """
    scheme, _, rest = (origin or "").partition("://")
    if not rest or rest.lower() != host.lower() or site not in (None, "same-origin"):
        raise ForeignOrigin(f"expected a page of this host, such as {ENTER}")
    return scheme == "https"
