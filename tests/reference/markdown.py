"""Markdown for the pages: tables, lists, inline code; the words that the code has for its items."""

from __future__ import annotations

import ast
import html
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any


def page(title: str, intro: str, *blocks: str) -> str:
    """A page: its title, an intro, blocks with an empty line between them."""
    return "\n\n".join([f"# {title}", wrapped(intro), *blocks]) + "\n"


def wrapped(text: str) -> str:
    """Paragraphs of at most 120 columns. Links and inline code stay whole."""
    paragraphs = (" ".join(one.split()) for one in text.strip().split("\n\n"))
    fill = textwrap.TextWrapper(120, break_long_words=False, break_on_hyphens=False).fill
    return "\n\n".join(fill(one) for one in paragraphs)


def code(text: object) -> str:
    """Inline code."""
    return f"`{text}`"


def either(values: Sequence[str]) -> str:
    """Alternatives: "a, b or c"."""
    return " or ".join([", ".join(values[:-1]), values[-1]] if len(values) > 1 else values)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    cells = (map(_cell, line) for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _cell(text: str) -> str:
    """A cell. GitHub and Python-Markdown disagree on `\\|` inside code, so that becomes HTML."""
    if "|" not in text:
        return text
    parts = text.split("`")
    parts[1::2] = [f"<code>{html.escape(one)}</code>" for one in parts[1::2]]
    return "".join(parts).replace("|", "&#124;")


def items(facts: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {one}" for one in facts)


def words(documented: Any, *, whole: bool = False) -> str:
    """The first paragraph of a docstring, or all of it, as one line for each paragraph."""
    text = inspect.getdoc(documented) or ""
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n")]
    return "\n\n".join(paragraphs if whole else paragraphs[:1])


def described(kind: type) -> dict[str, str]:
    """The annotated fields of a class and the string that stands below each, "" for none."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = next(one for one in tree.body if isinstance(one, ast.ClassDef)).body
    found = {}
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            found[node.target.id] = " ".join(str(below.value.value).split()) if is_text else ""
    return found


def first_clause(text: str) -> str:
    """The words before the first full stop, colon, semicolon or default."""
    return re.split(r"[.:;](?: |$)| \(default", text)[0].replace("`", "")
