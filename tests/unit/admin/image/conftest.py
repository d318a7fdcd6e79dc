"""Fixtures: a Docker client, and one image for all tests of builds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from docker import APIClient

from admin.image.build import BuiltImage
from tests.support import runtime_images


@pytest.fixture
def docker_client() -> Iterator[APIClient]:
    """Create a client of the given engine."""
    with runtime_images.connected() as client:
        yield client


@pytest.fixture(scope="session")
def built() -> Iterator[BuiltImage]:
    """Build a CPU image."""
    with runtime_images.made(f"fngate-test:{uuid.uuid4().hex}") as image:
        yield image
