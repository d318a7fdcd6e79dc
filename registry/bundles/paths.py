"""Rules for the files of a bundle, and the digest that identifies it.

Paths come from clients and are later created below a folder of the server. The rules admit only
paths with the same meaning on every filesystem: nothing is normalised, all other paths are refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import Final

from registry.errors import BadBundle
from registry.model.bundles import Bundle, BundleFile
from runtime_image.contract import compiled, precision
from runtime_image.contract.model import FOLDER

FILES_MAX: Final = 5000
"""One for each weight, as PyTorch's older exporter writes large models, are some thousands."""
DEPTH_MAX: Final = 8
PART_MAX: Final = 255
"""Max bytes of one path part in UTF-8: the limit of common filesystems."""
PATH_MAX: Final = 512
"""Max bytes of a whole path in UTF-8."""
SIZE_MAX: Final = 2**63 - 1
BUNDLE_MAX: Final = 128 * 1024**3
"""Max bytes of all files together, unless the caller sets another limit."""
RESERVED: Final = {
    FOLDER: "prepared",
    precision.FOLDER: "optimised",
    compiled.FOLDER: "compiled",
}
"""Folders that the server adds to a bundle, and the kind of files in them."""
_SHOWN_MAX: Final = 120
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def check_path(path: str) -> str:
    """Return `path` unchanged. Raises BadBundle, naming the path and the violated rule."""
    rule = _broken_rule(path)
    if rule:
        raise _bad(path, rule)
    return path


def check_sha256(sha256: str) -> str:
    """Return `sha256` unchanged. Raises BadBundle unless it is 64 lower-case hex digits."""
    if not _SHA256.fullmatch(sha256):
        raise BadBundle(
            f"sha256: expected 64 lower-case hex digits, got {sha256[:_SHOWN_MAX]!r}",
        )
    return sha256


def make_bundle(
    files: Iterable[BundleFile], max_bytes: int = BUNDLE_MAX, *, may_be_empty: bool = False
) -> Bundle:
    """Validate the files together and return them as a bundle, sorted by path.

    Raises BadBundle on a bad path, size or hash, on two paths that a filesystem may treat as one,
    on a file that is also a folder, on no file unless it `may_be_empty`, on too many files or more
    than `max_bytes`.
    """
    ordered = sorted(files, key=lambda file: file.path)
    least = 0 if may_be_empty else 1
    if not least <= len(ordered) <= FILES_MAX:
        raise BadBundle(f"expected {least} to {FILES_MAX} files, got {len(ordered)}")
    for file in ordered:
        check_path(file.path)
        first = _fold(file.path.split("/")[0])
        if first in RESERVED:
            raise _bad(file.path, f"lies in {first}, which is reserved for {RESERVED[first]} files")
        check_sha256(file.sha256)
        if not 0 <= file.size <= SIZE_MAX:
            raise _bad(file.path, f"expected a size of 0 bytes or more, got {file.size}")
    _check_distinct(ordered)
    total = sum(file.size for file in ordered)
    if total > max_bytes:
        raise BadBundle(f"expected at most {max_bytes} bytes in all files, got {total}")
    return Bundle(digest(ordered), tuple(ordered))


def extended(bundle: Bundle, files: Collection[BundleFile]) -> Bundle:
    """Return `bundle` with further files, which lie in reserved folders; the same without any."""
    if not files:
        return bundle
    ordered = sorted((*bundle.files, *files), key=lambda file: file.path)
    return Bundle(digest(ordered), tuple(ordered))


def digest(files: Iterable[BundleFile]) -> str:
    """Return the sha256 in hex of the canonical JSON of [path, size, sha256], sorted by path.

    Canonical: no spaces, UTF-8, only the escapes that JSON requires.
    """
    rows = sorted([file.path, file.size, file.sha256] for file in files)
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _broken_rule(path: str) -> str:
    if not path.isprintable():
        return "has a control or invisible character"
    if "\\" in path:
        return "has a backslash"
    if path.startswith("/"):
        return "is absolute"
    if len(path.encode()) > PATH_MAX:
        return f"is longer than {PATH_MAX} bytes"
    return _broken_part_rule(path.split("/"))


def _broken_part_rule(parts: list[str]) -> str:
    if len(parts) > DEPTH_MAX:
        return f"is deeper than {DEPTH_MAX} folders"
    for part in parts:
        if part in ("", ".", ".."):
            return f"has the part {part!r}"
        if len(part.encode()) > PART_MAX:
            return f"has a part longer than {PART_MAX} bytes"
    return ""


def _check_distinct(files: list[BundleFile]) -> None:
    """Refuse paths that differ only in case or Unicode form: some filesystems treat them as one."""
    seen: dict[str, str] = {}
    for file in files:
        folded = _fold(file.path)
        if folded in seen:
            raise _bad(file.path, f"is the same file as {seen[folded]!r} on some filesystems")
        seen[folded] = file.path
    for file in files:
        parts = _fold(file.path).split("/")
        for length in range(1, len(parts)):
            folder = "/".join(parts[:length])
            if folder in seen:
                raise _bad(file.path, f"lies below {seen[folder]!r}, which is a file")


def _fold(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _bad(path: str, rule: str) -> BadBundle:
    shown = path[:_SHOWN_MAX]
    return BadBundle(
        f"{shown!r} {rule}" if not rule.startswith("expected") else f"{shown!r}: {rule}",
        detail={"path": shown, "rule": rule},
    )
