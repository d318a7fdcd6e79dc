"""Tests of access rules: hosts, origins, keys and scopes."""

from __future__ import annotations

import pytest

from gateway.access import NOBODY, Access, Caller, Need
from gateway.pages.cookies import make_value
from registry.errors import FnError, ForeignHost, ForeignOrigin, NoKey, WrongScope
from registry.model import Key
from registry.store.keys import KeyRing, fingerprint

TOKEN = "fn_the-admin-token"


def access(*scopes: str, listen: str = "127.0.0.1", public_hosts: tuple[str, ...] = ()) -> Access:
    """Return a server's access rules; with `scopes`, a key "fn_key" exists that has them."""
    keys = [Key("id", fingerprint("fn_key"), scopes)] if scopes else []
    return Access(listen, public_hosts, KeyRing(keys), fingerprint(TOKEN))


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080"],
)
def test_every_spelling_of_loopback_is_accepted(host: str) -> None:
    """A loopback server accepts every spelling of loopback as host, with any port."""
    access().check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.", "[::2]", "127.0.0.2:80"),
        *("::1", "[::1]evil", "[::1", "[::1]:", "localhost:1.evil.example", "localhost:"),
        *("localhost:1x", "localhost:80:80", "evil@localhost", "localhost/", "localhost\n"),
    ],
)
def test_another_host_is_foreign(host: str) -> None:
    """A host that is not the server's is refused; the refusal lists the accepted hosts."""
    with pytest.raises(ForeignHost, match=r"expected 127\.0\.0\.1 or ::1 or localhost, got "):
        access().check_host(host)


def test_a_public_host_is_known_beside_the_listening_address() -> None:
    """Public hosts match in any case; a server that listens publicly refuses localhost."""
    rules = access("invoke", listen="10.0.0.5", public_hosts=("GPU.example",))

    rules.check_host("gpu.example:8080")
    rules.check_host("10.0.0.5")
    with pytest.raises(ForeignHost):
        rules.check_host("localhost")


def test_strange_hosts_are_remembered_up_to_a_limit() -> None:
    """The cache of host verdicts is bounded, and the verdicts stay the same at its limit."""
    rules = access()

    for number in range(1200):
        with pytest.raises(ForeignHost):
            rules.check_host(f"h{number}.example")
    rules.check_host("localhost")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://127.0.0.1:8080"},
        {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_programs_and_own_pages_are_no_foreign_origin(headers: dict[str, str]) -> None:
    """A request without Origin, or with the server's own, is accepted."""
    access().check_origin(headers.get("Origin"), headers.get("Sec-Fetch-Site"), "127.0.0.1:8080")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:9"},
        {"Origin": "http://127.0.0.1:8080.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_origins_are_refused(headers: dict[str, str]) -> None:
    """Another host, another port, or an invalid origin is refused."""
    with pytest.raises(ForeignOrigin, match="may not call this server"):
        access().check_origin(
            headers.get("Origin"), headers.get("Sec-Fetch-Site"), "127.0.0.1:8080"
        )


def verdict(rules: Access, authorization: str | None, need: Need, name: str = "") -> str:
    """Return the code of the refusal, or "ok"."""
    try:
        rules.check(authorization, need, name)
    except FnError as error:
        return error.code
    return "ok"


SCOPED: list[tuple[str, dict[str, str]]] = [
    ("admin", {"invoke": "ok", "read": "ok", "deploy": "ok", "admin": "ok"}),
    ("deploy", {"invoke": "wrong_scope", "read": "ok", "deploy": "ok", "admin": "wrong_scope"}),
    ("read", {"invoke": "wrong_scope", "read": "ok", "deploy": "wrong_scope"}),
    ("invoke", {"invoke": "ok", "read": "wrong_scope", "deploy": "wrong_scope"}),
    ("invoke:digits", {"invoke": "ok", "read": "wrong_scope", "admin": "wrong_scope"}),
    ("invoke:other", {"invoke": "wrong_scope", "read": "wrong_scope"}),
]


@pytest.mark.parametrize(("scope", "verdicts"), SCOPED)
def test_a_scope_allows_what_it_names(scope: str, verdicts: dict[Need, str]) -> None:
    """The scope admin allows everything, deploy includes read, and invoke:NAME allows one
    function."""
    rules = access(scope)

    found = {need: verdict(rules, "Bearer fn_key", need, "digits") for need in verdicts}

    assert found == verdicts


def test_a_key_for_one_function_allows_nothing_without_a_name() -> None:
    """The scope invoke:NAME does not allow a request that names no function."""
    assert verdict(access("invoke:digits"), "Bearer fn_key", "invoke") == "wrong_scope"


def test_the_token_may_do_everything() -> None:
    """The admin token needs no scopes."""
    needs: tuple[Need, ...] = ("invoke", "read", "deploy", "admin")

    assert {verdict(access("read"), f"Bearer {TOKEN}", need) for need in needs} == {"ok"}
    assert access("read").is_admin(f"Bearer {TOKEN}")


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic fn_key", "fn_key"])
def test_only_a_bearer_key_is_a_key(authorization: str | None) -> None:
    """Any other Authorization header is refused; the refusal says how to send a key."""
    with pytest.raises(NoKey, match="expected the header Authorization: Bearer <key>"):
        access("read").check(authorization, "read")


def test_the_scheme_is_read_in_any_case() -> None:
    """`bearer` in any case and extra spaces around the key are accepted (RFC 9110, 11.1)."""
    assert verdict(access("read"), "bearer  fn_key ", "read") == "ok"


def test_only_a_loopback_server_without_keys_is_open() -> None:
    """An invocation needs a key as soon as one exists, or where other machines can connect."""
    assert access().is_open
    assert verdict(access(), None, "invoke", "digits") == "ok"
    assert verdict(access(), None, "read") == "no_key"
    assert not access("read").is_open
    assert not access(listen="10.0.0.5").is_open


def test_a_wrong_key_is_refused_even_where_none_is_needed() -> None:
    """An unknown key is refused even by an open server."""
    with pytest.raises(NoKey, match="the key is unknown"):
        access().check("Bearer fn_other", "invoke", "digits")


def test_a_refusal_names_need_and_scopes() -> None:
    """A refused caller learns which scope is missing and which scopes the key has."""
    with pytest.raises(WrongScope, match="needs the scope deploy, the key has invoke, read"):
        access("invoke", "read").check("Bearer fn_key", "deploy")


@pytest.mark.parametrize(
    ("authorization", "is_admin"),
    [(None, False), ("Bearer fn_key", False), ("Bearer nobody", False)],
)
def test_only_the_token_and_the_admin_scope_are_admin(
    authorization: str | None, is_admin: bool
) -> None:
    """Without the admin token or the admin scope a caller is not an administrator."""
    assert access("read").is_admin(authorization) is is_admin


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("web.localhost", "web"),
        ("WEB.LocalHost:8080", "web"),
        ("w-1.gpu.example:443", "w-1"),
        ("gpu.example", None),
        ("localhost:8080", None),
        ("taken.gpu.example", None),
        ("a.web.localhost", None),
        ("web.localhost.", None),
        ("web.localhost.gpu.example", None),
        ("web.127.0.0.1", None),
        ("web.10.0.0.5", None),
        ("1web.localhost", None),
        ("web-.localhost", None),
        ("w_b.localhost", None),
        (".localhost", None),
        ("web.", None),
        ("web.localhost:x", None),
        ("web.localhost:80:80", None),
        ("[web.localhost]", None),
        ("", None),
        (f"{'w' * 63}.localhost", "w" * 63),
        (f"{'w' * 64}.localhost", None),
    ],
)
def test_the_own_hosts_of_functions(host: str, name: str | None) -> None:
    """Exactly one label, a function's name, before localhost or a public host name."""
    rules = access(public_hosts=("GPU.example", "taken.gpu.example", "10.0.0.5", "[::5]"))

    assert rules.function_of(host) == name
    if name is not None:
        with pytest.raises(ForeignHost):
            rules.check_host(host)


