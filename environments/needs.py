"""What a folder needs: `requirements.txt`, `pyproject.toml` (with `uv.lock`), or the block of
PEP 723 in `handler.py`, read by us alone.

No code of the folder runs, and no other file is opened. `Needs.lines` is all that uv is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from environments.requirement import (
    EXAMPLE,
    WHEELS_HINT,
    Requirement,
    read_requirement,
    read_versions,
    refusal,
    shown,
    with_hashes,
)
from environments.uv_lock import read_pins
from registry.bounded_text import TOML_MAX, read_toml
from registry.errors import BadManifest, BadNeeds

REQUIREMENTS: Final = "requirements.txt"
PROJECT: Final = "pyproject.toml"
UV_LOCK: Final = "uv.lock"
HANDLER: Final = "handler.py"
FILES: Final = (REQUIREMENTS, PROJECT, UV_LOCK, HANDLER)
"""Names of the files that are read."""
TEXT_MAX: Final = 64 * 1024
"""Max bytes of a file with needs, without its lines of hashes."""
FILE_MAX: Final = 1024 * 1024
"""Max bytes of a file with needs."""
REQUIREMENTS_MAX: Final = 300
"""Max requirements of a folder."""
LINES_MAX: Final = 20_000
"""Max lines of a file with needs."""
OWN: Final = ("msgspec>=0.19",)
"""What our own part of a Python function needs."""
_BLOCK_START: Final = re.compile(r"# /// ([A-Za-z0-9-]+)")
_BLOCK_END: Final = "# ///"
_BLOCK_SIGN: Final = b"# /// script"
_HASH: Final = re.compile(r"(?:^|\s)--hash=(\S*)(?=\s|$)")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*")
_UV_KEYS: Final = frozenset(
    {
        "conflicts",
        "constraint-dependencies",
        "dependency-metadata",
        "environments",
        "exclude-dependencies",
        "exclude-newer",
        "extra-index-url",
        "find-links",
        "index",
        "index-strategy",
        "index-url",
        "no-index",
        "override-dependencies",
        "pip",
        "prerelease",
        "required-environments",
        "resolution",
        "sources",
    }
)
"""Keys of `[tool.uv]` that would change the outcome."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a folder needs, whatever the form was in which it says so."""

    source: str = ""
    """Name of the file that says so; "" for none."""
    requirements: tuple[Requirement, ...] = ()
    pins: tuple[Requirement, ...] = ()
    """Versions of `uv.lock`, which hold for packages that are needed for any reason."""
    requires_python: str = ""
    """`>=3.11`; "" for any."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What uv resolves: our lines, sorted, with our own packages."""
        return tuple(sorted({*OWN, *(one.line for one in self.requirements)}))

    @property
    def pin_lines(self) -> tuple[str, ...]:
        """What limits the versions of `lines` and of all that they need."""
        return tuple(sorted({one.line for one in self.pins}))


def read_needs(files: Mapping[str, bytes], source: str = "") -> Needs:
    """Return what a folder needs; `files` are those of FILES that it has, by name.

    `source` is the file that the manifest names, also another `*.txt`; "" looks for one. Raises
    BadNeeds with `FILE:LINE: expected ..., got ...`.
    """
    if source:
        if source not in files:
            raise BadNeeds(f"{shown(source)}: expected a file of the folder, got none")
        return _read(source, files)
    read = [_read(name, files) for name in (REQUIREMENTS, PROJECT, HANDLER) if name in files]
    said = [needs for needs in read if needs.source]
    listing = [needs for needs in said if needs.requirements] or said[:1] or [Needs()]
    if len(listing) > 1:
        names = " and ".join(needs.source for needs in listing)
        raise BadNeeds(
            f"expected one file with needs, got {names}: choose one by needs = in [python]"
        )
    # A project that lists no packages may still say which Python it needs.
    versions = dict.fromkeys(needs.requires_python for needs in said if needs.requires_python)
    return replace(listing[0], requires_python=",".join(versions))


