"""Bundles: the files of a deploy, by content."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BundleFile:
    """One file of a bundle."""

    path: str
    """Path relative to the bundle's folder, without links and dots."""
    size: int
    """Bytes."""
    sha256: str
    """SHA-256 of the content in hex."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files of one revision."""

    digest: str
    """SHA-256 of the list of files in hex."""
    files: tuple[BundleFile, ...]
    """All files, sorted by path."""

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)
