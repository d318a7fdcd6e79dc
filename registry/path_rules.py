"""Path rules of server functions: which requests wake it, take no slot, or are denied. Pure.

A rule is "[METHOD ]PATTERN". `*` in the pattern stands for any characters, `/` included. Rules
match the normalised path: percent-decoded once, repeated slashes merged, dot segments resolved,
parameters of segments (";...") cut.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from registry.errors import BadRequest, PathDenied
from registry.model.servers import PathRules

RULES_MAX: Final = 64
"""Max rules of one kind."""
RULE_MAX: Final = 256
"""Max characters of a rule."""
RULE_FORM: Final = (
    f"[METHOD ]PATTERN of at most {RULE_MAX} characters, where PATTERN begins with / or * and has"
    " no white space, //, dot segment or any of ? # ; % \\"
)
NEVER_WAKING: Final = (b"/favicon.ico", b"/robots.txt")
"""Paths that browsers and crawlers request by themselves."""
_RULE: Final = re.compile(r"(?:([A-Z][A-Z-]{0,31}) )?([/*][^\s?#;%\\\x00-\x1f\x7f]*)")
_DOT_SEGMENT: Final = re.compile(r"/\.\.?(?:/|$)")
_UNUSUAL: Final = re.compile(rb"[%;]|//|/\.")
_AMBIGUOUS: Final = re.compile(
    rb"%(?:2[35eEfF]|3[fF]|5[cC]|[01][0-9A-Fa-f]|7[fF]|(?![0-9A-Fa-f]{2}))"  # escapes
    rb"|/\.\.?(?:[;/]|$)"  # dot segments, also with parameters
    # An authority for those who read the target as a URL (RFC 3986 section 4.2), also once the
    # parameters of the first segment are cut.
    rb"|\A/(?:(?:;|%3[bB])[^/]*)?/"
)


class Rule(NamedTuple):
    """One parsed rule: method, "" for any, and the literal parts of the pattern between its `*`."""

    method: bytes
    parts: tuple[bytes, ...]


class Treatment(NamedTuple):
    """How a request is treated. `wakes`: it wakes the function and counts as use.

    `is_free`: it takes no slot.
    """

    wakes: bool
    is_free: bool


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises ValueError that names the expected form and the rule."""
    found = _RULE.fullmatch(text) if len(text) <= RULE_MAX else None
    if found is None or "//" in found[2] or _DOT_SEGMENT.search(found[2]):
        raise ValueError(f"expected {RULE_FORM}; got {text[:80]!r}")
    parts = re.split(r"\*+", found[2])
    return Rule((found[1] or "").encode(), tuple(part.encode() for part in parts))


def parse_rules(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    """Parse the rules of one kind. Raises ValueError."""
    if len(texts) > RULES_MAX:
        raise ValueError(f"expected at most {RULES_MAX} rules, got {len(texts)}")
    return tuple(map(parse_rule, texts))


def normalise(path: bytes, *, cuts_parameters: bool = True) -> bytes:
    """Return a path as rules see it. `path` is absolute and has no query."""
    if not _UNUSUAL.search(path):
        return path
    decoded = unquote_to_bytes(path)
    kept: list[bytes] = []
    segments = decoded.split(b"/")
    for segment in segments:
        plain = segment.partition(b";")[0] if cuts_parameters else segment
        if plain == b"..":
            del kept[-1:]
        elif plain not in (b"", b"."):
            kept.append(plain)
    last = segments[-1].partition(b";")[0] if cuts_parameters else segments[-1]
    is_folder = last in (b"", b".", b"..") and bool(kept)
    return b"/" + b"/".join(kept) + (b"/" if is_folder else b"")


def matches(rule: Rule, method: bytes, path: bytes) -> bool:
    """Return whether a rule matches a request with a normalised path. HEAD counts as GET.

    Takes time in proportion to the path's length, whatever the pattern.
    """
    if rule.method and rule.method != method and (rule.method, method) != (b"GET", b"HEAD"):
        return False
    first, *rest = rule.parts
    if not rest:
        return path == first
    *middle, last = rest
    at, end = len(first), len(path) - len(last)
    if at > end or not path.startswith(first) or not path.endswith(last):
        return False
    for part in middle:
        found = path.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


class CompiledPaths:
    """The path rules of one revision, parsed once."""

    __slots__ = ("_deny", "_free", "_never_waking", "_wake")

    def __init__(self, rules: PathRules, ready: str = "", control: tuple[str, ...] = ()) -> None:
        """Parse the rules; `ready` is the path of the readiness probe, `control` are rules of
        denied requests beside those of the owner. Raises ValueError."""
        self._wake = parse_rules(rules.wake)
        self._free = parse_rules(rules.free)
        self._deny = tuple(
            Rule(rule.method, tuple(part.lower() for part in rule.parts))
            for rule in (*parse_rules(rules.deny), *parse_rules(control))
        )
        probe = ready.partition("?")[0].encode()
        # A probe of "/" is no reason to keep the function's front page from waking it.
        self._never_waking = {*NEVER_WAKING, normalise(probe or b"/")} - {b"/"}

    @property
    def denies(self) -> bool:
        """Whether any path is denied."""
        return bool(self._deny)

    def judge(self, method: bytes, path: bytes, claimed: tuple[bytes, ...] = ()) -> Treatment:
        """Return how a request is treated; `path` is absolute and has no query.

        `claimed`: further methods by which the server might run it, see
        `registry.field_classes.METHODS`; what a body says about it (`_method`) is not read. Raises
        PathDenied, and BadRequest where the function denies paths and servers could understand this
        path in different ways.
        """
        if self._deny:
            self._check_denied((method, *claimed), path)
        plain = normalise(path)
        is_free = bool(self._free) and self._is_free(method, path, plain)
        if plain in self._never_waking and method in (b"GET", b"HEAD"):
            return Treatment(wakes=False, is_free=is_free)
        wakes = not self._wake or any(matches(rule, method, plain) for rule in self._wake)
        return Treatment(wakes, is_free)

    def _is_free(self, method: bytes, path: bytes, plain: bytes) -> bool:
        """Return whether every server takes this path for one that needs no slot.

        Otherwise /api/..;/static/x would be a way around the limit of concurrency.
        """
        if is_ambiguous(path):
            return False
        reads = {plain, normalise(path, cuts_parameters=False)}
        return all(any(matches(rule, method, read) for rule in self._free) for read in reads)

    def _check_denied(self, methods: tuple[bytes, ...], path: bytes) -> None:
        """Raise if any server could take this path for a denied one.

        Servers differ in case, in a final slash and in parameters of segments: each reading counts.
        """
        if is_ambiguous(path):
            raise BadRequest(
                "path: expected no dot segments, no // at its beginning, no invalid escapes, and"
                " none of / \\ . % ? # or control characters as an escape, because this function"
                " denies paths"
            )
        for cuts in (True, False):
            plain = normalise(path, cuts_parameters=cuts).lower().rstrip(b"/")
            for read in (plain or b"/", plain + b"/"):
                if any(matches(rule, one, read) for rule in self._deny for one in methods):
                    raise PathDenied("the function's settings deny calls of this path")


def is_ambiguous(path: bytes) -> bool:
    """Return whether servers differ in how they resolve a path; `path` has no query."""
    if b"%" not in path and b"/." not in path and not path.startswith((b"//", b"/;")):
        return False
    if _AMBIGUOUS.search(path):
        return True
    try:
        unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return True
    return False