def _read(name: str, files: Mapping[str, bytes]) -> Needs:
    if name.endswith(".py") and _BLOCK_SIGN not in files[name]:
        return Needs()  # whatever its size and encoding
    text = _text(name, files[name])
    if name.endswith(".txt"):
        return Needs(name, tuple(_requirement_lines(name, text)))
    if name.endswith(".py"):
        return _script(name, text)
    if name != PROJECT:
        raise BadNeeds(
            f"{shown(name)}: expected a name like {REQUIREMENTS}, {PROJECT} or {HANDLER}"
        )
    needs = _project(name, text)
    if not needs.source or UV_LOCK not in files:
        return needs
    pins = read_pins(UV_LOCK, _text(UV_LOCK, files[UV_LOCK]))
    return Needs(name, needs.requirements, pins, needs.requires_python)


def _text(name: str, data: bytes) -> str:
    """Return the text of a file, without a byte order mark."""
    if len(data) > FILE_MAX:
        raise BadNeeds(f"{name}: expected at most {FILE_MAX} bytes, got {len(data)}")
    lines = data.count(b"\n")
    if lines > LINES_MAX and not name.endswith(".py"):
        raise BadNeeds(f"{name}: expected at most {LINES_MAX} lines, got {lines}")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refusal(f"{name}:{line}", "UTF-8", f"the byte {data[error.start]:#04x}") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise refusal(f"{name}:{line}", "text", "a NUL")
    return text


@dataclass(slots=True)
class _Open:
    """A requirement whose hashes may follow in the next lines."""

    one: Requirement
    where: str
    hashes: list[str]

    def close(self) -> Requirement:
        return with_hashes(self.one, self.hashes, self.where)


def _requirement_lines(name: str, text: str) -> Iterator[Requirement]:
    """Yield the requirements of a text in pip's form. A continued line may only have hashes."""
    rows = _rows(name, text)
    opened: _Open | None = None
    goes_on = False
    for number, row in rows:
        where = f"{name}:{number}"
        hashes = _HASH.findall(row)
        rest = _HASH.sub("", row)
        goes_on_after = rest.rstrip().endswith("\\")
        rest = rest.rstrip().removesuffix("\\").strip()
        if goes_on and opened is not None:
            if rest or not hashes:
                raise refusal(where, "--hash=sha256:... after a continued line", shown(row))
            opened.hashes += hashes
        else:
            if opened is not None:
                yield opened.close()
            opened = _Open(read_requirement(rest, where), where, hashes)
        goes_on = goes_on_after
    if goes_on and opened is not None:
        raise refusal(opened.where, "--hash=sha256:... after a continued line", "the end")
    if opened is not None:
        yield opened.close()


def _rows(name: str, text: str) -> list[tuple[int, str]]:
    """Return the lines of a text that are neither empty nor comments, with their numbers."""
    rows = []
    size = 0
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line.replace("\t", " ").isprintable():
            raise refusal(f"{name}:{number}", "printable text", shown(line))
        row = _COMMENT.sub("", line).strip()
        size += 0 if _HASH.match(row) else len(line) + 1
        if row:
            rows.append((number, row))
    wanted = sum(1 for _, row in rows if not _HASH.match(row))
    _check_count(name, wanted)
    if size > TEXT_MAX:
        raise BadNeeds(f"{name}: expected at most {TEXT_MAX} characters, got {size}")
    return rows


def _check_count(where: str, count: int) -> None:
    if count > REQUIREMENTS_MAX:
        raise BadNeeds(f"{where}: expected at most {REQUIREMENTS_MAX} packages, got {count}")


