"""Tests of the in-memory catalog."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from registry.catalog import Catalog, Change, Deployed
from registry.errors import UnknownFunction, UnknownRevision
from registry.model.functions import Function, Scaling
from registry.model.servers import ModelApi, ServerSettings
from tests.support.nouns import deployed, function, revision


def test_names_and_numbers_resolve() -> None:
    """A name resolves to its current revision, a numbered reference to that revision."""
    catalog = Catalog([deployed("digits", 1, current=2), deployed("digits", 2)])

    assert catalog.resolve("digits").revision.number == 2
    assert catalog.resolve("digits@1").revision.number == 1
    assert catalog.resolve("digits@1").function.revision == 2
    assert catalog.resolve("digits@2") == catalog.find("digits")
    assert catalog.find("digits@3") is None


def test_an_unknown_name_hints_at_others() -> None:
    """The error suggests similar names, in text and as data."""
    catalog = Catalog([deployed("digits"), deployed("whisper")])

    with pytest.raises(UnknownFunction, match="did you mean 'digits'") as caught:
        catalog.resolve("digit")
    assert caught.value.detail == {"nearest": ["digits"]}

    with pytest.raises(UnknownFunction, match=r"^no function 'qqq'$"):
        catalog.resolve("qqq")


@pytest.mark.parametrize("ref", ["digits@3", "digits@", "digits@x", "digits@01"])
def test_an_unknown_revision_lists_the_known(ref: str) -> None:
    """The error lists the existing revision numbers."""
    with pytest.raises(UnknownRevision) as caught:
        Catalog([deployed("digits", 1), deployed("digits", 2)]).resolve(ref)

    assert caught.value.detail == {"revisions": [1, 2]}


def test_namespaces_are_separate() -> None:
    """A name of one namespace is unknown in another and is not suggested there."""
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
    """Each function is listed once, with its current revision, sorted by name."""
    catalog = Catalog([deployed("b"), deployed("a", 1, current=2), deployed("a", 2)])

    assert [one.revision.ref for one in catalog.all()] == ["a@2", "b@1"]
    assert [one.revision.ref for one in catalog.revisions("a")] == ["a@1", "a@2"]
    assert catalog.revisions("c") == ()


def test_a_walk_begins_anywhere() -> None:
    """A walk starts at a name, existing or not, and lists names in order within one namespace."""
    theirs = deployed("c")
    catalog = Catalog([deployed(name) for name in ("d", "b", "a", "c")])
    catalog.put(
        Deployed(
            replace(theirs.function, namespace="other"),
            replace(theirs.revision, namespace="other"),
        )
    )
    catalog.put(deployed("e", 1, current=2))  # its current revision does not exist yet

    def walked(start: str) -> list[str]:
        return [one.function.name for one in catalog.walk(start)]

    assert walked("") == ["a", "b", "c", "d"]
    assert walked("b") == walked("aa") == ["b", "c", "d"]
    assert walked("z") == []
    catalog.remove("c")
    assert walked("b") == ["b", "d"]
    assert [one.function.namespace for one in catalog.walk("", "other")] == ["other"]


def test_every_revision_is_listed_once() -> None:
    """`every` lists each revision once, current or not."""
    catalog = Catalog([deployed("b"), deployed("a", 1, current=2), deployed("a", 2)])

    assert sorted(one.revision.ref for one in catalog.every()) == ["a@1", "a@2", "b@1"]


def test_a_change_leaves_other_functions_untouched() -> None:
    """The entries of other functions stay the same objects."""
    catalog = Catalog([deployed("a"), deployed("b"), deployed("c")])
    before = {one.revision.ref: one for one in catalog.every()}

    catalog.put_function(function("b", labels={"x": "y"}))

    changed = [one.revision.ref for one in catalog.every() if one is not before[one.revision.ref]]
    assert changed == ["b@1"]


def test_names_that_are_gone_are_proposed_no_more() -> None:
    """Names, aliases and names of the Open Inference Protocol follow each change; a function is
    proposed by its own name only, and only to who may see it."""
    first = Function("digits", 1, aliases=("numbers",), oip_name="Net.v2")
    catalog = Catalog([Deployed(first, deployed("digits").revision), deployed("digest")])

    def found(*words: str) -> list[list[str]]:
        return [catalog.similar(word, lambda _: True) for word in words]

    assert found("digit", "number", "Net.v3") == [["digits", "digest"], ["numbers"], ["Net.v2"]]
    with pytest.raises(UnknownFunction) as caught:
        catalog.resolve("number", may_see=lambda _: True)
    assert caught.value.detail == {"nearest": []}
    with pytest.raises(UnknownFunction) as caught:
        catalog.resolve("digit@1", may_see=lambda name: name != "digits")
    assert caught.value.detail == {"nearest": ["digest"]}

    catalog.put_function(replace(first, aliases=("figures",), oip_name=""))
    assert found("number", "figure", "Net.v3") == [[], ["figures"], []]
    catalog.remove("digits")
    assert found("digit", "figure") == [["digest"], []]


def test_a_name_without_its_current_revision_is_unknown() -> None:
    """A name whose current revision is missing resolves to no other revision."""
    catalog = Catalog([deployed("digits", 1, current=2)])

    assert catalog.all() == ()
    assert catalog.resolve("digits@1").revision.number == 1
    with pytest.raises(UnknownRevision):
        catalog.resolve("digits")


def test_traffic_moves_with_the_function() -> None:
    """Putting a function changes the settings of all its revisions and which one is current."""
    catalog = Catalog([deployed("digits", 1), deployed("digits", 2, current=1)])

    catalog.put_function(function("digits", 2, scaling=Scaling(max=4)))

    assert catalog.resolve("digits").revision.number == 2
    assert catalog.resolve("digits@1").function.scaling.max == 4
    with pytest.raises(UnknownRevision):
        catalog.put_function(function("digits", 3))
    with pytest.raises(UnknownFunction):
        catalog.put_function(function("other", 1))


def test_a_revision_of_another_function_is_refused() -> None:
    """Putting a revision under another function's name raises ValueError."""
    with pytest.raises(ValueError, match="default/a@1 is no revision of b"):
        Catalog().put(Deployed(function("b"), revision("a")))


