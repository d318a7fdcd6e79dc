"""What watchers were told last."""

from __future__ import annotations

from admin.events.log import Picture, Thing

WARM = Thing("f", "f", b'{"state":"warm"}')


def test_only_what_looks_different_is_news() -> None:
    """The first look is, the same once more is not, a change is."""
    picture = Picture()

    assert picture.differs("functions", WARM)
    assert not picture.differs("functions", WARM)
    assert picture.differs("functions", WARM._replace(data=b"{}"))


def test_kinds_are_apart() -> None:
    """A function and a replica may have the same id."""
    picture = Picture()
    picture.differs("functions", WARM)

    assert picture.differs("replicas", WARM)
    assert picture.all("functions") == picture.all("replicas") == [WARM.data]


def test_what_is_gone_was_told_of() -> None:
    """Of what nobody was told, nobody need be told that it is gone; and only once of the rest."""
    picture = Picture()
    picture.differs("functions", WARM)

    assert picture.gone("functions", ["g", "f"]) == [WARM]
    assert picture.gone("functions", ["f"]) == []
    assert picture.differs("functions", WARM)


def test_what_is_not_listed_any_more_is_gone() -> None:
    """Replicas and devices are read as whole lists."""
    picture = Picture()
    for id in ("a", "b"):
        picture.differs("replicas", Thing(id, "", b""))

    assert [one.id for one in picture.gone_but("replicas", {"b"})] == ["a"]


def test_a_cleared_picture_is_new_again() -> None:
    """Nothing was told."""
    picture = Picture()
    picture.differs("functions", WARM)
    picture.clear()

    assert picture.all("functions") == []


def test_one_function_can_be_looked_at_alone() -> None:
    """With what concerns everybody."""
    picture = Picture()
    for about in ("f", "g", ""):
        picture.differs("replicas", Thing(f"of {about}", about, about.encode()))

    assert picture.all("replicas", "g") == [b"g", b""]
