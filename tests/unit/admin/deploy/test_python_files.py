"""Tests of what is read of a Python function's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from admin.deploy.python_files import SOURCE_MAX, calls_at_once, read_files
from registry.bundles.blobs import BlobStore
from registry.bundles.paths import make_bundle
from registry.errors import BadNeeds, StoreUnavailable
from registry.model.bundles import Bundle, BundleFile


class Files:
    """Blobs of a few files."""

    def __init__(self, folder: Path, **files: bytes) -> None:
        self.folder = folder
        self.bundle = self._laid_out({name.replace("_", "."): data for name, data in files.items()})

    def _laid_out(self, files: dict[str, bytes]) -> Bundle:
        made = []
        for name, data in files.items():
            digest = hashlib.sha256(data).hexdigest()
            self.path(digest).write_bytes(data)
            made.append(BundleFile(name, len(data), digest))
        return make_bundle(made, may_be_empty=True)

    def path(self, sha256: str) -> Path:
        """Return where a file is."""
        return self.folder / sha256


def blobs(files: Files) -> BlobStore:
    """Return files as what reads them expects."""
    return files  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        (b"def predict(a): pass", 1),
        (b"async def predict(a): yield 1", 32),
        (b"async def predict(a): pass\ndef predict(a): pass", 1),
        (b"if 1:\n  async def predict(a): pass", 1),
        (b"predict = 1", 1),
        (b"type X = int\nasync def (", 1),
        (b"(" * 100_000, 1),
        (b"\0", 1),
        (b"#" * SOURCE_MAX + b"\nasync def predict(a): pass", 1),
    ],
)
def test_a_handler_says_how_many_calls_it_takes(tmp_path: Path, source: bytes, calls: int) -> None:
    """By the form of its last `predict`; what cannot be read here has one."""
    files = Files(tmp_path, handler_py=source)
    assert calls_at_once(files.bundle, blobs(files), "handler.py") == calls
    assert calls_at_once(files.bundle, blobs(files), "other.py") == 1


def test_only_files_that_may_say_something_are_read(tmp_path: Path) -> None:
    """A file that is not run says nothing. A large handler is not read, other files are refused."""
    large = b"#" * (1024 * 1024 + 1)
    files = Files(tmp_path, handler_py=b"h", requirements_txt=b"r", needs_txt=b"n", big_txt=large)
    source = blobs(files)
    assert read_files(files.bundle, source, "", "handler.py") == {
        "handler.py": b"h",
        "requirements.txt": b"r",
    }
    assert read_files(files.bundle, source, "needs.txt", "app.py") == {
        "requirements.txt": b"r",
        "needs.txt": b"n",
    }
    with pytest.raises(BadNeeds, match=r"big.txt: expected at most 1048576 bytes, got 1048577"):
        read_files(files.bundle, source, "big.txt", "handler.py")
    code = Files(tmp_path, handler_py=large)
    assert read_files(code.bundle, blobs(code), "", "handler.py") == {}
    files.path(files.bundle.files[1].sha256).unlink()
    with pytest.raises(StoreUnavailable):
        read_files(files.bundle, source, "", "handler.py")
