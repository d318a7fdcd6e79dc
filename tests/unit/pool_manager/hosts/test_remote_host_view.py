"""Tests of the problems that are shown of a host that is up."""

from __future__ import annotations

import pytest

from pool_manager.core.hosts import HostState
from pool_manager.hosts.remote_host import complaint, state_of


@pytest.mark.parametrize(
    ("free_mib", "offset_s", "expected"),
    [
        (None, None, ""),
        (256.0, 4.9, ""),
        (255.4, 0.0, "its disk is full: 255 MiB are free"),
        (0.0, -5.0, "its disk is full: 0 MiB are free; its clock is 5 s behind this machine's"),
        (9e9, 120.0, "its clock is 120 s ahead of this machine's"),
    ],
)
def test_a_full_disk_and_a_wrong_clock_are_reported(
    free_mib: float | None, offset_s: float | None, expected: str
) -> None:
    """Both thresholds, and both at once."""
    assert complaint(free_mib, offset_s) == expected


@pytest.mark.parametrize(
    ("state", "transfer", "expected"),
    [
        (HostState.GONE, "image: 3 of 9 MiB", HostState.JOINING),
        (HostState.GONE, "", HostState.GONE),
        (HostState.UP, "image: 3 of 9 MiB", HostState.UP),
    ],
)
def test_a_host_that_gets_its_image_is_joining(
    state: HostState, transfer: str, expected: HostState
) -> None:
    """The first image of a host may take longer to send than the time after which it is gone."""
    assert state_of(state, transfer) == expected
