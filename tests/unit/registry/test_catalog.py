"""The catalog in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from registry import catalog as catalogs
from registry.catalog import NEIGHBOURS, Catalog, Change, Deployed
from registry.errors import UnknownFunction, UnknownRevision
from registry.model import Scaling
from tests.support.nouns import deployed, function, revision


def test_names_and_numbers_resolve() -> None:
    """A name means its current revision, a numbered reference that very one."""
    catalog = Catalog([deployed("digits", 1, current=2), deployed("digits", 2)])

    assert catalog.resolve("digits").revision.number == 2
    assert catalog.resolve("digits@1").revision.number == 1
    assert catalog.resolve("digits@1").function.revision == 2
    assert catalog.resolve("digits@2") == catalog.find("digits")
    assert catalog.find("digits@3") is None


def test_an_unknown_name_hints_at_others() -> None:
    """The error names what looks like what was asked, in text and as data."""
    catalog = Catalog([deployed("digits"), deployed("whisper")])

    with pytest.raises(UnknownFunction, match="did you mean digits") as caught:
        catalog.resolve("digit")
    assert caught.value.detail == {"nearest": ["digits"]}

    with pytest.raises(UnknownFunction, match=r"^no function 'qqq'$"):
        catalog.resolve("qqq")


@pytest.mark.parametrize("ref", ["digits@3", "digits@", "digits@x", "digits@01"])
def test_an_unknown_revision_lists_the_known(ref: str) -> None:
    """The error of a number there is not lists those there are."""
    with pytest.raises(UnknownRevision) as caught:
        Catalog([deployed("digits", 1), deployed("digits", 2)]).resolve(ref)

    assert caught.value.detail == {"revisions": [1, 2]}


def test_namespaces_are_apart() -> None:
    """A name in one namespace is unknown in another, and no hint there."""
    ours = deployed("digits")
    theirs = Deployed(
        replace(ours.function, namespace="team"), replace(ours.revision, namespace="team")
    )
    catalog = Catalog([theirs])

    assert theirs == catalog.resolve("digits", "team")
    with pytest.raises(UnknownFunction) as caught:
        catalog.resolve("digits")
    assert caught.value.detail == {"nearest": []}


def test_all_lists_current_revisions_in_order() -> None:
    """Each function is listed once, with its current revision, by name."""
    catalog = Catalog([deployed("b"), deployed("a", 1, current=2), deployed("a", 2)])

    assert [one.revision.ref for one in catalog.all()] == ["a@2", "b@1"]
    assert [one.revision.ref for one in catalog.revisions("a")] == ["a@1", "a@2"]
    assert catalog.revisions("c") == ()


def test_a_walk_begins_anywhere() -> None:
    """From a name on, there or not, in order, within its namespace."""
    theirs = deployed("c")
    catalog = Catalog([deployed(name) for name in ("d", "b", "a", "c")])
    catalog.put(
        Deployed(
            replace(theirs.function, namespace="other"),
            replace(theirs.revision, namespace="other"),
        )
    )
    catalog.put(deployed("e", 1, current=2))  # its name means nothing yet

    def walked(start: str) -> list[str]:
        return [one.function.name for one in catalog.walk(start)]

    assert walked("") == ["a", "b", "c", "d"]
    assert walked("b") == walked("aa") == ["b", "c", "d"]
    assert walked("z") == []
    catalog.remove("c")
    assert walked("b") == ["b", "d"]
    assert [one.function.namespace for one in catalog.walk("", "other")] == ["other"]


def test_every_revision_is_there_once() -> None:
    """Current or not."""
    catalog = Catalog([deployed("b"), deployed("a", 1, current=2), deployed("a", 2)])

    assert sorted(one.revision.ref for one in catalog.every()) == ["a@1", "a@2", "b@1"]


def test_a_change_leaves_all_others_alone() -> None:
    """What is not of the function that changes stays the same object."""
    catalog = Catalog([deployed("a"), deployed("b"), deployed("c")])
    before = {one.revision.ref: one for one in catalog.every()}

    catalog.put_function(function("b", labels={"x": "y"}))

    changed = [one.revision.ref for one in catalog.every() if one is not before[one.revision.ref]]
    assert changed == ["b@1"]


def test_a_hint_among_many_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only names near by the alphabet are compared: a wrong name must not stop the server."""
    catalog = Catalog(deployed(f"f{number:05d}") for number in range(3 * NEIGHBOURS))
    compared: list[list[str]] = []
    original = catalogs.nearest
    monkeypatch.setattr(
        catalogs, "nearest", lambda name, names: compared.append(names) or original(name, names)
    )

    with pytest.raises(UnknownFunction) as caught:
        catalog.resolve("f00150x")

    assert caught.value.detail["nearest"][0] == "f00150"
    assert len(compared[0]) == 2 * NEIGHBOURS


