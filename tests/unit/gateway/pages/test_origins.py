"""Which pages may send a request to a server function, as a table, and the fields of CORS."""

from __future__ import annotations

import pytest

from gateway.pages.origins import (
    EXPOSED,
    Asked,
    Sender,
    asked_by,
    cors_fields,
    is_own_page,
    judge,
    preflight_fields,
)
from registry.errors import ForeignOrigin

HOST = "web.localhost:8080"
LISTED = ("https://app.example", "http://127.0.0.1:3000")
OWN, LIST, ASKS, NO = Sender.OWN, Sender.LISTED, Sender.PREFLIGHT, None
APP, EVIL, NULL = "https://app.example", "https://evil.example", "null"
CROSS, SAME, NAVIGATE = "cross-site", "same-site", "navigate"


@pytest.mark.parametrize(
    ("method", "origin", "site", "mode", "wanted", "on_own_host", "below_fn"),
    [
        # No browser, or the browser says that a user asks.
        ("GET", None, None, None, None, OWN, OWN),
        ("POST", None, None, None, None, OWN, OWN),
        ("GET", None, "none", NAVIGATE, None, OWN, OWN),
        ("GET", None, "same-origin", "cors", None, OWN, OWN),
        # Links from other sites lead to pages of a function, not to paths beside the dashboard.
        ("GET", None, CROSS, NAVIGATE, None, OWN, NO),
        ("HEAD", None, SAME, NAVIGATE, None, OWN, NO),
        ("POST", None, CROSS, NAVIGATE, None, NO, NO),
        ("GET", None, CROSS, "no-cors", None, NO, NO),
        ("GET", None, SAME, "no-cors", None, NO, NO),
        ("GET", None, SAME, "cors", None, NO, NO),
        ("GET", None, CROSS, None, None, NO, NO),
        # Pages of the function itself.
        ("POST", f"http://{HOST}", "same-origin", "cors", None, OWN, OWN),
        ("GET", f"https://{HOST.upper()}", None, "websocket", None, OWN, OWN),
        ("OPTIONS", f"http://{HOST}", None, None, "PUT", OWN, OWN),
        # Pages of other origins.
        ("GET", EVIL, CROSS, "cors", None, NO, NO),
        ("GET", EVIL, CROSS, NAVIGATE, None, NO, NO),
        ("POST", NULL, CROSS, "cors", None, NO, NO),
        ("GET", "", None, None, None, NO, NO),
        ("GET", "http://localhost:8080", SAME, "websocket", None, NO, NO),
        ("GET", "http://other.localhost:8080", SAME, "cors", None, NO, NO),
        ("GET", "http://web.localhost", SAME, "cors", None, NO, NO),
        # The same host by another scheme, as the browser says.
        ("POST", f"http://{HOST}", SAME, "cors", None, NO, NO),
        ("GET", f"http://{HOST}", CROSS, "websocket", None, NO, NO),
        ("GET", f"http://{HOST}.evil.example", CROSS, "cors", None, NO, NO),
        ("GET", f"http://evil.example?://{HOST}", CROSS, "cors", None, NO, NO),
        ("OPTIONS", EVIL, CROSS, "cors", "GET", NO, NO),
        # Listed origins, compared exactly.
        ("POST", APP, CROSS, "cors", None, LIST, LIST),
        ("GET", APP, CROSS, "websocket", None, LIST, LIST),
        ("OPTIONS", APP, CROSS, "cors", "PUT", ASKS, ASKS),
        ("OPTIONS", APP, CROSS, "cors", None, LIST, LIST),
        ("PUT", APP, CROSS, "cors", "PUT", LIST, LIST),
        ("GET", "http://app.example", CROSS, "cors", None, NO, NO),
        ("GET", "https://app.example:443", CROSS, "cors", None, NO, NO),
        ("GET", "https://APP.example", CROSS, "cors", None, NO, NO),
        ("GET", "https://app.example, https://evil.example", CROSS, "cors", None, NO, NO),
    ],
)
def test_the_table(
    method: str,
    origin: str | None,
    site: str | None,
    mode: str | None,
    wanted: str | None,
    on_own_host: Sender | None,
    below_fn: Sender | None,
) -> None:
    """Each row: the fields of a request, and who sends it, None for nobody who may."""
    asked = Asked(method, HOST, origin, site, mode, wanted)
    for is_linked, expected in ((True, on_own_host), (False, below_fn)):
        if expected is None:
            with pytest.raises(ForeignOrigin):
                judge(asked, LISTED, is_linked=is_linked)
        else:
            assert judge(asked, LISTED, is_linked=is_linked) is expected


