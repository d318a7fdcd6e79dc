"""Readers of text that strangers send: TOML and JSON whose size and parts are counted first.

Parsers take memory and time by the parts of a text, not by its length: `a.b.c... = 1` of 200 KB
takes tomllib 19 GB. So each reader counts what is expensive, in one pass over the text, and refuses
more than a bound before anything is built. Counting may give too much, never too little. The table
of all readers and their bounds is in SECURITY.md.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final, TypeVar

import msgspec

from registry.errors import BadManifest, BadRequest

T = TypeVar("T")

TOML_MAX: Final = 64 * 1024
"""Max characters of a TOML text."""
KEY_PARTS_MAX: Final = 20
"""Max parts of one key: `a.b.c` has three. tomllib takes their number squared, in memory too."""
KEYS_MAX: Final = 10_000
"""Max keys and table headers of a TOML text; each part of a dotted one counts."""
DIGITS_MAX: Final = 20
"""Max digits of an integer in TOML: 2**64 has twenty."""
DEPTH_MAX: Final = 32
"""Max levels of arrays and inline tables in each other."""
OBJECTS_MAX: Final = 20_000
"""Max arrays and objects of a JSON text: each takes 56 bytes or more, however short its text."""
VALUES_MAX: Final = 100_000
"""Max commas of a JSON text."""
SHOWN_MAX: Final = 200
"""Max characters of a parser's own message that a refusal repeats."""

# Strings and comments are skipped. tomllib reads a string to its end at the same places. Where a
# quote begins none, it ends with an error: nothing behind it is parsed, nor counted.
_TOKEN: Final = re.compile(
    r'''"""(?s:[^\\]|\\.)*?"{3,5}|\'\'\'(?s:.)*?\'{3,5}'''
    r"""|"(?!"")(?:[^"\\\n]|\\.)*+"|'(?!'')[^'\n]*+'|\#[^\n]*+"""
    r"""|(?P<number>(?<![\w.])(?:0[xob][0-9A-Fa-f_]{21,}+|[0-9][0-9_]{20,}+(?![.eE])))"""
    r"""|(?P<sign>[\[\]{}=.,\n])|(?P<fault>["'])"""
)


def read_toml(
    text: str, file: str, *, size_max: int = TOML_MAX, keys_max: int = KEYS_MAX
) -> dict[str, Any]:
    """Return the document of a TOML text; `file` is its name in refusals.

    Raises BadManifest if the text is longer or has more than the bounds above, or is not TOML;
    `size_max` characters and `keys_max` keys replace two of them.
    """
    if len(text) > size_max:
        raise BadManifest(f"{file}: expected at most {size_max} characters, got {len(text)}")
    found = _excess(text, keys_max)
    if found is not None:
        at, expected, got = found
        line = text.count("\n", 0, at) + 1
        raise BadManifest(f"{file}: line {line}: expected {expected}, got {got}")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadManifest(f"{file}: expected TOML, got: {str(error)[:SHOWN_MAX]}") from error


def _excess(text: str, keys_max: int) -> tuple[int, str, str] | None:
    """Return position, expected and got of the first thing that exceeds a bound, else None."""
    keys, parts, depth = 0, 1, 0
    is_key = True
    for match in _TOKEN.finditer(text):
        if match.lastgroup == "number":
            number = match[0][2:] if match[0][1] in "xob" else match[0]
            if (size := len(number) - number.count("_")) > DIGITS_MAX:
                return match.start(), f"an integer of at most {DIGITS_MAX} digits", f"one of {size}"
        elif match.lastgroup == "fault":
            return None
        if match.lastgroup != "sign":
            continue
        sign = match[0]
        # Outside of a value a bracket begins a header, and a dot another part of a name.
        keys += sign == "=" or (is_key and (sign == "." or (sign == "[" and not depth)))
        depth += (sign in "[{") - (sign in "]}")
        parts = parts + 1 if sign == "." else 1
        is_key = sign != "=" and (is_key or (sign == "\n" and not depth))
        if keys > keys_max:
            return match.start(), f"at most {keys_max} parts of keys and tables", "more"
        if depth > DEPTH_MAX or parts > KEY_PARTS_MAX:
            expected = f"at most {DEPTH_MAX} levels, and {KEY_PARTS_MAX} parts in a key"
            return match.start(), expected, "more"
    return None


def read_json(text: bytes, kind: type[T], subject: str) -> T:
    """Return the document of a JSON text as a `kind`, whose fields bound the depth.

    `subject` is what the text is, in refusals. Raises BadRequest if it has more than the bounds
    above, or does not fit `kind`. The text's own length is bounded where it was received.
    """
    objects, commas = text.count(b"[") + text.count(b"{"), text.count(b",")
    if objects > OBJECTS_MAX or commas > VALUES_MAX:
        raise BadRequest(
            f"{subject}: expected at most {OBJECTS_MAX} lists and objects and {VALUES_MAX} commas,"
            f" got {objects} and {commas}"
        )
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{subject} cannot be read: {str(error)[:SHOWN_MAX]}") from error
