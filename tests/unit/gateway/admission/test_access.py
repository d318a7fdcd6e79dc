"""Tests of who sends a request: keys, cookies, openness, and pages of other origins."""

from __future__ import annotations

import pytest

from gateway.admission.access import Access
from gateway.admission.credentials import DIRECT, Credential, Realm
from gateway.pages.cookies import make_value
from gateway.pages.origins import Asked
from registry.errors import FnError, ForeignHost, ForeignOrigin, NoKey
from registry.model.keys import Key
from registry.openness import Openness
from registry.store.keys import KeyRing, fingerprint

TOKEN = "fn_the-admin-token"
HOST = "127.0.0.1:8080"
SECRET = b"s" * 32
KEYED, UNKNOWN, PROXIED = Credential("fn_key"), Credential("fn_x"), Credential(passed_on="Via")


def access(*scopes: str) -> Access:
    """Return a server's access rules; with `scopes`, a key "fn_key" exists that has them."""
    keys = [Key("id", fingerprint("fn_key"), scopes)] if scopes else []
    return Access("127.0.0.1", (), KeyRing(keys, TOKEN), SECRET)


def cookie(id: str = "id") -> bytes:
    """Return the field Cookie with a valid cookie for the pages of web."""
    return b"fngate=" + make_value(SECRET, id, "web", 100).encode()


def who(rules: Access, credential: Credential, realm: Realm = Realm.CALLS) -> str:
    """Return the id of the caller, or the code of the refusal."""
    try:
        return rules.identify(credential, realm).id
    except FnError as error:
        return error.code


@pytest.mark.parametrize(
    "asked",
    [
        Asked("POST", HOST),
        Asked("POST", HOST, f"http://{HOST}"),
        Asked("POST", HOST, f"http://{HOST}", "same-origin"),
        Asked("POST", HOST, None, "same-origin"),
        Asked("POST", HOST, None, "none"),
    ],
)
def test_programs_and_own_pages_are_no_foreign_origin(asked: Asked) -> None:
    """A request without Origin, or with the server's own, is accepted."""
    access().check_source(asked, "/fn")


@pytest.mark.parametrize(
    "asked",
    [
        Asked("POST", HOST, "http://evil.example"),
        Asked("POST", HOST, "null"),
        Asked("POST", HOST, ""),
        Asked("POST", HOST, "http://127.0.0.1:9"),
        Asked("POST", HOST, f"http://{HOST}.evil.example"),
        Asked("POST", HOST, f"https://{HOST}", "same-site"),
        Asked("POST", HOST, None, "cross-site"),
        Asked("POST", HOST, None, "same-site"),
    ],
)
def test_pages_of_other_origins_are_refused(asked: Asked) -> None:
    """Another host, port or scheme, or an invalid origin is refused."""
    with pytest.raises(ForeignOrigin, match="may not call this server"):
        access().check_source(asked, "/fn")


def test_listed_pages_may_send_calls_alone() -> None:
    """An origin of the settings counts at the paths of calls."""
    rules = Access("127.0.0.1", (), KeyRing(), cors_origins=("https://app.example",))
    asked = Asked("POST", HOST, "https://app.example")

    rules.check_source(asked, "/fn/web")
    with pytest.raises(ForeignOrigin):
        rules.check_source(asked, "/admin/v1/keys")


def test_pages_of_models_may_send_calls_alone() -> None:
    """An origin of a model counts where it is given, at the paths of calls, and for no other."""
    asked, models = (
        Asked("POST", HOST, "https://app.example", "cross-site"),
        {"https://app.example"},
    )

    access().check_source(asked, "/v1", models)
    for path, others in (("/v1", {"https://other.example"}), ("/admin/v1/keys", models)):
        with pytest.raises(ForeignOrigin):
            access().check_source(asked, path, others)
    with pytest.raises(ForeignHost):
        access().check_source(asked._replace(host="evil.example"), "/v1", models)


@pytest.mark.parametrize(
    ("listen", "openness", "credential", "expected"),
    [
        ("127.0.0.1", Openness.LOCAL, DIRECT, ""),
        ("127.0.0.1", Openness.LOCAL, PROXIED, "no_key"),
        ("127.0.0.1", Openness.LOCAL, UNKNOWN, "no_key"),
        ("127.0.0.1", Openness.OPEN, DIRECT, ""),
        ("127.0.0.1", Openness.OPEN, PROXIED, ""),
        ("127.0.0.1", Openness.OPEN, UNKNOWN, "no_key"),
        ("127.0.0.1", Openness.CLOSED, DIRECT, "no_key"),
        ("127.0.0.1", Openness.CLOSED, PROXIED, "no_key"),
        ("10.0.0.5", Openness.LOCAL, DIRECT, "no_key"),
        ("10.0.0.5", Openness.OPEN, DIRECT, "no_key"),
    ],
)
def test_who_needs_no_key(
    listen: str, openness: Openness, credential: Credential, expected: str
) -> None:
    """What a proxy passed on needs the operator's decision; a server that others can connect to
    lets nobody in, and the admin API never. A key of another server is the function's server's
    business where who sends it needs none."""
    rules = Access(listen, (), KeyRing((), TOKEN, openness))
    is_in = rules.lets_in(credential)

    assert who(rules, credential) == expected
    assert who(rules, credential, Realm.SERVERS) == ("" if is_in else "no_key")
    assert who(rules, credential, Realm.ADMIN) == "no_key"
    assert who(rules, Credential(TOKEN), Realm.ADMIN) == rules.ring.token_id


