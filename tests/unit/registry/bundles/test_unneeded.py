"""Tests of the bytes of uploads that no revision needs, by key."""

from __future__ import annotations

import pytest

from registry.bundles.unneeded import CLAIMS_S, UnneededBlobs
from registry.errors import QueueFull, StoreUnavailable


class Disk:
    """A disk of 100 bytes, and the counts of its uploads."""

    def __init__(self, files: int = 100) -> None:
        self.stored: dict[str, int] = {}
        self.unneeded = UnneededBlobs(lambda: 100 - sum(self.stored.values()), files)

    def upload(self, party: str, name: str, size: int, *, is_bounded: bool = True) -> None:
        with self.unneeded.arriving(party, name, size, 0, is_bounded=is_bounded):
            self.stored[name] = size


def test_a_key_has_no_more_than_stays_free() -> None:
    """A key has at most half of the disk, in however many files; the next one half of the rest."""
    disk = Disk()
    disk.upload("a", "1", 30)
    with pytest.raises(StoreUnavailable, match=r"at most 20 bytes, got 21: .* now 30, .* now 70;"):
        disk.upload("a", "2", 21)
    disk.upload("a", "2", 20)
    with pytest.raises(StoreUnavailable, match="at most 0 bytes, got 1:"):
        disk.upload("a", "3", 1)
    disk.upload("b", "4", 25)
    with pytest.raises(StoreUnavailable):
        disk.upload("b", "5", 1)
    disk.upload("c", "6", 12)
    assert [disk.unneeded.held(party) for party in "abcd"] == [50, 25, 12, 0]


def test_a_key_has_no_more_files_than_others_may() -> None:
    """Empty files count by their number, also those that take another's place."""
    disk = Disk(files=4)
    for name in "112":
        disk.upload("a", name, 0)
    with pytest.raises(QueueFull, match="2 of them of this caller"):
        disk.upload("a", "3", 0)
    disk.upload("b", "1", 0)
    disk.upload("a", "3", 0)
    disk.unneeded.settle(set(), lambda _: False)
    disk.upload("a", "4", 0)
    disk.upload("a", "5", 0)


def test_an_admin_has_no_share() -> None:
    """Uploads that are not bounded are counted, and nothing else."""
    disk = Disk()
    disk.upload("admin", "1", 90, is_bounded=False)
    assert disk.unneeded.held("admin") == 90


def test_what_arrives_counts_once() -> None:
    """The bytes that an upload has announced count for its key from the beginning, and for others
    as far as they are not on the disk yet; those of one that fails no longer count."""
    disk = Disk()
    with disk.unneeded.arriving("a", "1", 40, 0, is_bounded=True) as arrival:
        with pytest.raises(StoreUnavailable, match="at most 10 bytes"):
            disk.upload("a", "2", 11)
        with pytest.raises(StoreUnavailable, match="at most 30 bytes"):
            disk.upload("b", "2", 31)
        disk.stored["incoming"] = arrival.received = 40
        with pytest.raises(StoreUnavailable, match="at most 30 bytes"):
            disk.upload("b", "2", 31)
    assert disk.unneeded.held("a") == 40
    with (
        pytest.raises(KeyError),
        disk.unneeded.arriving("b", "2", 1, 0, is_bounded=True),
    ):
        raise KeyError
    assert disk.unneeded.held("b") == 0


def test_what_is_needed_or_gone_no_longer_counts() -> None:
    """A revision that needs a blob takes it over for good; a sweep frees the rest."""
    disk = Disk()
    for name in "123":
        disk.upload("a", name, 10)
    del disk.stored["2"]

    disk.unneeded.settle({"1"}, disk.stored.__contains__)

    assert disk.unneeded.held("a") == 10
    disk.upload("a", "1", 10)
    assert disk.unneeded.may_claim("b", "1", 10, 2 * CLAIMS_S)
    assert (disk.unneeded.held("a"), disk.unneeded.held("b")) == (10, 0)


def test_claims_do_not_keep_a_blob_for_ever() -> None:
    """Every key may claim a blob that no revision needs, for a day. A blob that the server does not
    know counts for the key that claims it first."""
    disk = Disk()
    disk.upload("a", "1", 10)

    assert disk.unneeded.may_claim("b", "1", 10, CLAIMS_S - 1)
    assert not disk.unneeded.may_claim("a", "1", 10, CLAIMS_S)
    assert disk.unneeded.may_claim("c", "old", 7, 5)
    assert not disk.unneeded.may_claim("c", "old", 7, CLAIMS_S + 5)
    assert [disk.unneeded.held(party) for party in "abc"] == [10, 0, 7]
