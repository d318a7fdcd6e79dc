"""The probe in a process without the filter (this one)."""

from __future__ import annotations

from runtime_image.seccomp.probe import let_through, withheld


def test_without_a_filter_calls_get_through() -> None:
    """Without a filter the probed calls reach the kernel, have no effect, and are reported by
    name."""
    names = let_through()

    assert {"unshare", "setns", "io_uring_enter", "netlink protocol 15"} <= {*names}
    assert withheld() == []
