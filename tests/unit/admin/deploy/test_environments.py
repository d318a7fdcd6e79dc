"""Tests of what operators see of environments, and of what they may remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.deploy.environments import Naming, check_removal, match, short, views
from environments.folders import Environment
from environments.lock import Lock, LockedPackage
from registry.errors import Conflict, Unknown

A, B = "a" * 64, "ab" + "c" * 62
COPY = f"{A}.greet"
LOCK = Lock("0" * 64, "3.11", "linux-x86_64", "glibc-2.36", (LockedPackage("x", "1", ()),))


def environment(name: str) -> Environment:
    """Return an environment that is there."""
    return Environment(name, Path(name), LOCK, "3.11.7", 5, 2, 3, 1, {}, {}, 0.0, 0.0)


def test_what_is_there_being_built_or_missing() -> None:
    """Each once, with what names it; one that nothing names, too."""
    named = {A: Naming("l1", ["f@1"], ["f@1"]), B: Naming("l2", ["g@1"]), "d" * 64: Naming("l3")}
    found = views([environment(A), environment(COPY)], {B: LOCK, "d" * 64: LOCK}, named, B)

    assert [(one.name, one.state) for one in found] == [
        (A, "ready"),
        (COPY, "ready"),
        (B, "building"),
        ("d" * 64, "missing"),
    ]
    assert [one.naming for one in found] == [named[A], Naming(), named[B], named["d" * 64]]
    assert [one.found is None for one in found] == [False, False, True, True]


@pytest.mark.parametrize(
    ("text", "name"),
    [(A, A), (COPY, COPY), ("aaaa.greet", COPY), ("abcc", B), (short(COPY), COPY), (short(B), B)],
)
def test_the_beginning_of_a_name_will_do(text: str, name: str) -> None:
    """With the function of a copy behind it."""
    assert match([A, B, COPY], text) == name


@pytest.mark.parametrize("text", ["", "a", "abc", "abcd", "aaaa.other", "../a", f"{B}0"])
def test_a_name_that_means_nothing_is_unknown(text: str) -> None:
    """Also one that is too short."""
    with pytest.raises(Unknown, match="fnctl env ls has their names"):
        match([A, B, COPY], text)


def test_a_name_that_means_several_is_refused() -> None:
    """They are named, as they would be shown."""
    with pytest.raises(Conflict, match=r"several environments: aaaaaaaaaaaa, aaaaaaaaaaaa\.greet"):
        match([A, B, COPY], "aaaa")


def test_what_something_live_needs_is_not_removed() -> None:
    """The text has who, and the command that frees it; old revisions keep nothing."""
    check_removal(A, Naming("l", ["f@1"], []))
    with pytest.raises(Conflict) as caught:
        check_removal(A, Naming("l", ["f@1", "f@2", "g@1"], ["f@2", "g@1"]))
    assert caught.value.message == (
        "environment aaaaaaaaaaaa is needed by f@2, g@1; fnctl rm f frees it, or a deploy of f with"
        " other packages"
    )
    assert caught.value.detail == {"functions": ["f", "g"]}
