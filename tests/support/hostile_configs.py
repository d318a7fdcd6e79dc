"""Images with hostile configurations: layers of another image, and any configuration."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import docker

from tests.support.engine import connected

REPOSITORY = "fngate-hostile"
_LAYER = "layer.tar"


class Variants:
    """Makes images with the layers of `base`, an image of the engine at `url`.

    They are loaded as an archive, in which registries and `docker build` check nothing: only the
    configuration travels, since the engine has the layers.
    """

    def __init__(self, client: docker.APIClient, base: str) -> None:
        self._client = client
        self._base = client.inspect_image(base)
        self.tags: list[str] = []

    def make(self, links: Mapping[str, str] | None = None, **config: Any) -> str:
        """Return the id of an image whose configuration has these fields. `links`: symbolic links
        in a layer of its own, by path."""
        layers = list(self._base["RootFS"]["Layers"])
        files: dict[str, bytes] = {}
        if links:
            layer = _links(links)
            files[f"{len(layers)}/{_LAYER}"] = layer
            layers.append(f"sha256:{hashlib.sha256(layer).hexdigest()}")
        whole = {
            "architecture": self._base["Architecture"],
            "os": "linux",
            "config": {**self._base["Config"], **config},
            "rootfs": {"type": "layers", "diff_ids": layers},
        }
        text = json.dumps(whole).encode()
        id = hashlib.sha256(text).hexdigest()
        tag = f"{REPOSITORY}:{id[:12]}"
        places = [f"{number}/{_LAYER}" for number in range(len(layers))]
        manifest = [{"Config": f"{id}.json", "RepoTags": [tag], "Layers": places}]
        files |= {f"{id}.json": text, "manifest.json": json.dumps(manifest).encode()}
        for line in self._client.load_image(_packed(files)):
            assert "error" not in line, line
        self.tags.append(tag)
        return f"sha256:{id}"

    def remove(self) -> None:
        """Remove all images that were made."""
        for tag in self.tags:
            with suppress(docker.errors.ImageNotFound):
                self._client.remove_image(tag, force=True)


@contextmanager
def variants(url: str, base: str) -> Iterator[Variants]:
    """Make images that are gone after the block."""
    with connected(url) as client:
        made = Variants(client.api, base)
        try:
            yield made
        finally:
            made.remove()


def _links(links: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, target in links.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return packed.getvalue()


def _packed(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