def test_a_public_server_has_no_local_hosts() -> None:
    """Names below localhost belong to a loopback server."""
    rules = access("invoke", listen="0.0.0.0", public_hosts=("gpu.example",))

    assert rules.function_of("web.localhost") is None
    assert rules.function_of("web.gpu.example") == "web"


@pytest.mark.parametrize(
    ("listen", "public", "reached", "expected"),
    [
        ("127.0.0.1", (), "127.0.0.1:8080", "web.localhost:8080"),
        ("127.0.0.1", (), "[::1]", "web.localhost"),
        ("127.0.0.1", ("gpu.example",), "GPU.example:443", "web.gpu.example:443"),
        ("10.0.0.5", ("a.example", "b.example"), "b.example", "web.b.example"),
        ("10.0.0.5", ("a.example", "b.example"), "10.0.0.5:80", "web.a.example:80"),
        ("10.0.0.5", ("10.0.0.5",), "10.0.0.5:80", None),
    ],
)
def test_the_host_of_pages(
    listen: str, public: tuple[str, ...], reached: str, expected: str | None
) -> None:
    """It is below the name by which the client has reached the server, with the same port."""
    assert (
        access("invoke", listen=listen, public_hosts=public).page_host("web", reached) == expected
    )


def test_a_check_names_the_caller() -> None:
    """By the id of the key; the admin token has one, too, and nobody none."""
    rules = access("invoke:web")

    assert rules.check("Bearer fn_key", "invoke", "web") == Caller("id", ("invoke:web",))
    assert rules.check(f"Bearer {TOKEN}", "admin") == Caller(rules.token_id, ("admin",))
    assert access().check(None, "invoke", "web") == NOBODY


def test_an_id_counts_as_its_key_while_that_exists() -> None:
    """With the scopes that the key has now."""
    rules = access("invoke:web")

    assert rules.check_id("id", "invoke", "web").id == "id"
    assert rules.check_id(rules.token_id, "invoke", "web").scopes == ("admin",)
    with pytest.raises(WrongScope):
        rules.check_id("id", "invoke", "other")
    rules.ring.remove(rules.ring.all()[0])
    with pytest.raises(NoKey, match="removed"):
        rules.check_id("id", "invoke", "web")


def test_the_first_valid_cookie_counts() -> None:
    """Another host of a common domain can add cookies of the same name, but no valid ones."""
    rules = Access("127.0.0.1", (), access("invoke:web").ring, fingerprint(TOKEN), b"s" * 32)
    good = make_value(b"s" * 32, "id", "web", 100).encode()
    gone = make_value(b"s" * 32, "gone", "web", 100).encode()

    sent = b"fngate=x; fngate=" + gone + b"; fngate=" + good
    assert rules.check_cookie(sent, "web", 0.0)[0].id == "id"
    for cookies in (b"", b"fngate=" + gone, b"other=" + good):
        with pytest.raises(NoKey, match="fnctl open web"):
            rules.check_cookie(cookies, "web", 0.0)
