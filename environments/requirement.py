"""One requirement of a stranger, as plain data that we can write again in our own words.

uv obeys options, fetches URLs and runs files that a line names. So no line of a stranger reaches
it: `read_requirement` takes a line apart and `Requirement.line` puts another one together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Parsed
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from registry.errors import BadNeeds

LINE_MAX: Final = 500
"""Max characters of a requirement, without its hashes."""
HASHES_MAX: Final = 500
"""Max hashes of a requirement: one for each file of that version."""
PARENTHESES_MAX: Final = 16
"""Max opening parentheses: each is a level of a parser."""
SHOWN_MAX: Final = 80
EXAMPLE: Final = "a package of an index like numpy>=2"
SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}")
_MARKER: Final = re.compile(r'[A-Za-z0-9 ._<>=!~"()+*,-]*')
_BOUNDARY: Final = re.compile(r"[\x20-\x7e\t]*")
_FOREIGN: Final = (
    (re.compile(r"^\s*-"), "an option"),
    (re.compile(r"[$]"), "a variable"),
    (re.compile(r"(?i)\s*(?:git|hg|svn|bzr)\+"), "an address of a version control system"),
    (re.compile(r"[A-Za-z0-9._\]-]\s*@"), "a direct reference"),
    (re.compile(r"://|(?i:^\s*(?:https?|file|ftp):)"), "an address"),
    (re.compile(r"[/\\]|^\s*[.~]|(?i:\.(?:whl|zip|tar\.\w+|tgz|toml|txt)\s*(?:\[|;|$))"), "a path"),
    (re.compile(r"==="), "a comparison of texts"),
    (re.compile(r"[;#]\s*--|\s--?[a-z]"), "an option"),
)
"""What else a line may be for pip or uv."""
WHEELS_HINT: Final = "packages of your own go as wheels into the folder wheels/"
INDEX_HINT: Final = "the server's FN_UV_CONFIG says where packages come from"


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """A distribution that is needed. All fields are in the form of `packaging`."""

    name: str
    extras: tuple[str, ...] = ()
    specifier: str = ""
    """`>=2,<3`, sorted; "" for any version."""
    marker: str = ""
    """When it is needed; "" for always."""
    hashes: tuple[str, ...] = ()
    """`sha256:HEX` of the files that may be taken; none for any."""

    @property
    def line(self) -> str:
        """The requirement as a line for uv, without hashes: they are compared with the lock."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        marker = f" ; {self.marker}" if self.marker else ""
        return f"{self.name}{extras}{self.specifier}{marker}"


def refusal(where: str, expected: str, got: object) -> BadNeeds:
    """Return the refusal of something; `where` is `FILE:LINE`."""
    text = got if isinstance(got, str) else repr(got)
    return BadNeeds(f"{where}: expected {expected}, got {text}")


def shown(text: str) -> str:
    """Return a stranger's text as it may be repeated: short, in ASCII, in quotes."""
    return ascii(text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}...")


def read_requirement(text: str, where: str, max_chars: int = LINE_MAX) -> Requirement:
    """Return the requirement of a text, which may end with an empty marker.

    Raises BadNeeds, with `where`, for what is no name of a distribution with extras, versions and
    a marker.
    """
    if len(text) > max_chars:
        raise refusal(where, f"at most {max_chars} characters", str(len(text)))
    if not _BOUNDARY.fullmatch(text):
        raise refusal(where, "printable ASCII", shown(text))
    for pattern, kind in _FOREIGN:
        if pattern.search(text):
            hint = INDEX_HINT if "index" in text or "links" in text else WHEELS_HINT
            raise refusal(where, EXAMPLE, f"{kind}: {shown(text.strip())}; {hint}")
    if text.count("(") > PARENTHESES_MAX:
        raise refusal(where, f"at most {PARENTHESES_MAX} parentheses", str(text.count("(")))
    bare = text.strip().removesuffix(";").strip()
    first = _parsed(bare, where)
    # Written again it must mean the same: then nothing but what was understood is passed on.
    if first != _parsed(first.line, where):
        raise refusal(where, EXAMPLE, shown(bare))
    return first


def _parsed(text: str, where: str) -> Requirement:
    try:
        found = Parsed(text)
        extras = tuple(sorted({canonicalize_name(extra) for extra in found.extras}))
        marker = str(found.marker) if found.marker else ""
    except (InvalidRequirement, RecursionError, ValueError) as error:
        raise refusal(where, EXAMPLE, shown(text)) from error
    if found.url is not None:
        raise refusal(where, EXAMPLE, f"a direct reference: {shown(text)}")
    if not _MARKER.fullmatch(marker):
        raise refusal(where, "a marker of names, versions and and/or", shown(marker))
    return Requirement(canonicalize_name(found.name), extras, _written(found.specifier), marker)


def with_hashes(one: Requirement, hashes: list[str], where: str) -> Requirement:
    """Return a requirement that only files with these hashes fulfil. Raises BadNeeds."""
    if len(hashes) > HASHES_MAX:
        raise refusal(where, f"at most {HASHES_MAX} hashes", str(len(hashes)))
    for value in hashes:
        if not SHA256.fullmatch(value):
            raise refusal(where, "sha256: and 64 lower-case hex digits", shown(value))
    return replace(one, hashes=tuple(sorted(set(hashes))))


def read_versions(text: object, where: str) -> str:
    """Return versions of Python like `>=3.11` in the form of `packaging`. Raises BadNeeds."""
    expected = "versions like >=3.11"
    is_text = isinstance(text, str) and len(text) <= LINE_MAX and "===" not in text
    if not isinstance(text, str) or not is_text or not _BOUNDARY.fullmatch(text):
        raise refusal(where, expected, shown(str(text)))
    try:
        found = SpecifierSet(text)
    except InvalidSpecifier as error:
        raise refusal(where, expected, shown(text)) from error
    return _written(found)


def _written(versions: SpecifierSet) -> str:
    """Return versions in their normal form: `packaging` keeps loose ones like `3R_` as they are."""
    parts = []
    for one in versions:
        bare = one.version.removesuffix(".*")
        parts.append(f"{one.operator}{Version(bare)}{one.version[len(bare) :]}")
    return ",".join(sorted(set(parts)))