def _project(name: str, text: str) -> Needs:
    """Return the needs of a `pyproject.toml`; with an empty source if it names no packages."""
    document = _toml(name, text)
    project = document.get("project")
    if project is None:
        if "poetry" in _table(document.get("tool")):
            raise refusal(name, "project.dependencies (PEP 621)", "tool.poetry alone")
        return Needs()
    table = _table(project)
    where = f"{name}:{_line_of(text, 'dynamic')}"
    dynamic = table.get("dynamic", [])
    if not isinstance(dynamic, list) or {"dependencies", "requires-python"} & set(
        map(str, dynamic)
    ):
        raise refusal(where, "dependencies that are listed", f"dynamic = {shown(str(dynamic))}")
    if "dependencies" in table:
        _check_uv_keys(name, text, document)
    return _listed(name, text, table, "project.")


def _check_uv_keys(
    name: str, text: str, document: Mapping[str, Any], lines_before: int = 0
) -> None:
    """Refuse what would change the outcome, rather than ignore it."""
    odd = sorted(_UV_KEYS & _table(_table(document.get("tool")).get("uv")).keys())
    if odd:
        where = f"{name}:{lines_before + _line_of(text, odd[0])}"
        expected = "the server's FN_UV_CONFIG to say where packages come from"
        raise refusal(where, expected, f"tool.uv.{odd[0]}; {WHEELS_HINT}")


def _script(name: str, text: str) -> Needs:
    """Return the needs of a file's block of PEP 723; with an empty source if it has none."""
    found = _block(name, text)
    if found is None:
        return Needs()
    block, first = found
    document = _toml(name, block)
    _check_uv_keys(name, block, document, first)
    return _listed(name, block, document, "", first)


def _block(name: str, text: str) -> tuple[str, int] | None:
    """Return the TOML of the block `script` and the lines before it; None if there is none."""
    found: tuple[str, int] | None = None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    at = 0
    while at < len(lines):
        start = _BLOCK_START.fullmatch(lines[at])
        at += 1
        if start is None:
            continue
        end = at
        while end < len(lines) and (lines[end] == "#" or lines[end].startswith("# ")):
            end += 1
        inner = lines[at:end]
        if _BLOCK_END not in inner:
            # The whole run of comments was read: no other block ends in it.
            at = end
            continue
        last = len(inner) - 1 - inner[::-1].index(_BLOCK_END)
        if start[1] == "script":
            if found is not None:
                raise refusal(f"{name}:{at}", "one block # /// script", "another one")
            found = "\n".join(line[2:] for line in inner[:last]), at
        at += last + 1
    return found


def _listed(
    name: str, text: str, table: Mapping[str, Any], prefix: str, lines_before: int = 0
) -> Needs:
    """Return the needs in the keys `dependencies` and `requires-python` of a table."""
    needed = table.get("dependencies", [])
    where = f"{name}:{lines_before + _line_of(text, 'dependencies')}"
    if not isinstance(needed, list):
        raise refusal(where, f"{prefix}dependencies as a list", type(needed).__name__)
    _check_count(where, len(needed))
    requirements = []
    for one in needed:
        if not isinstance(one, str):
            raise refusal(where, EXAMPLE, type(one).__name__)
        at = f"{name}:{lines_before + _line_of(text, one)}"
        requirements.append(read_requirement(one, at))
    versions = ""
    if "requires-python" in table:
        at = f"{name}:{lines_before + _line_of(text, 'requires-python')}"
        versions = read_versions(table["requires-python"], at)
    says = "dependencies" in table or versions
    return Needs(name if says else "", tuple(requirements), (), versions)


def _toml(name: str, text: str) -> dict[str, Any]:
    if len(text) > TOML_MAX:
        raise BadNeeds(f"{name}: expected at most {TOML_MAX} characters of TOML, got {len(text)}")
    try:
        return read_toml(text, name)
    except BadManifest as error:
        raise BadNeeds(error.message) from error


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _line_of(text: str, part: str) -> int:
    """Return the line of a text that first has a part; 1 if none has it as it is."""
    return text.count("\n", 0, max(0, text.find(part))) + 1
