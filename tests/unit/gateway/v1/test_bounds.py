"""Counts of levels, objects and arrays, and members of a JSON body."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from gateway.v1.bounds import BRACKETS_MAX, DEPTH, MEMBERS_MAX, check_structure
from registry.errors import BadRequest
from tests.support.scans import run

LEVELS = f"expected at most {DEPTH} levels of objects and arrays, got more"
MEMBERS = f"expected at most {MEMBERS_MAX} members"
PART = 128 * 1024
TEXTS = ('"', "\\", '\\"', "[{" * 700, "}]" * 700, '":[{', ",", "é", "\\\\" * 3 + '"', "")


def refusal(body: bytes) -> str:
    """Return the message of the refusal of a body, "" if it passes."""
    try:
        run(check_structure(body))
    except BadRequest as error:
        return error.message.removeprefix("the body: ")
    return ""


def nested(levels: int, random: Random, inner: Any = None) -> Any:
    """Return arrays and objects within each other, with texts full of brackets between."""
    value = inner
    for _ in range(levels):
        text = random.choice(TEXTS)
        value = random.choice(
            ([value], [text, value], [value, 0, text], {f"x{text}": value, "": text})
        )
    return value


@pytest.mark.parametrize("seed", range(20))
def test_the_deepest_level_counts(seed: int) -> None:
    """Brackets in texts are none, and wherever the deepest level stands, it is seen."""
    random = Random(seed)
    around = [nested(random.randint(0, 5), random) for _ in range(random.choice((0, 30, 3000)))]
    for levels, expected in ((DEPTH - 2, ""), (DEPTH - 1, LEVELS)):
        members = [*around, nested(levels, random, "x"), *around]
        body = json.dumps({"a": members}, separators=random.choice(((",", ":"), None))).encode()
        assert refusal(body) == expected


@pytest.mark.parametrize("seed", range(10))
def test_members_of_the_top_level_count(seed: int) -> None:
    """Those of inner objects are none of them, however many there are."""
    random = Random(f"members/{seed}")
    inner = {f"x{one}": random.choice(TEXTS) for one in range(7000)}
    for count, expected in ((MEMBERS_MAX, ""), (MEMBERS_MAX + 1, MEMBERS)):
        names = [f"y{one}" for one in range(count)]
        at = set(random.sample(range(count), 3))
        body = {
            name: [inner, [nested(9, random)]] if one in at else random.choice((1, "a,b", []))
            for one, name in enumerate(names)
        }
        assert refusal(json.dumps(body).encode()) == expected


@pytest.mark.parametrize("before", range(8))
@pytest.mark.parametrize("escape", [b'\\"', b"\\\\", b'\\\\\\"', b"\\\\[", b'\\\\\\"{'])
def test_parts_end_behind_escapes(before: int, escape: bytes) -> None:
    """A text goes on over the end of a part, also where that would cut an escape."""
    filled = b"x" * (PART - 8 - before) + escape * 4
    deep = b"[" * (DEPTH - 1) + b'"' + filled + b"[" * 9 + b'"' + b"]" * (DEPTH - 1)
    assert refusal(b'{"a":"%b","b":%b}' % (filled, deep)) == ""
    deep = b"[" * DEPTH + deep + b"]" * DEPTH
    assert refusal(b'{"a":"%b","b":%b}' % (filled, deep)) == LEVELS


def test_objects_and_arrays_count() -> None:
    """Those in texts are none."""
    most = b"[" + b"[]," * (BRACKETS_MAX - 3) + b'"' + b"[" * 10 + b'"]'
    assert refusal(b'{"a":%b}' % most) == ""
    too_many = b"[" + b"{}," * (BRACKETS_MAX - 1) + b"0]"
    expected = f"expected at most {BRACKETS_MAX} objects and arrays"
    assert refusal(b'{"a":%b}' % too_many) == expected


@pytest.mark.parametrize(
    "body", [b'"' * 5000 + b"[" * 5000, b"]" * 5000 + b"[" * 5000, b"\\" * 400_000 + b"[" * 901]
)
def test_what_is_no_json_is_counted_somehow(body: bytes) -> None:
    """It is left to the decoder, which builds nothing behind its first fault."""
    assert refusal(body) in ("", LEVELS)


@pytest.mark.parametrize(
    "hostile", [b"1,[],", b'"\\"",', b'{"a":[{"b":[]}]},', b"[" * 800 + b"1" + b"]" * 800 + b","]
)
def test_a_large_body_is_counted_in_turns(hostile: bytes) -> None:
    """Each turn reads a part of it."""
    body = b'{"a":[' + hostile * min(3 * PART // len(hostile), 100_000) + b"0]}"
    assert len(body) > 2 * PART
    assert len(list(check_structure(b'{"b":[' + b"[]," * 1000 + b"0]," + body[1:]))) >= 2
