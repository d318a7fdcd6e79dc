"""Transfers to one host, for display."""

from __future__ import annotations

import pytest

from pool_manager.hosts.transfers import MIB, Transfers


def test_transfers_in_progress_are_shown_in_order() -> None:
    """Each has its sizes as far as they are known; its begin and its end are changes."""
    changes: list[str] = []
    all_of_them = Transfers(lambda: changes.append(all_of_them.text))

    with all_of_them.of("image a") as one:
        one(3 * MIB, 0)
        with all_of_them.of("files", 10 * MIB) as two:
            two(4 * MIB, 0)
            assert all_of_them.text == "image a: 3 MiB; files: 4 of 10 MiB"
        one(5 * MIB, 8 * MIB)
        assert all_of_them.text == "image a: 5 of 8 MiB"
        one(9 * MIB, 8 * MIB)
        assert all_of_them.text == "image a: 9 of 9 MiB"

    assert all_of_them.text == ""
    assert all_of_them.total_bytes == 13 * MIB
    assert changes == ["image a: 0 MiB", "image a: 3 MiB; files: 0 of 10 MiB", "image a: 3 MiB", ""]


def test_a_failed_transfer_is_over() -> None:
    """It is not shown any more; what it began again is not counted as negative."""
    transfers = Transfers()

    def send() -> None:
        with transfers.of("files") as progress:
            progress(5, 0)
            progress(0, 0)
            progress(5, 0)
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        send()

    assert transfers.text == ""
    assert transfers.total_bytes == 10
