"""The figures of the structure count what they say."""

from __future__ import annotations

from textwrap import dedent

from tests.structure import figures, table
from tests.support.rules import Source


def sources(**texts: str) -> list[Source]:
    """Files of a folder `gateway`; `a_b` is `a/b.py`."""
    return [
        Source(f"gateway/{name.replace('_', '/')}.py", dedent(text)) for name, text in texts.items()
    ]


def test_imports_make_importers_and_circles() -> None:
    """A circle counts when it is run; with types, when only a type checker would go round."""
    found = figures(
        sources(
            a="from gateway import b\nfrom gateway.x.a import A",
            b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gateway.a import A",
            c="def f():\n    from gateway import a",
            x_a="import gateway.c",
        ),
        [],
    )

    assert found["modules with one importer"] == [
        "gateway.b <- gateway.a",
        "gateway.c <- gateway.x.a",
        "gateway.x.a <- gateway.a",
    ]
    assert found["circles of modules"] == []
    assert found["circles of folders"] == ["gateway <-> gateway.x"]
    assert found["circles of siblings"] == []
    assert found["circles of modules, with types"] == ["gateway.a <-> gateway.b"]
    assert found["modules that share a file name"] == ["gateway/a.py", "gateway/x/a.py"]
    assert (found["modules"], found["folders"]) == (4, 2)


def test_callback_slots_are_found_where_they_are_set() -> None:
    """A slot is an attribute for one callable with a default; a constructor's is none."""
    found = figures(
        sources(
            a="""
            Heard = Callable[[int], None]

            class A:
                late: Heard | None = None
                given: Heard

                def __init__(self) -> None:
                    self.on_end = lambda: None
                    self._feed: Heard = print
                    self.state = 0

                def watch(self, feed: Heard) -> None:
                    self._feed = feed
            """,
            b="""
            def wire(a, it):
                a.late = it
                it.part.on_end = a.close
                a.given = it
                a.state = it
                a.late = None
            """,
        ),
        [],
    )

    assert found["callback slots set from outside"] == [
        "gateway/b.py:3 a.late = it",
        "gateway/b.py:4 it.part.on_end = a.close",
    ]
    assert found["callback slots set by a method of their own"] == [
        "gateway/a.py:14 self._feed = feed"
    ]


def test_lengths_are_spread() -> None:
    """Lengths have a median, a 90th percentile and a maximum; what is too long is listed."""
    texts = {f"f{number}": "x = 1\n" * number for number in range(1, 10)}
    found = figures(sources(**texts, g="def f():\n" + "    x = 1\n" * 60 + "x = 1\n" * 440), [])

    assert found["lines per file"] == {"median": 5.5, "p90": 9, "max": 501}
    assert found["files over 500 lines"] == ["gateway/g.py (501)"]
    assert found["functions over 60 lines"] == ["gateway/g.py:1 f (61)"]
    assert "    gateway/g.py (501)\n" in table(found)
