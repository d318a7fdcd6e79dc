"""Tests of what heads are allowed, and of how long that is remembered."""

from __future__ import annotations

import pytest

from gateway.access import Access
from gateway.http.admission import KEPT_MAX, Admissions, Head
from registry.catalog import Catalog
from registry.errors import BadRequest, FnError, NoKey, UnknownFunction, WrongScope
from registry.model import Key, Limits
from registry.store.keys import KeyRing, fingerprint
from tests.support import nouns
from tests.unit.gateway.http.test_admission_head import head

KEYED = head(authorization="Bearer fn_k")
KEY = Key("k", fingerprint("fn_k"), ("invoke",))


class World:
    """A catalog with digits, a ring with one key, and what they admit."""

    def __init__(self) -> None:
        self.catalog = Catalog([nouns.deployed()])
        self.ring = KeyRing([KEY])
        access = Access("127.0.0.1", (), self.ring, "fn_t")
        self.admissions = Admissions(access, self.catalog, wait_max_s=600.0, held_bytes_max=2**30)

    def admit(self, asked: Head = KEYED) -> None:
        """As a reader of HTTP does when it does not know the head. Raises FnError."""
        self.admissions.admit(asked, asked, self.admissions.resolve(asked))


def test_an_admission_says_how_its_calls_are_run() -> None:
    """By the function's limits and the head's wishes."""
    world = World()
    world.catalog.put_function(
        nouns.function(limits=Limits(timeout_s=2.0, wait_s=3.0, queue=4, body_mib=5))
    )
    plain, wishing = KEYED, KEYED._replace(ref="digits@1", prefer="wait=7", priority="u=0")
    for asked in (plain, wishing):
        world.admit(asked)

    found, other = world.admissions.find(plain), world.admissions.find(wishing)
    assert found is not None
    assert other is not None
    assert (found.timeout_s, found.wait_s, found.queue_max) == (2.0, 3.0, 4)
    assert (found.body_max, found.is_pinned, found.applied) == (5 * 2**20, False, "")
    assert (other.wait_s, other.applied, other.is_pinned) == (7.0, "wait=7", True)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (head(), NoKey),
        (head(authorization="Bearer fn_x"), NoKey),
        (KEYED._replace(ref="nobody"), UnknownFunction),
        (KEYED._replace(json_length="x"), BadRequest),
    ],
)
def test_what_is_refused_is_not_remembered(asked: Head, error: type[FnError]) -> None:
    """The next time it is checked again."""
    world = World()
    with pytest.raises(error):
        world.admit(asked)
    assert world.admissions.find(asked) is None


def test_every_change_of_keys_counts_at_once() -> None:
    """A key that goes, and one that comes in its place with other rights."""
    world = World()
    world.admit()
    assert world.admissions.find(KEYED) is not None

    world.ring.put(Key("k", KEY.sha256, ("read",)))
    assert world.admissions.find(KEYED) is None
    with pytest.raises(WrongScope):
        world.admit()

    world.ring.put(KEY)
    world.admit()
    world.ring.remove(KEY)
    world.ring.put(Key("o", "0" * 64, ("invoke",)))
    assert world.admissions.find(KEYED) is None


def test_every_change_of_the_catalog_counts_at_once() -> None:
    """New settings, a new revision, a function that goes."""
    world = World()
    for change in (
        lambda: world.catalog.put_function(nouns.function(limits=Limits(queue=1))),
        lambda: world.catalog.put(nouns.deployed(number=2)),
        lambda: world.catalog.remove("digits"),
    ):
        world.admit()
        change()
        assert world.admissions.find(KEYED) is None


def test_what_is_remembered_is_bounded() -> None:
    """At the limit all are forgotten."""
    world = World()
    for number in range(KEPT_MAX + 1):
        world.admit(KEYED._replace(accept=str(number)))
    kept = sum(
        world.admissions.find(KEYED._replace(accept=str(n))) is not None for n in range(KEPT_MAX)
    )
    assert kept == 0
    assert world.admissions.find(KEYED._replace(accept=str(KEPT_MAX))) is not None


def test_what_is_long_is_not_remembered() -> None:
    """Else callers could fill the memory with their headers."""
    world = World()
    asked = KEYED._replace(accept="x" * 2000)
    world.admit(asked)
    assert world.admissions.find(asked) is None
