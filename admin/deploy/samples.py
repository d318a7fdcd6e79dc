"""A body that a function takes: its manifest's sample, else zeros."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.http.describe import zeros
from registry.bundles.blobs import BlobStore
from registry.catalog import Deployed
from registry.errors import StoreUnavailable, Unknown
from registry.files import unavailable
from registry.model import Bundle, BundleFile
from runtime_image.contract import sample as samples
from runtime_image.contract.signature import Signature

FILE_MAX = 16 * 2**20
ITEMS_MAX = 1_000_000
"""Numbers of one input; as JSON they are 4 bytes each, as Python lists 8."""


class Samples:
    """Samples of what is deployed; `bundles` by digest, their files in `blobs`."""

    def __init__(self, bundles: Mapping[str, Bundle], blobs: BlobStore) -> None:
        self._bundles = bundles
        self._blobs = blobs

    async def body(self, deployed: Deployed) -> tuple[str, bytes]:
        """A sample's content type and bytes. Raises Unknown where it is too large to be given."""
        file = self._file(deployed)
        if file is None:
            return await asyncio.to_thread(values, deployed)
        path = self._blobs.path(file.sha256)
        return samples.content_type(file.path), await asyncio.to_thread(_content, path)

    def _file(self, deployed: Deployed) -> BundleFile | None:
        path = samples.file_of(deployed.revision.sample)
        if not path:
            return None
        bundle = self._bundles[deployed.revision.bundle]
        file = next((file for file in bundle.files if file.path == path), None)
        if file is None:
            raise StoreUnavailable(f"the sample {path} is not in its bundle")
        if file.size > FILE_MAX:
            raise Unknown(
                f"no sample: expected a file of at most {FILE_MAX} bytes, {path} has {file.size}"
            )
        return file


def values(deployed: Deployed) -> tuple[str, bytes]:
    """Content type and body of a sample without a file. Raises Unknown where it is too large."""
    signature, sample = deployed.revision.signature, deployed.revision.sample
    if not sample and signature.kind == "bytes":
        return samples.OCTETS, b""
    inputs = sample or _zeros(signature)
    return samples.JSON, msgspec.json.encode({"inputs": inputs})


def _zeros(signature: Signature) -> dict[str, object]:
    inputs: dict[str, object] = {}
    for tensor in signature.inputs:
        value = zeros(tensor, ITEMS_MAX)
        if value is None:
            raise Unknown(
                f"no sample: input {tensor.name!r} {tensor.dtype} {list(tensor.shape)} has more"
                f" than {ITEMS_MAX} items"
            )
        inputs[tensor.name] = value
    return inputs


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unavailable(error) from error
