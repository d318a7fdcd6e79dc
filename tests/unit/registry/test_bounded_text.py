"""Tests of the readers of strangers' text: what they count, what they refuse and let pass."""

from __future__ import annotations

import random
import time
import tomllib
from typing import Any

import msgspec
import pytest

from registry.bounded_text import (
    DEPTH_MAX,
    KEY_PARTS_MAX,
    KEYS_MAX,
    OBJECTS_MAX,
    TOML_MAX,
    VALUES_MAX,
    read_json,
    read_toml,
)
from registry.errors import BadManifest, BadRequest

LONG = ".".join(["a"] * KEY_PARTS_MAX)
TOO_LONG = LONG + ".a"
QUOTED = " . ".join(["'x.y'", '"[="'] * (KEY_PARTS_MAX // 2) + ["z"])

PLACES = [
    "{} = 1",
    "[{}]",
    "[[ {} ]]",
    "p = {{{} = 1}}",
    "p = [\n # [ ' \"\n {{ b = 2, {} = 1 }} ]",
    "p = '''\n'' \" # [\n'''\n{} = 1",
    'p = """\n"" \\""" \\\\"""\n{} = 1',
    'p = """"quoted"""""\r\n{} = 1',
    'p = "\\"#[" # \' """\n{} = 1',
    "p = '\\'\n{} = 1",
    "p = 1979-05-27T07:32:00.5Z\n{} = 1",
    '"" = 1\n{} = 1',
]
"""Places of a key, each behind text in which a counter may lose its way."""


def refusal(text: str) -> str:
    """Return the message with which a TOML text is refused."""
    with pytest.raises(BadManifest) as caught:
        read_toml(text, "function.toml")
    return caught.value.message


@pytest.mark.parametrize("key", [LONG, LONG.replace("a", "'a.b'")])
@pytest.mark.parametrize("place", PLACES)
def test_a_key_of_the_most_parts_passes_everywhere(place: str, key: str) -> None:
    """What has no more parts than the bound is read as tomllib reads it."""
    text = place.format(key)

    assert read_toml(text, "function.toml") == tomllib.loads(text)


@pytest.mark.parametrize("key", [TOO_LONG, QUOTED])
@pytest.mark.parametrize("place", PLACES)
def test_a_longer_key_is_refused_everywhere(place: str, key: str) -> None:
    """One more part is refused with its line, wherever the key is, and before tomllib sees it."""
    text = place.format(key)
    tomllib.loads(text)
    line = text.count("\n", 0, text.index(key)) + 1

    assert refusal(text).startswith(f"function.toml: line {line}: expected at most {DEPTH_MAX}")


@pytest.mark.parametrize(
    "text",
    [
        'command = "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q.r.s.t.u.v.w.x.y.z"',
        "text = '''" + "[{=." * 9000 + "'''",
        "# " + "[{=." * 9000,
        "floats = [0.123456789012345678901234567890, 1234567890123456789012.0]",
        "mask = 0b1_1_1_1_1_1_1_1_1_1_1_1_1_1_1_1_1_1_1",
        "sample = " + repr([[0.5] * 100] * 101) + "\n\nb = 0.5",
        "\n".join(f"label{at} = {at}" for at in range(3000)),
    ],
)
def test_ordinary_text_passes(text: str) -> None:
    """Text of strings and comments is not counted, and long lists of numbers are no keys."""
    assert read_toml(text, "function.toml") == tomllib.loads(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#" * (TOML_MAX + 1), f"expected at most {TOML_MAX} characters, got {TOML_MAX + 1}"),
        (
            "a = 123456789012345678901",
            "line 1: expected an integer of at most 20 digits, got one o",
        ),
        ("a = -0\nb = [0x" + "f" * 5000 + "]", "line 2: expected an integer of at most 20 digits"),
        ("a = " + "9" * 5000 + "z", "expected an integer of at most 20 digits, got one of 5000"),
        ("\na = " + "[" * (DEPTH_MAX + 1), f"line 2: expected at most {DEPTH_MAX} levels"),
        ("a = " + "{a=" * (DEPTH_MAX + 1), f"line 1: expected at most {DEPTH_MAX} levels"),
        (
            "[a]\n" * (KEYS_MAX + 1),
            f"line 10001: expected at most {KEYS_MAX} parts of keys and tables",
        ),
        ("a = [" + "{a=1}," * (KEYS_MAX + 1) + "]", f"at most {KEYS_MAX} parts of keys and tables"),
        (
            f"{LONG} = 1\n" * 501,
            "line 501: expected at most 10000 parts of keys and tables, got more",
        ),
        ("a = ", "expected TOML, got: Invalid value"),
        ("a = 'b", "expected TOML, got: "),
    ],
)
def test_more_than_the_bounds_is_refused(text: str, said: str) -> None:
    """Length, digits, levels and keys have bounds; a refusal says expected, got, and the line."""
    assert said in refusal(text)


def test_counting_is_linear_in_hostile_text() -> None:
    """Quotes that begin no string end the count, as tomllib ends there: CPU time stays small."""
    pieces = ['"""', '\\"""\n', "'''", '"', "'", '\\"', "\\\\", "\n", "#", "a.", "=", "[", "{", " "]
    rng, longest = random.Random(7), 0.0
    for _ in range(40):
        few = rng.sample(pieces, rng.randint(1, 4))
        text = "".join(rng.choice(few) for _ in range(TOML_MAX))[:TOML_MAX]
        began = time.thread_time()
        refused = 0
        try:
            read_toml(text, "function.toml")
        except BadManifest:
            refused = 1
        longest = max(longest, time.thread_time() - began)
        assert refused or tomllib.loads(text) is not None
    assert longest < 2.0  # quadratic counting takes minutes


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """Document of a test."""

    names: list[str] = []
    more: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b'{"more":{"a":' + b"[" * 2000 + b"]" * 2000 + b"}}",
            "the list cannot be read: maximum re",
        ),
        (
            b'{"names":[' + b"[]," * OBJECTS_MAX + b"]}",
            "expected at most 20000 lists and objects a",
        ),
        (b'{"names":[' + b'"",' * (VALUES_MAX + 1) + b'""]}', f"got 2 and {VALUES_MAX + 1}"),
        (b'{"names":["\xff"]}', "the list cannot be read: "),
        (b'{"more":{"a":' + b"1" * 5000 + b"}}", "the list cannot be read: Integer value out of"),
        (b'{"name":1}', "the list cannot be read: Object contains unknown field `name`"),
        (b"", "the list cannot be read: Input data was truncated"),
    ],
)
def test_json_has_bounds_too(text: bytes, said: str) -> None:
    """Lists, objects and values are counted; what remains is refused in words, at any depth."""
    with pytest.raises(BadRequest) as caught:
        read_json(text, Wanted, "the list")
    assert said in caught.value.message


def test_json_within_the_bounds_is_read() -> None:
    """A text is returned as the type says."""
    assert read_json(b'{"names":["a"]}', Wanted, "the list") == Wanted(["a"])
