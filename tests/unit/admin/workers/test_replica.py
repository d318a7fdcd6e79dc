"""Tests of a gateway's copy of the server's state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.workers.messages import Estimates, FunctionNow, Functions, Keys, UpstreamKeysNow
from admin.workers.replica import CatalogReplica, apply_function
from registry.catalog import Catalog, Change, Deployed
from registry.exchange import Expected
from registry.model.keys import Key
from registry.openness import Openness
from registry.upstream_keys import UpstreamKey
from tests.support import nouns


def now(catalog: Catalog, name: str = "digits") -> FunctionNow:
    """Return the server's message about a function."""
    return FunctionNow("default", name, list(catalog.revisions(name)))


def deployed(number: int, current: int | None = None) -> Deployed:
    """Return a revision of digits, with the traffic at `current`."""
    return nouns.deployed("digits", number, current)


def took(seconds: float) -> Expected:
    """Return an estimate."""
    return Expected(seconds, seconds, seconds, 3)


def traffic(catalog: Catalog) -> int:
    """Return the number of the revision with the traffic."""
    return catalog.resolve("digits").revision.number


def changes(catalog: Catalog) -> list[Change]:
    """Return a list that collects all further changes of the catalog."""
    heard: list[Change] = []
    catalog.subscribe(heard.append)
    return heard


def test_a_moved_traffic_is_one_change_with_both_ends() -> None:
    """A moved traffic is a single change with the old and the new revision, which held calls
    follow."""
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
    """A removed function is reported as removed once; an unknown one is ignored."""
    mirror = Catalog([deployed(1)])
    heard = changes(mirror)
    for name in ("digits", "digits", "unheard"):
        apply_function(mirror, FunctionNow("default", name, []))

    assert [one.kind for one in heard] == ["remove"]


def test_an_unchanged_function_causes_no_change() -> None:
    """A function that is unchanged causes no change."""
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
    """The replica equals its source after any deploy, move, trim or removal."""
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


KEY, OTHER = Key("k", "ab" * 32, ("invoke",)), Key("o", "cd" * 32, ("read",))


def test_keys_are_let_in_and_out() -> None:
    """Keys are added and removed by their fingerprints; the openness is the server's, also if the
    first key closed the copy."""
    mirror = CatalogReplica()
    mirror.apply(Keys([KEY], [], Openness.OPEN))
    assert (mirror.ring.all(), mirror.ring.openness) == ((KEY,), Openness.OPEN)
    mirror.apply(Keys([], [KEY], Openness.CLOSED))

    assert (mirror.ring.all(), mirror.ring.openness) == ((), Openness.CLOSED)


def test_a_whole_state_removes_first() -> None:
    """A copy of any age becomes equal to the whole state: what was removed meanwhile goes, keys
    before others are let in, and what is the same causes no change."""
    mirror = CatalogReplica()
    mirror.apply(Keys([KEY], [], Openness.LOCAL))
    mirror.apply(UpstreamKeysNow([UpstreamKey("gone", "x"), UpstreamKey("k", "old")], []))
    mirror.apply(Functions([FunctionNow("default", "digits", [deployed(1)])]))
    mirror.apply(Estimates({"default/digits@1": took(1.0)}))
    heard: list[tuple[str, bool]] = []
    mirror.ring.subscribe(lambda key, is_let_in: heard.append((key.id, is_let_in)))
    for _ in range(2):
        mirror.apply(Keys([OTHER], [], Openness.CLOSED, is_whole=True))
    mirror.apply(UpstreamKeysNow([UpstreamKey("k", "new")], [], is_whole=True))
    mirror.apply(Functions([], [("default", "web")]))

    assert heard == [("k", False), ("o", True)]
    assert mirror.ring.all() == (OTHER,)
    assert mirror.upstream_keys.all() == (UpstreamKey("k", "new"),)
    assert mirror.catalog.all() == ()
    assert mirror.expected == {}


@pytest.mark.parametrize("left", [[], [deployed(2)]])
def test_estimates_go_with_their_revision(left: list[Deployed]) -> None:
    """The estimates of a revision are dropped with it."""
    mirror = CatalogReplica()
    mirror.apply(Functions([FunctionNow("default", "digits", [deployed(1, 2), deployed(2)])]))
    mirror.apply(Estimates({"default/digits@1": took(1.0), "default/digits@2": took(2.0)}))
    mirror.apply(Estimates({"default/digits@2": took(3.0)}))
    mirror.apply(Functions([FunctionNow("default", "digits", left)]))

    assert mirror.expected == ({"default/digits@2": took(3.0)} if left else {})
