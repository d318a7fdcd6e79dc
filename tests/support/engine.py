"""Shared Docker engine for tests; no test may kill it.

`.ci/engine start` starts it and prints three variables: FN_TEST_DOCKER (its URL), FN_TEST_BASE (an
image with Python 3.11 and pip) and FN_TEST_WHEELHOUSE (a folder with the wheels of the cpu runtime
image). The user's own engine is never used: a test marked `docker` is skipped if FN_TEST_DOCKER is
not set, and fails in CI (FN_CI=1). Tests that kill or configure an engine start
`tests.support.own_engine.OwnEngine`.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import docker
import pytest

from admin.image.build import BuildRequest, build
from admin.image.context import own_checkout, own_digest

ANSWER_S = 120
"""Max seconds for any answer of the engine."""
PROGRAMS = ("sh", "sleep", "env")
CONFLICT = 409
SMALL_IMAGE = "fngate-small"
RUNTIME_IMAGE = "fngate-runtime:test"


def engine_url() -> str:
    """Return the shared engine's URL. Without one the test is skipped, or fails in CI."""
    return given("FN_TEST_DOCKER")


def base_image() -> str:
    """Return the tag of the image with Python 3.11 and pip on the shared engine."""
    return given("FN_TEST_BASE")


def refuse(reason: str) -> NoReturn:
    """Skip the test; fail it in CI, where all prerequisites must be present."""
    if os.environ.get("FN_CI") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def remove_container(client: docker.APIClient, id: str) -> None:
    """Remove a container; accept that it is gone or being removed."""
    try:
        client.remove_container(id, force=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != CONFLICT:
            raise


@contextmanager
def connected(url: str, *, answer_s: float = ANSWER_S) -> Iterator[docker.DockerClient]:
    """Open a client of the engine at `url`, with `answer_s` seconds per answer."""
    client = docker.DockerClient(base_url=url, timeout=answer_s)
    try:
        yield client
    finally:
        client.close()


def make_runtime_image(url: str, base: str, wheelhouse: Path) -> str:
    """Return the tag of the cpu runtime image of this checkout on the engine at `url`; build it if
    it is missing."""
    checkout = own_checkout()
    recipe = hashlib.sha256(own_digest().encode())
    for name in ("Dockerfile.runtime", "requirements.lock", "runtime_image/requirements/cpu.txt"):
        recipe.update((checkout / name).read_bytes())
    tag = f"{RUNTIME_IMAGE}-{recipe.hexdigest()[:12]}"
    with connected(url) as client:
        if not client.images.list(name=tag):
            build(BuildRequest("cpu", base, tag, url, checkout, wheelhouse), lambda _text: None)
    return tag


def make_small_image(url: str) -> str:
    """Import an image of 5 MB, made of a few of this machine's programs; return its tag.

    This takes an instant; copying the base image takes seconds.
    """
    programs = [path for path in map(shutil.which, PROGRAMS) if path is not None]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        for path in with_libraries(*programs):
            archive.add(path)
    with connected(url) as client:
        client.api.import_image_from_data(packed.getvalue(), repository=SMALL_IMAGE)
    return f"{SMALL_IMAGE}:latest"


def with_libraries(*programs: str) -> list[str]:
    """Return the paths of programs of this machine and of the libraries that they need."""
    needs = subprocess.run(["ldd", *programs], stdout=subprocess.PIPE, check=True, text=True)
    return sorted({*programs, *re.findall(r"(/\S+) \(0x", needs.stdout)})


def make_image(url: str, repository: str, recipe: str, files: Mapping[str, bytes]) -> str:
    """Return the tag of the image of a Dockerfile and the files that it copies; build it if it is
    missing. The build has no network."""
    tag = image_tag(repository, recipe, files)
    with connected(url) as client:
        if not client.images.list(name=tag):
            build_image(client, tag, recipe, files)
    return tag


def image_tag(repository: str, recipe: str, files: Mapping[str, bytes]) -> str:
    """Return the tag of the image of a Dockerfile and its files."""
    digest = hashlib.sha256(recipe.encode())
    for name, content in files.items():
        digest.update(name.encode() + hashlib.sha256(content).digest())
    return f"{repository}:{digest.hexdigest()[:12]}"


def build_image(
    client: docker.DockerClient, tag: str, recipe: str, files: Mapping[str, bytes]
) -> None:
    """Build an image without a network."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in {**files, "Dockerfile": recipe.encode()}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    packed.seek(0)
    client.images.build(
        fileobj=packed, custom_context=True, tag=tag, network_mode="none", rm=True, forcerm=True
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Require the shared engine for tests marked `docker`."""
    if item.get_closest_marker("docker") is not None:
        engine_url()


@pytest.fixture
def forgotten_sockets() -> Iterator[None]:
    """Collect sockets that docker-py leaves open after a failed connect, so that the warning does
    not hit another test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def engine() -> str:
    """URL of the shared engine. Tests remove what they create there."""
    url = engine_url()
    try:
        with connected(url, answer_s=5) as client:
            client.ping()
    except docker.errors.DockerException as error:
        pytest.fail(f"no engine answers at FN_TEST_DOCKER={url}: {error}", pytrace=False)
    return url


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    """Folder with the wheels of the cpu runtime image."""
    return Path(given("FN_TEST_WHEELHOUSE"))


@pytest.fixture(scope="session")
def runtime_image(engine: str, wheelhouse: Path) -> str:
    """Tag of the cpu runtime image, built on the shared engine once per session.

    FN_TEST_IMAGE names an existing image instead, for repeated runs of a few tests.
    """
    if given := os.environ.get("FN_TEST_IMAGE"):
        return given
    # Parallel sessions (workers of pytest-xdist) wait here and find the image built.
    with (Path(tempfile.gettempdir()) / f"{RUNTIME_IMAGE.replace(':', '-')}.lock").open(
        "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make_runtime_image(engine, base_image(), wheelhouse)


def given(name: str) -> str:
    """Return an FN_TEST_ variable; without it the test is skipped, or fails in CI."""
    value = os.environ.get(name, "")
    if not value:
        refuse(f'{name} is not set: `eval "$(.ci/engine start)"` starts an engine and sets it')
    return value
