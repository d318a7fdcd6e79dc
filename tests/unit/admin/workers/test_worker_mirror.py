"""Tests of what a worker knows of the supervisor's catalog and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.workers.messages import Estimates, FunctionNow, Functions, KeyNow
from admin.workers.worker import CatalogReplica, apply_function
from registry.catalog import Catalog, Change, Deployed
from registry.exchange import Expected
from registry.model import Key
from tests.support import nouns


def now(catalog: Catalog, name: str = "digits") -> FunctionNow:
    """What the supervisor says of a function."""
    return FunctionNow("default", name, list(catalog.revisions(name)))


def deployed(number: int, current: int | None = None) -> Deployed:
    """A revision of digits, with the traffic at `current`."""
    return nouns.deployed("digits", number, current)


def took(seconds: float) -> Expected:
    """An estimate."""
    return Expected(seconds, seconds, seconds, 3)


def traffic(catalog: Catalog) -> int:
    """The number of the revision with the traffic, of a function that is there."""
    return catalog.resolve("digits").revision.number


def changes(catalog: Catalog) -> list[Change]:
    """What subscribers hear from now on."""
    heard: list[Change] = []
    catalog.subscribe(heard.append)
    return heard


def test_a_moved_traffic_is_one_change_with_both_ends() -> None:
    """Who waits follows it: the first change says from where to where, no other moves it."""
    source, mirror = Catalog([deployed(1)]), Catalog([deployed(1)])
    heard = changes(mirror)
    source.put(deployed(2))
    apply_function(mirror, now(source))

    moved = [
        (one.before.revision.number, one.after.revision.number)
        for one in heard
        if one.before and one.after and one.before.revision.key != one.after.revision.key
    ]
    assert moved == [(1, 2)]
    assert all(one.before and one.after for one in heard)
    assert mirror.resolve("digits@1").function.revision == 2


def test_a_removed_function_is_told_as_removed() -> None:
    """Its counters go with it; one never heard of is no error."""
    mirror = Catalog([deployed(1)])
    heard = changes(mirror)
    for name in ("digits", "digits", "unheard"):
        apply_function(mirror, FunctionNow("default", name, []))

    assert [one.kind for one in heard] == ["remove"]


def test_what_is_as_it_was_changes_nothing() -> None:
    """Being told again is no news."""
    source, mirror = Catalog([deployed(1)]), Catalog([deployed(1)])
    heard = changes(mirror)
    apply_function(mirror, now(source))

    assert heard == []


ACTIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.just("drop"), st.integers(1, 4), st.just(0)),
    st.tuples(st.just("remove"), st.just(0), st.just(0)),
)


@given(st.lists(ACTIONS, max_size=20))
def test_a_mirror_is_as_its_source_after_every_change(actions: list[tuple[str, int, int]]) -> None:
    """Whatever is deployed, moved, trimmed or removed."""
    source, mirror = Catalog(), Catalog()
    told: list[Change] = []

    def tell(change: Change) -> None:
        apply_function(
            mirror, FunctionNow("default", change.name, list(source.revisions(change.name)))
        )
        told.append(change)

    source.subscribe(tell)
    for kind, number, current in actions:
        have = {one.revision.number for one in source.revisions("digits")}
        if kind == "put" and current in have | {number}:
            source.put(deployed(number, current))
        elif kind == "remove" and have:
            source.remove("digits")
        elif kind == "drop" and number in have and number != traffic(source):
            source.remove_revisions("digits", [number])
        assert mirror.revisions("digits") == source.revisions("digits")
        assert mirror.find("digits") == source.find("digits")


def test_keys_are_let_in_and_out() -> None:
    """By their fingerprints only."""
    mirror = CatalogReplica()
    key = Key("k", "ab" * 32, ("invoke",))
    mirror.apply(KeyNow(key, True))
    assert mirror.ring.all() == (key,)
    mirror.apply(KeyNow(key, False))

    assert len(mirror.ring) == 0


@pytest.mark.parametrize("left", [[], [deployed(2)]])
def test_estimates_go_with_their_revision(left: list[Deployed]) -> None:
    """What a removed revision once took is of no use, and would be kept for ever."""
    mirror = CatalogReplica()
    mirror.apply(Functions([FunctionNow("default", "digits", [deployed(1, 2), deployed(2)])]))
    mirror.apply(Estimates({"default/digits@1": took(1.0), "default/digits@2": took(2.0)}))
    mirror.apply(Estimates({"default/digits@2": took(3.0)}))
    mirror.apply(Functions([FunctionNow("default", "digits", left)]))

    assert mirror.expected == ({"default/digits@2": took(3.0)} if left else {})
