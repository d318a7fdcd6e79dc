"""Tests of callers: their rights, and how long they live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admission.callers import ANY, NOBODY, Caller, Callers, KeyProbe
from registry.errors import FnError, NoKey, WrongScope
from registry.key_form import KeyPriority
from registry.model.keys import Key, Need
from registry.openness import Openness
from registry.store.keys import KeyRing, fingerprint

KEY = Key("k", fingerprint("fn_k"), ("invoke:web",))
OTHER = Key("o", fingerprint("fn_o"), ("read",))


def verdict(caller: Caller, need: Need, name: str = "") -> str:
    """Return the code of the refusal, or "ok"."""
    try:
        caller.require(need, name)
    except FnError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize(
    ("scope", "verdicts"),
    [
        ("admin", {"invoke": "ok", "read": "ok", "deploy": "ok", "admin": "ok"}),
        ("deploy", {"invoke": "wrong_scope", "read": "ok", "deploy": "ok", "admin": "wrong_scope"}),
        ("read", {"invoke": "wrong_scope", "read": "ok", "deploy": "wrong_scope"}),
        ("invoke", {"invoke": "ok", "read": "wrong_scope", "deploy": "wrong_scope"}),
        ("invoke:digits", {"invoke": "ok", "read": "wrong_scope", "admin": "wrong_scope"}),
        ("invoke:other", {"invoke": "wrong_scope", "read": "wrong_scope"}),
    ],
)
def test_a_scope_allows_what_it_names(scope: str, verdicts: dict[Need, str]) -> None:
    """The scope admin allows everything, deploy includes read, and invoke:NAME allows one
    function."""
    caller = Caller("id", (scope,))

    assert {need: verdict(caller, need, "digits") for need in verdicts} == verdicts


def test_a_key_for_one_function_allows_nothing_without_a_name() -> None:
    """Unless the request says later which function it is for."""
    caller = Caller("id", ("invoke:digits",))

    assert verdict(caller, "invoke") == "wrong_scope"
    assert verdict(caller, "invoke", ANY) == "ok"
    assert verdict(caller, "read", ANY) == "wrong_scope"
    assert verdict(Caller("id", ("read",)), "invoke", ANY) == "wrong_scope"


def test_a_refusal_names_need_and_scopes() -> None:
    """A refused caller learns which scope is missing and which scopes the key has."""
    with pytest.raises(WrongScope, match="needs the scope deploy, the key has invoke, read"):
        Caller("id", ("invoke", "read")).require("deploy")


def test_without_a_key_all_but_administration_is_allowed() -> None:
    """Of those who are let in; what nobody asked for is allowed nothing."""
    nobody = Callers(KeyRing()).nobody

    assert [verdict(nobody, need, "web") for need in ("invoke", "read", "deploy")] == ["ok"] * 3
    assert verdict(nobody, "admin") == "no_key"
    assert verdict(NOBODY, "invoke", "web") == "no_key"


def test_a_key_has_one_caller_while_it_stays() -> None:
    """Its id, scopes and priority are those of the key, however it is found."""
    ring = KeyRing([replace(KEY, priority=KeyPriority.HIGH)], "fn_token")
    callers = Callers(ring)
    caller = callers.with_secret("fn_k")

    assert caller is not None
    assert (caller.id, caller.scopes, caller.is_high) == ("k", ("invoke:web",), True)
    assert caller is callers.with_secret("fn_k") is callers.with_id("k")
    token = callers.with_secret("fn_token")
    assert token is not None
    assert (token.id, token.is_admin) == (ring.token_id, True)
    assert callers.with_secret("fn_x") is None
    assert callers.with_id("x") is None


@pytest.mark.parametrize("change", ["remove", "scopes"])
def test_a_caller_ends_with_its_key(change: str) -> None:
    """A removed or changed key ends its caller, and no other one; a new key ends none."""
    ring = KeyRing([KEY, OTHER])
    callers = Callers(ring)
    caller, other = callers.with_id("k"), callers.with_id("o")
    assert caller is not None
    assert other is not None
    ring.put(Key("n", fingerprint("fn_n"), ("admin",)))
    assert caller.is_live

    if change == "remove":
        ring.remove(KEY)
    else:
        ring.put(replace(KEY, scopes=("read",)))

    assert (caller.is_live, other.is_live) == (False, True)
    with pytest.raises(NoKey, match="the key was removed"):
        caller.may("invoke", "web")
    after = callers.with_id("k")
    assert after is not caller
    assert (after is None) == (change == "remove")


@pytest.mark.parametrize("openness", list(Openness))
def test_who_needs_no_key_ends_when_fewer_are_let_in(openness: Openness) -> None:
    """A server that is opened ends no caller."""
    ring = KeyRing((), "", Openness.LOCAL if openness is not Openness.LOCAL else Openness.OPEN)
    callers = Callers(ring)
    before = callers.nobody

    ring.decide(openness)

    assert before.is_live is (openness is Openness.OPEN)
    assert callers.nobody.is_live


def test_a_probe_notes_whose_the_keys_are() -> None:
    """Texts that are no keys are nobody's."""
    callers = Callers(KeyRing([KEY]))
    probe = KeyProbe(callers)

    assert [probe("fn_k"), probe("fn_x")] == [True, False]
    assert probe.found == {callers.with_id("k"), None}
