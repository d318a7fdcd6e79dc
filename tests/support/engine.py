"""Docker engines for tests: the shared one, which nobody may kill, and what runs on it.

`.ci/engine start` makes the shared engine and prints three variables: FN_TEST_DOCKER (its URL),
FN_TEST_BASE (an image with Python 3.11 and pip) and FN_TEST_WHEELHOUSE (a folder with the wheels
of the cpu runtime image). An engine of the user's own is never taken: a test marked `docker` is
skipped where FN_TEST_DOCKER is not set, and fails there in CI (FN_CI=1). Tests that kill an engine
or set it up in another way start `tests.support.own_engine.OwnEngine`.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import docker
import pytest

from admin.image.build import BuildRequest, build
from admin.image.context import own_checkout, own_digest

ANSWER_S = 120
"""Seconds within which the engine answers whatever a test asks."""
PROGRAMS = ("sh", "sleep", "env")
CONFLICT = 409
SMALL_IMAGE = "fngate-small"
RUNTIME_IMAGE = "fngate-runtime:test"


def engine_url() -> str:
    """The shared engine's URL; without one the test is skipped, or fails in CI."""
    return given("FN_TEST_DOCKER")


def base_image() -> str:
    """The tag of the image with Python 3.11 and pip that the shared engine has."""
    return given("FN_TEST_BASE")


def refuse(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, where everything that tests need has to be there."""
    if os.environ.get("FN_CI") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def remove_container(client: docker.APIClient, id: str) -> None:
    """Remove a container that may be gone, or that the engine is removing just now."""
    try:
        client.remove_container(id, force=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        if error.status_code != CONFLICT:
            raise


@contextmanager
def connected(url: str, *, answer_s: float = ANSWER_S) -> Iterator[docker.DockerClient]:
    """A client of the engine at `url`, which waits `answer_s` seconds for each answer."""
    client = docker.DockerClient(base_url=url, timeout=answer_s)
    try:
        yield client
    finally:
        client.close()


def make_runtime_image(url: str, base: str, wheelhouse: Path) -> str:
    """The tag of the cpu runtime image of these very sources on the engine at `url`, where it is
    built if it is not there yet."""
    checkout = own_checkout()
    recipe = hashlib.sha256(own_digest().encode())
    for name in ("Dockerfile.runtime", "constraints.txt", "runtime_image/requirements/cpu.txt"):
        recipe.update((checkout / name).read_bytes())
    tag = f"{RUNTIME_IMAGE}-{recipe.hexdigest()[:12]}"
    with connected(url) as client:
        if not client.images.list(name=tag):
            build(BuildRequest("cpu", base, tag, url, checkout, wheelhouse), lambda _text: None)
    return tag


def make_small_image(url: str) -> str:
    """Put an image of 5 MB on the engine at `url`: a few of this machine's programs; its tag.

    It is there in a moment, where the base image takes seconds to copy.
    """
    programs = [path for path in map(shutil.which, PROGRAMS) if path is not None]
    needs = subprocess.run(["ldd", *programs], stdout=subprocess.PIPE, check=True, text=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as archive:
        for path in sorted({*programs, *re.findall(r"(/\S+) \(0x", needs.stdout)}):
            archive.add(path)
    with connected(url) as client:
        client.api.import_image_from_data(packed.getvalue(), repository=SMALL_IMAGE)
    return f"{SMALL_IMAGE}:latest"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `docker` needs the shared engine."""
    if item.get_closest_marker("docker") is not None:
        engine_url()


@pytest.fixture
def forgotten_sockets() -> Iterator[None]:
    """docker-py forgets to close sockets that it could not connect: they are collected here, where
    they are expected, and not in the middle of some other test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def engine() -> str:
    """The URL of the shared engine, which answers; tests remove what they make there."""
    url = engine_url()
    try:
        with connected(url, answer_s=5) as client:
            client.ping()
    except docker.errors.DockerException as error:
        pytest.fail(f"no engine answers at FN_TEST_DOCKER={url}: {error}", pytrace=False)
    return url


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    """The folder with the wheels of the cpu runtime image."""
    return Path(given("FN_TEST_WHEELHOUSE"))


@pytest.fixture(scope="session")
def runtime_image(engine: str, wheelhouse: Path) -> str:
    """The tag of the cpu runtime image, built on the shared engine once in a session.

    FN_TEST_IMAGE names one that is there already, for those who run a few tests again and again.
    """
    if given := os.environ.get("FN_TEST_IMAGE"):
        return given
    # Sessions beside this one, as workers of pytest-xdist are, wait and find it built.
    with (Path(tempfile.gettempdir()) / f"{RUNTIME_IMAGE.replace(':', '-')}.lock").open(
        "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return make_runtime_image(engine, base_image(), wheelhouse)


def given(name: str) -> str:
    """The value of an FN_TEST_ variable; without it the test is skipped, or fails in CI."""
    value = os.environ.get(name, "")
    if not value:
        refuse(f'{name} is not set: `eval "$(.ci/engine start)"` starts an engine and sets it')
    return value
