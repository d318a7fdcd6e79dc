"""Tests of the batching verdict: which profiles count, and how the verdict is worded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from registry.batching import HANDLER, is_stale, rows_of, summary, with_refutation
from registry.catalog import Deployed
from registry.model.functions import Limits
from registry.model.profiles import Contention, Profile
from registry.model.revisions import Batching, Revision
from registry.spec import model_spec
from registry.store.records import decode_record, encode_record
from runtime_image.contract.rows import PROOF
from tests.support.nouns import function, profile, revision, server_profile, server_revision

MIXED = {"batchable": False, "why_not": "Softmax 's' is over the rows", "operator": "Softmax"}
ALWAYS = Batching("always")
OLD = {"proof": PROOF - 1, "model": "", "compared": False}


@pytest.mark.parametrize(
    ("one", "measured", "rows", "text"),
    [
        (revision(), profile(), 32, "up to 32 rows"),
        (revision(batching=Batching(max_size=8)), profile(), 8, "up to 8 rows"),
        (revision(batching=Batching(max_size=1)), profile(), 1, "off, as requested: max_size is 1"),
        (revision(batching=Batching("off")), profile(), 1, "off: as set in function.toml"),
        (revision(), profile(**MIXED), 1, "off: Softmax 's' is over the rows"),
        (
            revision(),
            profile(batch_max=1),
            1,
            "off: possible, but several rows in one run are no faster",
        ),
        (revision(), None, 1, "off: not analysed yet"),
        (revision(), profile(**OLD), 1, "off: not analysed yet"),
        (revision(), profile(**OLD, batchable=False, why_not="x"), 1, "off: x"),
        (revision(model="other.onnx"), profile(), 1, "off: not analysed yet"),
        (revision(handler="handler.py"), profile(), 1, f"off: {HANDLER}"),
        (revision(handler="handler.py"), profile(**OLD), 1, f"off: {HANDLER}"),
        (
            revision(handler="handler.py", batching=ALWAYS),
            profile(**MIXED),
            32,
            "up to 32 rows, on by function.toml, not proven",
        ),
        (
            revision(batching=ALWAYS),
            profile(**MIXED),
            32,
            "up to 32 rows, on by function.toml, not proven",
        ),
        (revision(batching=ALWAYS), profile(), 32, "up to 32 rows"),
        (
            revision(batching=ALWAYS),
            profile(**MIXED, compared=False),
            1,
            "off: Softmax 's' is over the rows",
        ),
        (
            revision(),
            profile(refuted_at_runtime="output y has shape [2]"),
            1,
            "off: a joined run lost rows: output y has shape [2]",
        ),
        (
            revision(batching=ALWAYS),
            profile(refuted_at_runtime="output y has shape [2]"),
            1,
            "off: a joined run lost rows: output y has shape [2]",
        ),
        (
            revision(),
            profile(profiled=False, batchable=False, why_not="not profiled"),
            1,
            "off (unprofiled): not profiled",
        ),
    ],
)
def test_batch_rows_and_their_summary(
    one: Revision, measured: Profile | None, rows: int, text: str
) -> None:
    """Profile and settings determine the rows of one run and the summary text."""
    assert (rows_of(one, measured), summary(one, measured)) == (rows, text)


@pytest.mark.parametrize(
    ("one", "measured", "is_one"),
    [
        (revision(), profile(**OLD), True),
        (revision(), profile(**OLD, batchable=False), False),
        (revision(), profile(), False),
        (revision(), None, False),
        (revision(batching=Batching("off")), profile(**OLD), False),
        (revision(handler="handler.py"), profile(**OLD), False),
        (revision(model="other.onnx"), profile(), True),
    ],
)
def test_only_stale_positive_proofs_are_analysed_again(
    one: Revision, measured: Profile | None, is_one: bool
) -> None:
    """Only an outdated proof that allowed batching is stale: stricter rules prove nothing that
    weaker ones did not."""
    assert is_stale(one, measured) is is_one


def test_a_profile_of_an_earlier_release_can_be_read() -> None:
    """A profile without a version of the rules is decoded, does not count, and is stale."""
    row = encode_record(profile())
    for field in ("proof", "model", "operator", "equal_axes", "compared", "refuted_at_runtime"):
        start = row.index(f',"{field}":')
        end = min(at for mark in (',"', "}") if (at := row.find(mark, start + 1)) > 0)
        row = row[:start] + row[end:]

    old = decode_record(row, Profile)

    assert (old.proof, old.batchable) == (0, True)
    assert rows_of(revision(), old) == 1
    assert is_stale(revision(), old)


def test_a_refutation_applies_to_one_model() -> None:
    """A bundle may hold several models; a refutation applies only to its own."""
    refuted = profile(refuted_at_runtime="rows are lost")

    assert with_refutation(profile(), refuted) == refuted
    assert with_refutation(profile(model="b.onnx"), refuted) == profile(model="b.onnx")
    assert with_refutation(profile(), None) == with_refutation(profile(), profile()) == profile()


@pytest.mark.parametrize(
    ("handler", "retry", "may"),
    [("", "auto", True), ("handler.py", "auto", False), ("handler.py", "always", True)],
)
def test_a_replica_gets_the_conditions_of_the_proof(handler: str, retry: Any, may: bool) -> None:
    """The model spec has the proof's equal axes and says whether a started run may run again."""
    axes = ((("a", 1), ("b", 1)),)
    one = revision(handler=handler, batching=ALWAYS)
    owner = replace(function(), limits=Limits(retry=retry))

    spec = model_spec(Deployed(owner, one, profile(equal_axes=axes)))

    assert (spec.equal_axes, spec.may_rerun) == (axes, may)
    assert model_spec(Deployed(owner, one, profile(**OLD, equal_axes=axes))).equal_axes == ()


@pytest.mark.parametrize("is_tried", [True, False])
def test_nothing_is_said_about_servers(is_tried: bool) -> None:
    """Requests of a server function are never joined, and no new trial could change that."""
    one = server_revision()
    measured = server_profile(one, batchable=True, batch_max=8) if is_tried else None

    assert (rows_of(one, measured), summary(one, measured)) == (1, "")
    assert not is_stale(one, measured)


def test_a_busy_measurement_is_named() -> None:
    """A verdict that depends on times says that the machine was busy, others do not."""
    busy = profile(contention=Contention("busy", 0, 1e9))
    again = "; measured on a busy machine, again once it is idle, from 2001-09-09 01:46 UTC"
    assert summary(revision(), busy) == f"up to 32 rows{again}"
    assert summary(revision(), replace(busy, batch_max=1)).endswith(again)
    assert summary(revision(batching=Batching("off")), busy) == "off: as set in function.toml"
    assert "as often" in summary(revision(), replace(busy, contention=Contention("busy", 4)))
    assert summary(revision(), profile(contention=Contention("none"))) == "up to 32 rows"
