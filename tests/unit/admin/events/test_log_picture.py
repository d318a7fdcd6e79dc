"""What watchers were told last."""

from __future__ import annotations

from admin.events.log import Item, SentState

WARM = Item("f", "f", b'{"state":"warm"}')


def test_only_what_looks_different_is_news() -> None:
    """The first look is, the same once more is not, a change is."""
    picture = SentState()

    assert picture.update("functions", WARM)
    assert not picture.update("functions", WARM)
    assert picture.update("functions", WARM._replace(data=b"{}"))


def test_kinds_are_apart() -> None:
    """A function and a replica may have the same id."""
    picture = SentState()
    picture.update("functions", WARM)

    assert picture.update("replicas", WARM)
    assert picture.all("functions") == picture.all("replicas") == [WARM.data]


def test_what_is_gone_was_told_of() -> None:
    """Of what nobody was told, nobody need be told that it is gone; and only once of the rest."""
    picture = SentState()
    picture.update("functions", WARM)

    assert picture.remove("functions", ["g", "f"]) == [WARM]
    assert picture.remove("functions", ["f"]) == []
    assert picture.update("functions", WARM)


def test_what_is_not_listed_any_more_is_gone() -> None:
    """Replicas and devices are read as whole lists."""
    picture = SentState()
    for id in ("a", "b"):
        picture.update("replicas", Item(id, "", b""))

    assert [one.id for one in picture.remove_except("replicas", {"b"})] == ["a"]


def test_a_cleared_picture_is_new_again() -> None:
    """Nothing was told."""
    picture = SentState()
    picture.update("functions", WARM)
    picture.clear()

    assert picture.all("functions") == []


def test_one_function_can_be_looked_at_alone() -> None:
    """With what concerns everybody."""
    picture = SentState()
    for about in ("f", "g", ""):
        picture.update("replicas", Item(f"of {about}", about, about.encode()))

    assert picture.all("replicas", "g") == [b"g", b""]
