"""Readers of forms apart from the gateway's: by RFC 7578, and what lenient parsers see."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote_plus


class Field(NamedTuple):
    """A field as it stands: its Content-Disposition and its value."""

    disposition: str
    value: bytes


def fields_of(body: bytes, boundary: bytes) -> list[Field]:
    """Return the fields of a form, by the grammar of RFC 2046 section 5.1.1.

    Raises ValueError where it is not kept.
    """
    ends = rb"(?:(--)[ \t]*(?=\r?\n|\Z)|[ \t]*(?=\r\n))"  # some programs end the last line with LF
    line = re.compile(rb"(?:\A|\r\n)--" + re.escape(boundary) + ends)
    places = list(line.finditer(body))
    last = next((number for number, one in enumerate(places) if one[1]), None)
    if last is None:
        raise ValueError("no end")
    fields = []
    for begin, end in pairwise(places[: last + 1]):
        part = body[begin.end() + 2 : end.start()]
        head, found, value = (b"\r\n" + part).partition(b"\r\n\r\n")
        if not found:
            raise ValueError("no head")
        lines = dict(one.decode("latin-1").split(":", 1) for one in head.split(b"\r\n")[1:])
        folded = {name.lower(): value.strip() for name, value in lines.items()}
        fields.append(Field(folded.get("content-disposition", ""), value))
    return fields


def names_of(disposition: str) -> set[str]:
    """Return all that some parser takes for the name of a field."""
    splits = (
        re.findall(r';\s*name\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;"\s]*))', disposition, re.I),
        re.findall(r';\s*name\s*=\s*(?:"([^"]*)"|([^;"\s]*))', disposition, re.I),
    )
    found = {quoted or plain for pairs in splits for quoted, plain in pairs}
    for part in _toggled(disposition), disposition.split(";"):
        for one in part:
            key, _, value = one.strip().partition("=")
            if key.strip().lower() in ("name", "name*"):
                found.add(value.strip().strip('"').rpartition("''")[2])
    decoded = {re.sub(r"\\(.)", r"\1", one) for one in found} | found
    return {unquote_plus(one, "latin-1") for one in decoded} | decoded


def _toggled(text: str) -> list[str]:
    """Return the parts between semicolons, with every quote opening or closing a string."""
    parts, is_quoted = [""], False
    for char in text:
        is_quoted ^= char == '"'
        if char == ";" and not is_quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def is_like_model(name: str) -> bool:
    """Return whether a lenient server takes a name for `model`."""
    return re.split(r"[\0\[]", name)[0].strip().lower() == "model"
