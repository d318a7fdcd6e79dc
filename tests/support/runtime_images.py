"""Builds of the runtime image on the test engine.

FN_TEST_DOCKER is its URL, FN_TEST_BASE an image on it with Python and pip, FN_TEST_WHEELHOUSE a
folder with the wheels of the cpu image. Without them a test is skipped, or fails in CI (FN_CI=1).
"""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from docker import APIClient
from docker.errors import ImageNotFound

from admin.image.build import BuildRequest, BuiltImage, build
from admin.image.context import own_checkout
from runtime_image.lock import FILE, parse
from tests.support.engine import given


def order(tag: str, **changes: object) -> BuildRequest:
    """Return a build order for a cpu image of this checkout from the given base and wheelhouse."""
    values = {
        "kind": "cpu",
        "base": given("FN_TEST_BASE"),
        "tag": tag,
        "engine": given("FN_TEST_DOCKER"),
        "checkout": own_checkout(),
        "wheelhouse": Path(given("FN_TEST_WHEELHOUSE")),
        **changes,
    }
    return BuildRequest(**values)  # type: ignore[arg-type]


def light_checkout(folder: Path) -> Path:
    """Create a checkout whose trial start needs no library, with the lock of `light_wheelhouse`:
    for that one, and to be broken."""
    for name in ("Dockerfile.runtime", "pyproject.toml"):
        shutil.copy(own_checkout() / name, folder)
    lock = ""
    for name, version in {**light_versions("cpu"), **light_versions("gpu")}.items():
        wheel = hashlib.sha256(light_wheel(name, version))
        lock += f"{name}=={version} --hash=sha256:{wheel.hexdigest()}\n"
    (folder / FILE).write_text(lock)
    shutil.copytree(own_checkout() / "runtime_image", folder / "runtime_image")
    preload = folder / "runtime_image" / "engines" / "loading.py"
    preload.write_text("def preload(device_kind: str) -> None: ...\n")
    return folder


def light_wheelhouse(folder: Path, kind: str = "cpu") -> Path:
    """Create wheels of an image's libraries that contain only their versions: builds take seconds
    less and a fifth of the CPU time."""
    folder.mkdir()
    for name, version in light_versions(kind).items():
        path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        path.write_bytes(light_wheel(name, version))
    return folder


def light_versions(kind: str) -> dict[str, str]:
    """Return the locked version of each library that an image names, by name."""
    named = (own_checkout() / "runtime_image" / "requirements" / f"{kind}.txt").read_text().split()
    names = [requirement.partition("[")[0] for requirement in named]
    entries = {entry.name: entry for entry in parse((own_checkout() / FILE).read_text())}
    return {name: entries[name].version for name in names}


def light_wheel(name: str, version: str) -> bytes:
    """Return a wheel that contains only its version, the same bytes each time."""
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    files = {
        f"{package.removesuffix('_gpu')}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
    return packed.getvalue()


@contextmanager
def connected() -> Iterator[APIClient]:
    """Open a client of the test engine."""
    client = APIClient(base_url=given("FN_TEST_DOCKER"), version="auto", timeout=60)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def made(tag: str) -> Iterator[BuiltImage]:
    """Build a cpu image that exists while the block runs."""
    try:
        yield build(order(tag), lambda _: None)
    finally:
        with connected() as client:
            remove(client, tag)


def remove(client: APIClient, image: str) -> None:
    """Remove an image if it exists."""
    try:
        client.remove_image(image, force=True)
    except ImageNotFound:
        return


def leftovers(client: APIClient, build_id: str) -> int:
    """Return how many containers and untagged images a build has left."""
    filters = {"label": f"fngate.build={build_id}"}
    images = client.images(filters={**filters, "dangling": True})
    return len(images) + len(client.containers(all=True, filters=filters))