@pytest.mark.parametrize(
    ("dest", "purpose", "without_origins", "with_origins"),
    [
        ("document", None, True, True),
        ("empty", None, True, True),
        (None, None, True, True),
        ("iframe", None, False, True),
        ("frame", None, False, True),
        ("object", None, False, False),
        ("embed", None, False, False),
        ("fencedframe", None, False, False),
        ("document", "prefetch;prerender", False, False),
        ("iframe", "prefetch", False, False),
    ],
)
def test_what_a_user_follows(
    dest: str | None, purpose: str | None, without_origins: bool, with_origins: bool
) -> None:
    """A link of another site, but nothing that its page loads unasked; frames only where the
    settings list origins, and never below /fn/. The same host may do all of it."""
    asked = Asked("GET", HOST, None, CROSS, NAVIGATE, dest=dest, purpose=purpose)
    for origins, is_linked, passes in (
        ((), True, without_origins),
        (LISTED, True, with_origins),
        (LISTED, False, False),
    ):
        if passes:
            assert judge(asked, origins, is_linked=is_linked) is OWN
        else:
            with pytest.raises(ForeignOrigin):
                judge(asked, origins, is_linked=is_linked)
    assert judge(asked._replace(site="same-origin"), (), is_linked=False) is OWN


@pytest.mark.parametrize("site", [None, "none", SAME, CROSS])
@pytest.mark.parametrize("is_linked", [False, True])
def test_nothing_is_fetched_ahead(site: str | None, is_linked: bool) -> None:
    """Also not what looks like an address that the user has typed."""
    asked = Asked("GET", HOST, None, site, NAVIGATE, dest="document", purpose="prefetch")
    with pytest.raises(ForeignOrigin, match="ahead"):
        judge(asked, LISTED, is_linked=is_linked)


def test_nothing_is_listed_by_default() -> None:
    """Without `origins` a foreign page is refused, and so is its preflight."""
    for asked in (Asked("GET", HOST, APP), Asked("OPTIONS", HOST, APP, wanted="GET")):
        with pytest.raises(ForeignOrigin):
            judge(asked, (), is_linked=True)


@pytest.mark.parametrize(
    ("origin", "is_own"),
    [
        ("http://localhost", True),
        ("https://LOCALHOST", True),
        ("tauri://localhost", False),
        ("ws://localhost", False),
        ("localhost", False),
        ("://localhost", False),
        ("http://localhost:80", False),
        ("null", False),
        ("", False),
    ],
)
def test_only_pages_of_http_are_own(origin: str, is_own: bool) -> None:
    """Apps have origins whose host is that of the server, and are foreign."""
    assert is_own_page(origin, "localhost") is is_own
    if not is_own:
        with pytest.raises(ForeignOrigin):
            judge(Asked("POST", "localhost", origin), (), is_linked=False)


def test_a_request_without_a_host_is_nobodys_own() -> None:
    """The empty host is not the host of the origin `null`."""
    with pytest.raises(ForeignOrigin):
        judge(Asked("GET", "", NULL), (), is_linked=True)


def test_the_fields_are_read() -> None:
    """By their names in the standards."""
    sent = {
        "Host": HOST,
        "Origin": APP,
        "Sec-Fetch-Site": CROSS,
        "Sec-Fetch-Mode": "cors",
        "Access-Control-Request-Method": "PUT",
        "Sec-Fetch-Dest": "iframe",
        "Sec-Purpose": "prefetch",
    }

    expected = Asked("OPTIONS", HOST, APP, CROSS, "cors", "PUT", "iframe", "prefetch")
    assert asked_by("OPTIONS", sent.get) == expected
    assert asked_by("GET", {}.get) == Asked("GET", "")


def test_the_fields_for_a_listed_page() -> None:
    """The exact origin, never a star, and caches keep the answers apart."""
    assert dict(cors_fields(APP, with_cookies=True)) == {
        "Access-Control-Allow-Origin": APP,
        "Access-Control-Allow-Credentials": "true",
        "Access-Control-Expose-Headers": EXPOSED,
        "Vary": "Origin",
    }


@pytest.mark.parametrize(
    ("method", "names", "allowed"),
    [
        ("PUT", None, {"Methods": "PUT"}),
        ("PUT", "content-type, fn-key", {"Methods": "PUT", "Headers": "content-type, fn-key"}),
        ("PUT", "a,b\t, c", {"Methods": "PUT", "Headers": "a,b\t, c"}),
        ("PUT", "a,", {"Methods": "PUT"}),
        ("PUT", "a b", {"Methods": "PUT"}),
        ("PUT", "a" * 3000, {"Methods": "PUT"}),
        ("P UT", "a", {"Headers": "a"}),
        ("PUT", "a\xe4", {"Methods": "PUT"}),
    ],
)
def test_a_preflight_is_allowed_what_it_names(
    method: str, names: str | None, allowed: dict[str, str]
) -> None:
    """Method and names are repeated if they are a token and a list of tokens."""
    asked = Asked("OPTIONS", HOST, APP, wanted=method)
    fields = dict(preflight_fields(asked, names, with_cookies=True))
    prefix = "Access-Control-Allow-"

    assert {key: fields.get(prefix + key) for key in ("Methods", "Headers")} == {
        "Methods": None,
        "Headers": None,
        **allowed,
    }
    assert fields[prefix + "Origin"] == APP
    assert fields["Access-Control-Max-Age"] == "600"
