"""Everything that builds objects from bytes stands in the table of SECURITY.md, with its bound."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support import rules
from tests.support.builders import built, listed
from tests.support.rules import Source

ROOT = Path(__file__).parents[1]
FOLDERS = ("gateway", "admin", "environments", "hosts", "registry")
"""Folders whose code runs in the server's process or in fnctl."""


def test_the_table_has_every_builder() -> None:
    """A new builder needs a row that says what bounds it, before anybody can send it bytes."""
    found = {place for source in rules.read(ROOT, FOLDERS) for place in built(source)}
    there = listed((ROOT / "SECURITY.md").read_text())

    assert sorted(found - there) == [], "add them to the table in SECURITY.md, with their bounds"
    assert sorted(there - found) == [], "the table in SECURITY.md has builders that are gone"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("import json\ndef f(data):\n    return json.loads(data)", {"f"}),
        ("import json as j\nclass A:\n    def f(self, d):\n        return j.loads(d)", {"A.f"}),
        ("from json import loads", {"loads"}),
        ("_decode: Final = msgspec.json.Decoder(Kind).decode", {"_decode"}),
        ("read = Message.FromString", {"read"}),
        ("def f(data):\n    return msgspec.json.decode(data, type=int)", {"f"}),
        ("async def f():\n    def g(d):\n        return decoder.decode(d)", {"f.g"}),
        ("def f(data):\n    return np.frombuffer(data)", {"f"}),
        ("zlib.decompress(data)", {"module"}),
        (
            "def f(data):\n    return data.decode(), data.decode('ascii'), data.decode(errors='x')",
            set(),
        ),
        ("class Loads:\n    def loads(self):\n        return self.pools.loads()", set()),
    ],
)
def test_builders_are_found_where_they_are(text: str, places: set[str]) -> None:
    """A builder counts for the function around it, also where it is only named; text does not."""
    assert built(Source("a/b.py", dedent(text))) == {f"a/b.py:{place}" for place in places}


def test_rows_may_have_several_builders() -> None:
    """A row names a file and its functions, separated by commas."""
    assert listed("| `a/b.py: f, C.g` and `c.py: h` | `64 KiB` |") == {
        "a/b.py:f",
        "a/b.py:C.g",
        "c.py:h",
    }
