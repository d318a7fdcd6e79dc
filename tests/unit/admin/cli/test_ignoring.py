from __future__ import annotations

from pathlib import Path

import pytest

from admin.cli.ignoring import PATTERNS_MAX, is_ignored, parse, scan
from registry.errors import BadBundle


@pytest.mark.parametrize(
    ("lines", "path", "ignored"),
    [
        ("", "a.txt", False),
        ("", ".env", True),
        ("", "a/.env", True),
        ("", "__pycache__/", True),
        ("", "__pycache__", False),
        ("", "a/node_modules/", True),
        ("", "a/b.pyc", True),
        ("!.env", ".env", False),
        ("!.env", ".git/", True),
        ("*.bin", "a/b/c.bin", True),
        ("/*.bin", "a/c.bin", False),
        ("/*.bin", "c.bin", True),
        ("a/*.bin", "a/c.bin", True),
        ("a/*.bin", "b/a/c.bin", False),
        ("a/*.bin", "a/b/c.bin", False),
        ("a/**/c.bin", "a/c.bin", True),
        ("a/**/c.bin", "a/x/y/c.bin", True),
        ("**/a/c", "x/a/c", True),
        ("a/**", "a/", False),
        ("a/**", "a/b", True),
        ("data/", "data", False),
        ("data/", "x/data/", True),
        ("*.bin\n!keep.bin", "keep.bin", False),
        ("!keep.bin\n*.bin", "keep.bin", True),
        ("[ab].txt", "b.txt", True),
        ("?.txt", "bb.txt", False),
        ("# a.txt", "a.txt", False),
        ("a.txt  ", "a.txt", True),
        ("A.txt", "a.txt", False),
    ],
)
def test_the_last_pattern_that_matches_decides(lines: str, path: str, ignored: bool) -> None:
    """Globs, anchors, folders, `**` and `!` mean what they mean in .gitignore."""
    parts = tuple(path.rstrip("/").split("/"))
    assert is_ignored(parse(lines), parts, path.endswith("/")) is ignored


@pytest.mark.parametrize("line", ["a\\b", "!", "/", "../x", "a/../b"])
def test_a_line_that_means_nothing_here_is_refused(line: str) -> None:
    """Escapes, empty patterns and ways out of the folder are refused with the line's number."""
    with pytest.raises(BadBundle, match=r"\.fnignore line 2: expected a glob"):
        parse(f"*.md\n{line}\n")


def test_patterns_are_bounded() -> None:
    """A file with too many patterns is refused."""
    with pytest.raises(BadBundle, match="expected at most 500 lines, got 501"):
        parse("a\n" * (PATTERNS_MAX + 1))


def test_an_ignored_folder_is_not_looked_into(tmp_path: Path) -> None:
    """Files of an ignored folder stay out, also where a later pattern would take them in."""
    for name in ("a/b/c", "a/keep", "d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list(scan(tmp_path, parse("a/\n!keep"))) == ["d"]
    assert list(scan(tmp_path, parse("/a/*\n!keep"))) == ["d", "a/keep"]
