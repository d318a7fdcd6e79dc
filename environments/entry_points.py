"""Programs that packages bring: console scripts by name, and files in their folder `bin`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from environments.records import INFO

BIN: Final = "bin"
PROGRAMS_MAX: Final = 2_000
FILE_MAX: Final = 256 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
_DOTTED: Final = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_TARGET: Final = re.compile(rf"({_DOTTED})\s*:\s*({_DOTTED})")
_RESERVED: Final = re.compile(r"python[0-9.]*t?")


def console_scripts(folder: Path, files: Iterable[str]) -> dict[str, str]:
    """Return the console scripts of all packages in a folder, as `module:function` by name. Lines
    of another form, and the names of interpreters, are left out."""
    found: dict[str, str] = {}
    for file in sorted(files):
        info, _, name = file.partition("/")
        if name == "entry_points.txt" and info.endswith(INFO):
            with (folder / file).open("rb") as opened:
                text = opened.read(FILE_MAX).decode("utf-8", "replace")
            found |= dict(_scripts(text))
    return dict(sorted(found.items())[:PROGRAMS_MAX])


def _scripts(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        name, equals, target = line.partition("=")
        if section not in ("[console_scripts]", "[gui_scripts]") or not equals:
            continue
        match = _TARGET.match(target.strip())
        if match and is_program_name(name.strip()):
            yield name.strip(), f"{match[1]}:{match[2]}"


def is_program_name(name: str) -> bool:
    """Return whether a program may have this name in a shell."""
    return bool(_NAME.fullmatch(name)) and not _RESERVED.fullmatch(name)


def bin_files(folder: Path, files: Iterable[str], scripts: Iterable[str]) -> dict[str, bool]:
    """Return the programs in a folder's `bin` besides console scripts, by name: whether Python
    runs them."""
    found = {}
    for file in sorted(files):
        at, _, name = file.partition("/")
        if at == BIN and is_program_name(name) and name not in set(scripts):
            with (folder / file).open("rb") as opened:
                head = opened.readline(200)
            found[name] = head.startswith(b"#!") and b"python" in head
    return dict(list(found.items())[:PROGRAMS_MAX])