def test_a_removed_function_is_unknown() -> None:
    """All revisions of a removed function are unknown."""
    catalog = Catalog([deployed("digits", 1), deployed("digits", 2)])

    catalog.remove("digits")

    assert () == catalog.all() == catalog.revisions("digits")
    for ref in ("digits", "digits@1", "digits@2"):
        with pytest.raises(UnknownFunction):
            catalog.resolve(ref)
    with pytest.raises(UnknownFunction):
        catalog.remove("digits")


def test_old_revisions_can_be_removed() -> None:
    """Revisions are removed by number, except the current one."""
    catalog = Catalog([deployed("digits", n, current=3) for n in (1, 2, 3)])

    catalog.remove_revisions("digits", (1,))

    assert [one.revision.number for one in catalog.revisions("digits")] == [2, 3]
    with pytest.raises(ValueError, match="digits@3 is the current revision"):
        catalog.remove_revisions("digits", (3,))
    with pytest.raises(UnknownRevision):
        catalog.remove_revisions("digits", (1,))


def test_subscribers_get_each_change() -> None:
    """A change has the current revision before and after it, and the existing numbers."""
    catalog = Catalog()
    changes: list[Change] = []
    unsubscribe = catalog.subscribe(changes.append)
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
    ] == changes


def test_a_subscriber_sees_the_catalog_after_the_change() -> None:
    """Lookups from a callback see the state after the change."""
    catalog = Catalog()
    seen = []
    catalog.subscribe(lambda change: seen.append(catalog.find(change.name) == change.after))

    catalog.put(deployed("digits"))
    catalog.remove("digits")

    assert seen == [True, True]


def test_a_failing_subscriber_does_not_stop_others() -> None:
    """A subscriber's exception is logged; the change and other subscribers are not affected."""
    catalog = Catalog()
    changes: list[Change] = []

    def fail(change: Change) -> None:
        raise RuntimeError(change.name)

    catalog.subscribe(fail)
    catalog.subscribe(changes.append)
    with capture_logs() as logs:
        catalog.put(deployed("digits"))

    assert [line["name"] for line in logs] == ["digits"]
    assert len(changes) == 1
    assert catalog.resolve("digits").revision.ref == "digits@1"


def test_a_subscriber_may_leave_during_a_change() -> None:
    """A subscriber that unsubscribes while it is called does not hide the change from another."""
    catalog = Catalog()
    changes: list[Change] = []
    unsubscribe = catalog.subscribe(lambda _: unsubscribe())
    catalog.subscribe(changes.append)

    catalog.put(deployed("digits"))

    assert len(changes) == 1


def test_subscribers_are_bounded() -> None:
    """A leak of subscribers raises an error at the limit."""
    catalog = Catalog()
    for _ in range(1000):
        catalog.subscribe(lambda _: None)

    with pytest.raises(RuntimeError, match="1000 subscribers"):
        catalog.subscribe(lambda _: None)


def test_models_are_functions_with_an_api() -> None:
    """A model is named by its function, by one of its revisions, or by an alias."""
    server = replace(deployed("qwen").revision, server=ServerSettings(("a",), api=ModelApi()))
    owner = replace(function("qwen"), aliases=("org/qwen:8b", "q"))
    catalog = Catalog([deployed("digits"), Deployed(owner, server)])
    for model in ("qwen", "qwen@1", "org/qwen:8b", "q"):
        assert catalog.find_model(model) == Deployed(owner, server)
    for model in ("digits", "qwen@2", "org/qwen", "q@1", ""):
        assert catalog.find_model(model) is None

    catalog.put_function(replace(owner, aliases=("q", "new")))
    assert catalog.find_model("org/qwen:8b") is None
    assert catalog.find_model("new") is not None
    catalog.remove("qwen")
    assert catalog.find_model("q") is None
