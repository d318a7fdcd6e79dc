"""Tests of the dashboard's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.ui import files
from admin.ui.files import INDEX, read_files


def test_files_are_read_once_with_their_types(tmp_path: Path) -> None:
    """Names with the content's digest never change; the others are to be asked for."""
    (tmp_path / INDEX).write_text("<p>")
    (tmp_path / "index-D1T6di3X.css").write_text("a{}")
    (tmp_path / "index-D0_zZHnf.js").write_text("1")
    (tmp_path / "icon.svg").write_text("<svg/>")

    found = read_files(tmp_path)

    assert {name: (file.content_type, file.is_immutable) for name, file in found.items()} == {
        INDEX: ("text/html; charset=utf-8", False),
        "index-D1T6di3X.css": ("text/css; charset=utf-8", True),
        "index-D0_zZHnf.js": ("text/javascript; charset=utf-8", True),
        "icon.svg": ("image/svg+xml", False),
    }


def test_other_files_and_folders_are_not_served(tmp_path: Path) -> None:
    """What the build does not make is none of it."""
    (tmp_path / INDEX).write_text("<p>")
    (tmp_path / ".built").write_text("x")
    (tmp_path / "secret.env").write_text("x")
    (tmp_path / "folder.js").mkdir()

    assert list(read_files(tmp_path)) == [INDEX]


def test_the_tag_follows_the_content(tmp_path: Path) -> None:
    """Another build is another answer."""
    (tmp_path / INDEX).write_text("1")
    before = read_files(tmp_path)[INDEX].etag
    (tmp_path / INDEX).write_text("2")

    assert read_files(tmp_path)[INDEX].etag != before


def test_without_a_build_there_is_a_page_that_says_so(tmp_path: Path) -> None:
    """Also where the folder is not there at all."""
    assert b"make ui" in read_files(tmp_path / "none")[INDEX].body


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files stay in memory."""
    (tmp_path / INDEX).write_text("12345")
    monkeypatch.setattr(files, "SIZE_MAX", 4)

    with pytest.raises(ValueError, match="of 4 bytes together, got 1 of 5"):
        read_files(tmp_path)