def test_a_name_waits_for_its_revision() -> None:
    """A name whose current revision is not here means nothing, rather than another revision."""
    catalog = Catalog([deployed("digits", 1, current=2)])

    assert catalog.all() == ()
    assert catalog.resolve("digits@1").revision.number == 1
    with pytest.raises(UnknownRevision):
        catalog.resolve("digits")


def test_traffic_moves_with_the_function() -> None:
    """Putting a function changes its settings in every revision, and what its name means."""
    catalog = Catalog([deployed("digits", 1), deployed("digits", 2, current=1)])

    catalog.put_function(function("digits", 2, scaling=Scaling(max=4)))

    assert catalog.resolve("digits").revision.number == 2
    assert catalog.resolve("digits@1").function.scaling.max == 4
    with pytest.raises(UnknownRevision):
        catalog.put_function(function("digits", 3))
    with pytest.raises(UnknownFunction):
        catalog.put_function(function("other", 1))


def test_what_does_not_belong_together_is_refused() -> None:
    """A revision under another function's name is a mistake of the caller."""
    with pytest.raises(ValueError, match="default/a@1 is no revision of b"):
        Catalog().put(Deployed(function("b"), revision("a")))


def test_removed_is_unknown() -> None:
    """A removed function is unknown with all its revisions."""
    catalog = Catalog([deployed("digits", 1), deployed("digits", 2)])

    catalog.remove("digits")

    assert () == catalog.all() == catalog.revisions("digits")
    for ref in ("digits", "digits@1", "digits@2"):
        with pytest.raises(UnknownFunction):
            catalog.resolve(ref)
    with pytest.raises(UnknownFunction):
        catalog.remove("digits")


def test_old_revisions_can_be_forgotten() -> None:
    """Revisions go by number, but never the current one."""
    catalog = Catalog([deployed("digits", n, current=3) for n in (1, 2, 3)])

    catalog.remove_revisions("digits", (1,))

    assert [one.revision.number for one in catalog.revisions("digits")] == [2, 3]
    with pytest.raises(ValueError, match="digits@3 is the current revision"):
        catalog.remove_revisions("digits", (3,))
    with pytest.raises(UnknownRevision):
        catalog.remove_revisions("digits", (1,))


def test_subscribers_hear_of_each_change() -> None:
    """A change says what the name meant before and means after it, and which numbers exist."""
    catalog = Catalog()
    heard: list[Change] = []
    unsubscribe = catalog.subscribe(heard.append)
    first, second = deployed("digits", 1), deployed("digits", 2)

    catalog.put(first)
    catalog.put(second)
    catalog.remove_revisions("digits", (1,))
    catalog.remove("digits")
    unsubscribe()
    unsubscribe()
    catalog.put(first)

    key = ("default", "digits")
    assert [
        Change("put", *key, None, first, (1,)),
        Change("put", *key, first, second, (1, 2)),
        Change("put", *key, second, second, (2,)),
        Change("remove", *key, second, None),
    ] == heard


def test_a_subscriber_sees_the_catalog_after_the_change() -> None:
    """What a callback looks up is what the change says."""
    catalog = Catalog()
    seen = []
    catalog.subscribe(lambda change: seen.append(catalog.find(change.name) == change.after))

    catalog.put(deployed("digits"))
    catalog.remove("digits")

    assert seen == [True, True]


def test_a_failing_subscriber_does_not_stop_others() -> None:
    """One that raises is logged; the change and the other subscribers are not touched."""
    catalog = Catalog()
    heard: list[Change] = []

    def fail(change: Change) -> None:
        raise RuntimeError(change.name)

    catalog.subscribe(fail)
    catalog.subscribe(heard.append)
    with capture_logs() as logs:
        catalog.put(deployed("digits"))

    assert [line["name"] for line in logs] == ["digits"]
    assert len(heard) == 1
    assert catalog.resolve("digits").revision.ref == "digits@1"


def test_a_subscriber_may_leave_during_a_change() -> None:
    """One that unsubscribes while it is called does not make another miss the change."""
    catalog = Catalog()
    heard: list[Change] = []
    unsubscribe = catalog.subscribe(lambda _: unsubscribe())
    catalog.subscribe(heard.append)

    catalog.put(deployed("digits"))

    assert len(heard) == 1


def test_subscribers_are_bounded() -> None:
    """A leak of subscribers is noticed instead of growing."""
    catalog = Catalog()
    for _ in range(1000):
        catalog.subscribe(lambda _: None)

    with pytest.raises(RuntimeError, match="1000 subscribers"):
        catalog.subscribe(lambda _: None)
