"""What the probe says of a process without the filter, which is this one."""

from __future__ import annotations

from runtime_image.seccomp.probe import let_through, withheld


def test_without_a_filter_calls_get_through() -> None:
    """They reach the kernel, which does nothing of what was asked, and are told by name."""
    names = let_through()

    assert {"unshare", "setns", "io_uring_enter", "netlink protocol 15"} <= {*names}
    assert withheld() == []