@pytest.mark.parametrize(
    ("credential", "text"),
    [
        (Credential(), "expected the header Authorization: Bearer <key>"),
        (Credential(""), "expected the header Authorization: Bearer <key>"),
        (UNKNOWN, "the key is unknown"),
    ],
)
@pytest.mark.parametrize("realm", list(Realm))
def test_a_refusal_says_what_is_expected(credential: Credential, text: str, realm: Realm) -> None:
    """In every realm of a closed server."""
    with pytest.raises(NoKey, match=text):
        access("read").identify(credential, realm)


def test_the_refusal_of_what_a_proxy_passed_on_says_how_to_open() -> None:
    """It names the field and both remedies; a closed server and the admin API ask for a key."""
    with pytest.raises(NoKey, match=r"\(Via\).* fnctl key add .* fnctl access open"):
        access().identify(PROXIED, Realm.CALLS)
    with pytest.raises(NoKey, match=r"\(Via\).* fnctl access open"):
        access().identify_visitor(PROXIED, "web", 0.0)
    for rules, realm in ((access("read"), Realm.CALLS), (access(), Realm.ADMIN)):
        with pytest.raises(NoKey, match="expected the header Authorization"):
            rules.identify(PROXIED, realm)


def test_requests_to_servers_may_bring_the_key_elsewhere() -> None:
    """Fn-Key comes before the fields of a protocol, and these before Authorization. A Fn-Key that
    is none is refused, also by an open server: it is for nobody else."""
    rules = access("invoke")

    assert who(rules, Credential("other", "fn_key"), Realm.SERVERS) == "id"
    assert who(rules, Credential("other", own=(" fn_key",)), Realm.SERVERS) == "id"
    assert who(rules, Credential("fn_key", own=("other",)), Realm.SERVERS) == "no_key"
    assert who(rules, Credential("other", "fn_key")) == "no_key"
    for open_or_not in (rules, access()):
        for wrong in ("fn_x", ""):
            assert who(open_or_not, Credential(fn_key=wrong), Realm.SERVERS) == "no_key"


def test_the_first_key_closes_and_the_last_one_opens_nothing() -> None:
    """Only a decision opens a server again, and then keys may exist."""
    rules, key = access(), Key("id", fingerprint("fn_key"), ("invoke",))
    rules.ring.put(key)
    assert rules.is_closed
    rules.ring.remove(key)
    assert rules.is_closed
    assert who(rules, DIRECT) == "no_key"

    rules.ring.decide(Openness.OPEN)
    assert who(rules, DIRECT) == ""
    rules.ring.replace_token("fn_another")
    assert not rules.is_closed


def test_a_replaced_token_is_refused_and_so_are_its_cookies() -> None:
    """The new one counts at once, under its own id."""
    rules = access("read")
    ring, before = rules.ring, rules.ring.token_id
    gone: list[tuple[str, bool]] = []
    ring.subscribe(lambda key, is_let_in: gone.append((key.id, is_let_in)))
    sent = Credential(cookies=cookie(before))
    assert rules.identify_visitor(sent, "web", 0.0).caller.id == before

    ring.replace_token("fn_new")

    assert gone == [(ring.token_id, True), (before, False)]
    assert who(rules, Credential("fn_new"), Realm.ADMIN) == ring.token_id
    assert who(rules, Credential(TOKEN), Realm.ADMIN) == "no_key"
    with pytest.raises(NoKey):
        rules.identify_visitor(sent, "web", 0.0)


@pytest.mark.parametrize(
    ("credential", "is_admin"),
    [(DIRECT, False), (KEYED, False), (UNKNOWN, False), (Credential(TOKEN), True)],
)
def test_only_the_token_and_the_admin_scope_are_admin(
    credential: Credential, is_admin: bool
) -> None:
    """Without the admin token or the admin scope a caller is not an administrator."""
    assert access("read").is_admin(credential) is is_admin
    assert access("admin").is_admin(KEYED)


def test_a_cookie_stands_for_its_key_on_the_own_host() -> None:
    """Of its function, until it expires or the key is gone; any key of this server comes first.
    Authorization may belong to the function's server."""
    rules = access("invoke:web")
    sent = Credential("its own", cookies=cookie())

    visitor = rules.identify_visitor(sent, "web", 0.0)

    assert (visitor.caller.id, visitor.by_cookie) == ("id", True)
    assert visitor.renewed.startswith("fngate=id.")
    direct = rules.identify_visitor(Credential(TOKEN, cookies=cookie()), "web", 0.0)
    assert (direct.caller.id, direct.by_cookie, direct.renewed) == (rules.ring.token_id, False, "")
    for function, now_s in (("other", 0.0), ("web", 100.0)):
        with pytest.raises(NoKey, match=f"the cookie of `fnctl open {function}`"):
            rules.identify_visitor(sent, function, now_s)
    rules.ring.remove(rules.ring.all()[0])
    with pytest.raises(NoKey):
        rules.identify_visitor(sent, "web", 0.0)


def test_the_first_valid_cookie_counts() -> None:
    """Another host of a common domain can add cookies of the same name, but no valid ones."""
    rules = access("invoke:web")
    many = b"; ".join([b"fngate=forged", cookie(), b"a=b"])

    assert rules.identify_visitor(Credential(cookies=many), "web", 0.0).caller.id == "id"
    with pytest.raises(NoKey):
        rules.identify_visitor(Credential(cookies=b"; ".join([b"fngate=x"] * 4)), "web", 0.0)


def test_without_a_secret_no_cookie_is_valid() -> None:
    """As in a process that signs none."""
    rules = Access("127.0.0.1", (), access("invoke").ring)

    with pytest.raises(NoKey):
        rules.identify_visitor(Credential(cookies=cookie()), "web", 0.0)
