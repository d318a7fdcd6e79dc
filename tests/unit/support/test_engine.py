"""Tests of the fixture for tests that need the shared engine."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest

from tests.support import engine as support
from tests.support.engine import connected

VARIABLES = ("FN_TEST_DOCKER", "FN_TEST_BASE", "FN_TEST_WHEELHOUSE", "FN_TEST_IMAGE", "FN_CI")
INSTALL = "python3 -m pip install -q --no-index --find-links /wheels --target /site"
IMPORT = (
    "ORT_DISABLE_TELEMETRY=1 PYTHONPATH=/site python3 -c "
    "'import PIL, msgspec, onnxruntime; print(onnxruntime.get_available_providers()[-1])'"
)


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_without_an_engine_a_test_is_skipped(unset: pytest.MonkeyPatch) -> None:
    """The tests run without Docker; the reason of a skip says how to start the engine."""
    with pytest.raises(pytest.skip.Exception, match=r"FN_TEST_DOCKER is not set.*\.ci/engine"):
        support.engine_url()


def test_without_an_engine_a_test_fails_in_ci(unset: pytest.MonkeyPatch) -> None:
    """In CI a test without an engine fails, so that a green run means that all tests ran."""
    unset.setenv("FN_CI", "1")

    with pytest.raises(pytest.fail.Exception, match="FN_TEST_DOCKER is not set"):
        support.engine_url()


def test_docker_host_is_ignored(unset: pytest.MonkeyPatch) -> None:
    """DOCKER_HOST may name an engine with a user's containers."""
    unset.setenv("DOCKER_HOST", "unix:///var/run/docker.sock")

    with pytest.raises(pytest.skip.Exception):
        support.engine_url()


@pytest.mark.parametrize("is_ci", [False, True])
def test_the_mark_is_enough(
    unset: pytest.MonkeyPatch, request: pytest.FixtureRequest, is_ci: bool
) -> None:
    """A test with the mark needs no fixture to be skipped or to fail."""
    unset.setenv("FN_CI", str(int(is_ci)))
    request.node.add_marker(pytest.mark.docker)

    expected = pytest.fail.Exception if is_ci else pytest.skip.Exception
    with pytest.raises(expected):
        support.pytest_runtest_setup(request.node)


def test_an_unmarked_test_needs_no_engine(
    unset: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Setting up an unmarked test does not look for an engine."""
    support.pytest_runtest_setup(request.node)


@pytest.mark.docker
@pytest.mark.slow
def test_the_shared_engine_has_the_base_image(engine: str) -> None:
    """The engine answers, and its base image has Python 3.11 with pip."""
    with connected(engine) as client:
        said = client.containers.run(
            support.base_image(),
            ["python3", "-m", "pip", "--version"],
            network_mode="none",
            remove=True,
        )

    assert b"(python 3.11)" in said


@pytest.mark.docker
@pytest.mark.slow
def test_the_wheelhouse_is_enough(engine: str, wheelhouse: Path) -> None:
    """The runtime's packages can be installed from the wheelhouse without a network."""
    mount = docker.types.Mount("/wheels", str(wheelhouse), type="bind", read_only=True)
    with connected(engine) as client:
        said = client.containers.run(
            support.base_image(),
            ["sh", "-c", f"{INSTALL} onnxruntime onnx numpy pillow msgspec && {IMPORT}"],
            mounts=[mount],
            network_mode="none",
            remove=True,
        )

    assert said.endswith(b"CPUExecutionProvider\n")


@pytest.mark.docker
@pytest.mark.slow
def test_the_runtime_image_is_on_the_shared_engine(engine: str, runtime_image: str) -> None:
    """The image is built once per session and its label names its kind."""
    with connected(engine) as client:
        labels = client.images.get(runtime_image).labels

    assert labels["fngate.kind"] == "cpu"
