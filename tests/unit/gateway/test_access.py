"""Tests of access rules: hosts, origins, keys and scopes."""

from __future__ import annotations

import pytest

from gateway.access import DIRECT, NOBODY, Access, Anonymous, Caller, Credential, Need, anonymous
from gateway.pages.cookies import make_value
from registry.errors import FnError, ForeignHost, ForeignOrigin, NoKey, WrongScope
from registry.model import Key
from registry.openness import Openness
from registry.store.keys import KeyRing, fingerprint

TOKEN = "fn_the-admin-token"


def access(*scopes: str, listen: str = "127.0.0.1", public_hosts: tuple[str, ...] = ()) -> Access:
    """Return a server's access rules; with `scopes`, a key "fn_key" exists that has them."""
    keys = [Key("id", fingerprint("fn_key"), scopes)] if scopes else []
    return Access(listen, public_hosts, KeyRing(keys, TOKEN))


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


def verdict(rules: Access, authorization: Credential, need: Need, name: str = "") -> str:
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
def test_only_a_bearer_key_is_a_key(authorization: Credential) -> None:
    """Any other Authorization header is refused; the refusal says how to send a key."""
    with pytest.raises(NoKey, match="expected the header Authorization: Bearer <key>"):
        access("read").check(authorization, "read")


def test_the_scheme_is_read_in_any_case() -> None:
    """`bearer` in any case and extra spaces around the key are accepted (RFC 9110, 11.1)."""
    assert verdict(access("read"), "bearer  fn_key ", "read") == "ok"


PROXIED = Anonymous("Via")


@pytest.mark.parametrize(
    ("listen", "openness", "credential", "expected"),
    [
        ("127.0.0.1", Openness.LOCAL, DIRECT, "ok"),
        ("127.0.0.1", Openness.LOCAL, PROXIED, "no_key"),
        ("127.0.0.1", Openness.LOCAL, None, "no_key"),
        ("127.0.0.1", Openness.LOCAL, "Bearer fn_wrong", "no_key"),
        ("127.0.0.1", Openness.OPEN, DIRECT, "ok"),
        ("127.0.0.1", Openness.OPEN, PROXIED, "ok"),
        ("127.0.0.1", Openness.OPEN, None, "no_key"),
        ("127.0.0.1", Openness.CLOSED, DIRECT, "no_key"),
        ("127.0.0.1", Openness.CLOSED, PROXIED, "no_key"),
        ("10.0.0.5", Openness.LOCAL, DIRECT, "no_key"),
        ("10.0.0.5", Openness.OPEN, DIRECT, "no_key"),
        ("10.0.0.5", Openness.OPEN, f"Bearer {TOKEN}", "ok"),
    ],
)
def test_who_may_invoke_without_a_key(
    listen: str, openness: Openness, credential: Credential, expected: str
) -> None:
    """What a proxy passed on needs the operator's decision; a door that does not say how a request
    came, and a server that others can connect to, let nobody in. Nothing but invoking is open."""
    rules = Access(listen, (), KeyRing((), TOKEN, openness))

    assert verdict(rules, credential, "invoke", "digits") == expected
    is_in = expected == "ok" and isinstance(credential, Anonymous)
    assert rules.lets_in(credential) == is_in
    if not isinstance(credential, str):
        assert verdict(rules, credential, "read") == "no_key"


@pytest.mark.parametrize(
    ("host", "names", "passed_on"),
    [
        ("127.0.0.1:8080", ["Host", "Accept", "X-Request-Id", "Origin"], ""),
        ("[::1]", [], ""),
        ("web.localhost:8080", [], ""),
        (None, ["user-agent"], ""),
        ("localhost", ["Accept", "forwarded"], "forwarded"),
        ("localhost", ["X-Forwarded-For"], "X-Forwarded-For"),
        ("localhost", ["x-forwarded-made-up"], "x-forwarded-made-up"),
        ("localhost", ["X-REAL-IP"], "X-REAL-IP"),
        (None, ["via"], "via"),
        ("gpu.example", [], "Host: gpu.example"),
        ("localhost.example", [], "Host: localhost.example"),
        ("", [], "Host: "),
    ],
)
def test_what_shows_a_proxy(host: str | None, names: list[str], passed_on: str) -> None:
    """The fields that proxies add, in any case, and a host that is not of loopback."""
    assert anonymous(host, names) == Anonymous(passed_on)


