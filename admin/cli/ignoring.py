"""`.fnignore`: which files of a folder stay out of a deploy, in a part of gitignore's syntax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from admin.cli.links import real_path
from registry.errors import BadBundle

IGNORE_FILE: Final = ".fnignore"
DEFAULTS: Final = (".*", "__pycache__/", "*.pyc", "node_modules/")
"""Patterns before those of the file, which may take them back with `!`."""
IGNORE_MAX: Final = 65_536
"""Max bytes of the file."""
PATTERNS_MAX: Final = 500
SCANNED_MAX: Final = 10_000
"""Max files and folders looked at in a folder; what is in ignored folders does not count."""
_ANY: Final = "**"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line. `parts` are globs of names, or `**` for any number of folders; `keeps`: it has `!`
    and takes a path in again; `folders_only`: it ends in `/`."""

    parts: tuple[str, ...]
    keeps: bool
    folders_only: bool

    def matches(self, parts: tuple[str, ...], is_folder: bool) -> bool:
        """Return whether the pattern matches a path, in time that grows with both lengths only."""
        if self.folders_only and not is_folder:
            return False
        reached = self._closed({0})
        for part in parts:
            reached = self._closed(
                {at for at in reached if at < len(self.parts) and self.parts[at] == _ANY}
                | {
                    at + 1
                    for at in reached
                    if at < len(self.parts) and fnmatchcase(part, self.parts[at])
                }
            )
        return len(self.parts) in reached

    def _closed(self, reached: set[int]) -> set[int]:
        """Return `reached` with the places behind a `**` that stands for no folder."""
        for at, part in enumerate(self.parts):
            if part == _ANY and at in reached:
                reached.add(at + 1)
        return reached


def parse(text: str) -> tuple[Pattern, ...]:
    """Return the default patterns and those of a `.fnignore`, in order. Raises BadBundle."""
    lines = [line.rstrip() for line in text.splitlines()]
    given = [(at, line) for at, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if len(given) > PATTERNS_MAX:
        raise BadBundle(f"{IGNORE_FILE}: expected at most {PATTERNS_MAX} lines, got {len(given)}")
    own = [_pattern(line, f"{IGNORE_FILE} line {at}") for at, line in given]
    return (*(_pattern(line, "") for line in DEFAULTS), *own)


def is_ignored(patterns: tuple[Pattern, ...], parts: tuple[str, ...], is_folder: bool) -> bool:
    """Return whether a path stays out by the last pattern that matches it. What is below an ignored
    folder is not asked for."""
    for pattern in reversed(patterns):
        if pattern.matches(parts, is_folder):
            return not pattern.keeps
    return False


def scan(root: Path, patterns: tuple[Pattern, ...]) -> Iterator[str]:
    """Yield the bundle paths of all files below `root` that are not ignored, also behind links to
    folders. Raises BadBundle, for a link to a folder that it lies in as well."""
    count = 0
    waiting: list[tuple[tuple[str, ...], frozenset[Path]]] = [((), frozenset([root.resolve()]))]
    while waiting:
        folder, above = waiting.pop()
        for entry in _entries(root.joinpath(*folder)):
            parts, is_folder = (*folder, entry.name), entry.is_dir()
            count += 1
            if count > SCANNED_MAX:
                raise BadBundle(f"expected at most {SCANNED_MAX} files in {root}, got more")
            if is_ignored(patterns, parts, is_folder):
                continue
            path = "/".join(parts)
            if not is_folder:
                yield path
                continue
            real = real_path(root, path) if entry.is_symlink() else entry.resolve()
            if real in above:
                raise BadBundle(f"{path!r} is a link to a folder that it lies in")
            waiting.append((parts, above | {real}))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise BadBundle(f"{str(folder)!r} cannot be read: {error.strerror}") from error


def _pattern(line: str, at: str) -> Pattern:
    glob = line.removeprefix("!")
    parts = tuple(part for part in glob.split("/") if part)
    if "\\" in glob or not parts or ".." in parts:
        raise BadBundle(f"{at}: expected a glob without \\ and .., got {line[:80]!r}")
    if "/" not in glob.removesuffix("/"):
        parts = (_ANY, *parts)
    elif parts[-1] == _ANY:  # what is in the folder, not the folder
        parts = (*parts, "*")
    return Pattern(parts, keeps=line.startswith("!"), folders_only=glob.endswith("/"))
