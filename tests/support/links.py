"""Links of Markdown documents and the anchors they may refer to.

GitHub and the site (Python-Markdown) derive anchors from headings by different rules, so a link
between pages of the site is valid only if both agree.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

FENCE = re.compile(
    r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(^ {0,3}\1[`~]*\s*$|\Z)", re.DOTALL | re.MULTILINE
)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
TARGET = re.compile(
    r"""\]\(\s*<?([^()\s<>]+)>?(?:\s+["'][^"']*["'])?\s*\)|^\[[^\]]+\]:\s+(\S+)|(?:src|href)="([^"]+)\""""
    "",
    re.MULTILINE,
)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
HTML_ID = re.compile(r"""<\w+[^>]*\s(?:id|name)="([^"]+)\"""")


def targets(text: str) -> Iterator[str]:
    """Return the targets of a document's links and images in order, except those inside code."""
    prose = CODE.sub("", COMMENT.sub("", FENCE.sub("", text)))
    for groups in TARGET.findall(prose):
        yield next(filter(None, groups))


def wrong(path: Path, target: str, root: Path) -> str:
    """Return why a link of the document at `path` is broken; "" if it is valid. `root`: the
    repository. Documents below root/docs are pages of the site and can reach only each other."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return _wrong_form(target)
    if parts.path.startswith("/"):
        return "an absolute path"
    found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not found.exists():
        return "no such file"
    is_page, is_on_site = path.is_relative_to(root / "docs"), found.is_relative_to(root / "docs")
    if is_page and not is_on_site:
        return "the site has no such page: name the file in `code`"
    if not parts.fragment:
        return ""
    makers = (github, site) if is_page else (github,)
    if all(parts.fragment in anchors(found, make) for make in makers):
        return ""
    return "no such heading"


def _wrong_form(target: str) -> str:
    parts = urlsplit(target)
    if parts.scheme == "mailto":
        return "" if "@" in parts.path else "no address"
    if parts.scheme not in ("http", "https"):
        return f"the scheme {parts.scheme}"
    name = parts.hostname or ""
    is_name = "." in name or name == "localhost"
    return "" if is_name and not re.search(r"[\s\"<>`]", target) else "no web address"


def github(heading: str, seen: list[str]) -> str:
    """Return GitHub's anchor for a heading that follows the headings `seen`."""
    slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
    count = seen.count(slug)
    return f"{slug}-{count}" if count else slug


def site(heading: str, seen: list[str]) -> str:
    """Return Python-Markdown's `toc` anchor for a heading that follows the headings `seen`."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
    count = seen.count(slug)
    return f"{slug}_{count}" if count else slug


@cache
def anchors(path: Path, make: Callable[[str, list[str]], str]) -> frozenset[str]:
    """Return every anchor of a document: of headings by the rule `make`, and of its HTML."""
    text = COMMENT.sub("", FENCE.sub("", path.read_text("utf-8")))
    found, seen = set(HTML_ID.findall(text)), list[str]()
    for heading in HEADING.findall(text):
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        found.add(make(plain, seen))
        seen.append(make(plain, []))
    return frozenset(found)
