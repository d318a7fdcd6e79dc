"""Readers of what a folder in Python needs, and of locks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from packaging.requirements import Requirement

from environments.lock import Lock, LockedPackage, read_lock
from environments.needs import HANDLER, PROJECT, REQUIREMENTS, UV_LOCK, Needs, read_needs
from registry.errors import BadNeeds, EnvironmentRefused
from tests.fuzz.subject import FNCTL_S, KIB, Bound, Subject
from tests.support.hostile_needs import HASH
from tests.support.hostile_needs import UV_LOCK as LOCK

OURS: Final = re.compile(r"""[a-z0-9-]+(\[[a-z0-9,-]+\])?[A-Za-z0-9.+!*<>=~,]*( ; [^/\\$@'`#]+)?""")
"""A line that reaches uv: no option, no address, no path, no variable, no second line."""
USUAL: Final = (
    f"# é\nNumPy>=2,<3 ; python_version >= '3.8'\nx[a, B]==1.0+cpu \\\n    --hash=sha256:{HASH}"
    f" \\\n    --hash=sha256:{'b' * 64}\n\ny~=1.4.2;\nz!=2.* # why\nw (>1)\n"
).encode()
SCRIPT: Final = b"""'''Doc.'''
# /// other
# x
# ///
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "requests<3 ; os_name == 'posix' or (os_name == 'a')",
#
#   "rich",
# ]
# ///
import requests
"""
TABLES: Final = b"""[build-system]
requires = ["x"]
[project]
name = "mine"
requires-python = ">=3.11,<4"
dependencies = [
  "numpy>=2",
  "x[a] ; python_version < '3.12'",
]
[tool.uv]
package = false
"""
PACKAGES: Final = (
    LockedPackage("a", "1.0", (f"sha256:{HASH}", f"sha256:{'b' * 64}"), 5),
    LockedPackage("b", "2.0+cpu", (f"sha256:{HASH}",), None, True),
)
LOCKED: Final = Lock("0" * 64, "3.11", "linux-x86_64", "glibc-2.36", PACKAGES)


def _needs(name: str, **others: bytes) -> Callable[[bytes], Needs]:
    files = {UV_LOCK if key == "uv_lock" else PROJECT: data for key, data in others.items()}
    return lambda data: read_needs({**files, name: data}, PROJECT if others else "")


def check_needs(_: bytes, found: object) -> None:
    """Every line is ours, means what was read, and is a whole line."""
    if not isinstance(found, Needs):
        assert isinstance(found, BadNeeds)
        assert "expected" in found.message
        assert len(found.message) < 1_000
        return
    for one in (*found.requirements, *found.pins):
        assert OURS.fullmatch(one.line), one.line
        again = Requirement(one.line)
        assert (again.name, str(again.specifier), again.url) == (one.name, one.specifier, None)
        assert str(again.marker or "") == one.marker
        assert tuple(sorted(again.extras)) == one.extras
    assert set(found.lines) >= {one.line for one in found.requirements}
    assert not set(found.requires_python) - set("0123456789.,<>=!~*abcrdevpost+-")


def check_lock(_: bytes, found: object) -> None:
    """What is read has the same text again, and its lines for uv are names, versions, hashes."""
    if not isinstance(found, Lock):
        return
    assert read_lock(found.text) == found
    line = re.compile(r"[a-z0-9-]+==[a-z0-9.+!]+( --hash=sha256:[0-9a-f]{64})+")
    assert all(map(line.fullmatch, found.sync_lines.splitlines()))


NEEDS: Final = (
    Subject(
        *("requirements", _needs(REQUIREMENTS), (USUAL, b"\xef\xbb\xbfnumpy\r\n"), 64 * KIB),
        refusals=(BadNeeds,),
        check=check_needs,
        steps_s=FNCTL_S,
        lines=Bound(20_000, 60),
        memory=Bound(512 * KIB, 40),
    ),
    Subject(
        *("project", _needs(PROJECT), (TABLES,), 16 * KIB),
        refusals=(BadNeeds,),
        check=check_needs,
        steps_s=FNCTL_S,
        lines=Bound(20_000, 60),
        memory=Bound(1024 * KIB, 140),
    ),
    Subject(
        *("script", _needs(HANDLER), (SCRIPT,), 64 * KIB),
        refusals=(BadNeeds,),
        check=check_needs,
        steps_s=FNCTL_S,
        lines=Bound(20_000, 60),
        memory=Bound(1024 * KIB, 140),
    ),
    Subject(
        *("uv-lock", _needs(UV_LOCK, project=TABLES), (LOCK,), 64 * KIB),
        refusals=(BadNeeds,),
        check=check_needs,
        steps_s=FNCTL_S,
        lines=Bound(20_000, 60),
        memory=Bound(1024 * KIB, 140),
    ),
    Subject(
        *("lock", read_lock, (LOCKED.text.encode(),), 64 * KIB),
        refusals=(EnvironmentRefused,),
        check=check_lock,
        steps_s=FNCTL_S,
    ),
)