def test_the_refusal_of_what_a_proxy_passed_on_says_how_to_open() -> None:
    """It names the field and both remedies; a closed server asks for a key as always."""
    with pytest.raises(NoKey, match=r"\(Via\).* fnctl key add .* fnctl access open"):
        access().check(PROXIED, "invoke", "web")
    with pytest.raises(NoKey, match=r"\(Via\).* fnctl access open"):
        access().check_cookie(b"", "web", 0.0, PROXIED)
    with pytest.raises(NoKey, match="expected the header Authorization"):
        access("read").check(PROXIED, "invoke", "web")


def test_the_first_key_closes_and_the_last_one_opens_nothing() -> None:
    """Only a decision opens a server again, and then keys may exist."""
    rules, key = access(), Key("id", fingerprint("fn_key"), ("invoke",))
    rules.ring.put(key)
    assert rules.is_closed
    rules.ring.remove(key)
    assert rules.is_closed
    assert verdict(rules, DIRECT, "invoke", "web") == "no_key"

    rules.ring.decide(Openness.OPEN)
    assert verdict(rules, DIRECT, "invoke", "web") == "ok"
    rules.ring.replace_token("fn_another")
    assert not rules.is_closed


def test_a_replaced_token_is_refused_and_so_are_its_cookies() -> None:
    """The new one counts at once, under its own id."""
    ring = KeyRing((), TOKEN)
    rules, before = Access("127.0.0.1", (), ring, b"s" * 32), ring.token_id
    gone: list[tuple[str, bool]] = []
    ring.subscribe(lambda key, is_let_in: gone.append((key.id, is_let_in)))
    cookie = b"fngate=" + make_value(b"s" * 32, before, "web", 100).encode()
    assert rules.check_cookie(cookie, "web", 0.0)[0].id == before

    ring.replace_token("fn_new")

    assert gone == [(ring.token_id, True), (before, False)]
    assert verdict(rules, "Bearer fn_new", "admin") == "ok"
    assert verdict(rules, f"Bearer {TOKEN}", "admin") == "no_key"
    with pytest.raises(NoKey):
        rules.check_cookie(cookie, "web", 0.0)
    assert not ring.has_keys


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
    authorization: Credential, is_admin: bool
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
    assert rules.check(f"Bearer {TOKEN}", "admin") == Caller(
        rules.ring.token_id, ("admin",), is_high=True
    )
    assert access().check(DIRECT, "invoke", "web") == NOBODY


def test_an_id_counts_as_its_key_while_that_exists() -> None:
    """With the scopes that the key has now."""
    rules = access("invoke:web")

    assert rules.check_id("id", "invoke", "web").id == "id"
    assert rules.check_id(rules.ring.token_id, "invoke", "web").scopes == ("admin",)
    with pytest.raises(WrongScope):
        rules.check_id("id", "invoke", "other")
    rules.ring.remove(rules.ring.all()[0])
    with pytest.raises(NoKey, match="removed"):
        rules.check_id("id", "invoke", "web")


def test_the_first_valid_cookie_counts() -> None:
    """Another host of a common domain can add cookies of the same name, but no valid ones."""
    rules = Access("127.0.0.1", (), access("invoke:web").ring, b"s" * 32)
    good = make_value(b"s" * 32, "id", "web", 100).encode()
    gone = make_value(b"s" * 32, "gone", "web", 100).encode()

    sent = b"fngate=x; fngate=" + gone + b"; fngate=" + good
    assert rules.check_cookie(sent, "web", 0.0)[0].id == "id"
    for cookies in (b"", b"fngate=" + gone, b"other=" + good):
        with pytest.raises(NoKey, match="fnctl open web"):
            rules.check_cookie(cookies, "web", 0.0)
