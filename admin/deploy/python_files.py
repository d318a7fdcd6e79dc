"""What is read of a Python function's files before anything runs: its needs, and its `predict`."""

from __future__ import annotations

import ast
from typing import Final

from environments.needs import FILE_MAX, FILES, HANDLER
from registry.bundles.blobs import BlobStore
from registry.errors import BadNeeds
from registry.files import unavailable
from registry.model.bundles import Bundle, BundleFile

ASYNC_CALLS: Final = 32
"""Calls at once of an `async def`. A `def` has one."""
SOURCE_MAX: Final = 256 * 1024
"""Max bytes of a handler that is parsed; a larger one counts as a `def`."""


def read_files(bundle: Bundle, blobs: BlobStore, needs: str, handler: str) -> dict[str, bytes]:
    """Return the contents of the files that may say what a function needs, by name. Blocking.
    Raises BadNeeds for one that is too large, StoreUnavailable."""
    # A file that is not run says nothing, unless the manifest names it.
    wanted = {name for name in FILES if name != HANDLER or handler == HANDLER} | {needs}
    found = {}
    for file in bundle.files:
        if file.path in wanted and (file.path != handler or file.size <= FILE_MAX):
            if file.size > FILE_MAX:
                raise BadNeeds(f"{file.path}: expected at most {FILE_MAX} bytes, got {file.size}")
            found[file.path] = _read(blobs, file)
    return found


def calls_at_once(bundle: Bundle, blobs: BlobStore, handler: str) -> int:
    """Return how many calls a handler takes at once, by the form of its `predict`. Blocking."""
    file = next((one for one in bundle.files if one.path == handler), None)
    if file is None or file.size > SOURCE_MAX:
        return 1
    try:
        body = ast.parse(_read(blobs, file)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1  # its own Python may read it, or says what is wrong
    forms = [type(one) for one in body if getattr(one, "name", "") == "predict"]
    return ASYNC_CALLS if forms[-1:] == [ast.AsyncFunctionDef] else 1


def _read(blobs: BlobStore, file: BundleFile) -> bytes:
    try:
        return blobs.path(file.sha256).read_bytes()
    except OSError as error:
        raise unavailable(error) from error
