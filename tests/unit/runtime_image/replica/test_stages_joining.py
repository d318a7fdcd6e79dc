"""The inputs of one run."""

from __future__ import annotations

import numpy as np

from runtime_image.codecs.fast_json import plain_reader
from runtime_image.contract.signature import Signature, TensorSpec
from runtime_image.link.meta import RequestMeta
from runtime_image.replica.intake import Job
from runtime_image.replica.stages import Decoded, join

READER = plain_reader(Signature("tensors", (TensorSpec("x", "FP32", (-1, 2)),), ()))
JOB = Job(1, 1, RequestMeta("", "", -1, ""), b"", 60.0, 0.0)


def listed(*rows: list[float]) -> Decoded:
    return Decoded(JOB, len(rows), (), (list(rows),))


def arrayed(*rows: list[float]) -> Decoded:
    return Decoded(JOB, len(rows), (), None, {"x": np.array(rows, np.float32)})


def test_rows_keep_their_order() -> None:
    """Lists and arrays may follow each other in any order."""
    members = [listed([1, 1]), listed([2, 2], [3, 3]), arrayed([4, 4]), listed([5, 5])]

    found = join(members, READER)["x"]

    assert found.dtype == np.float32
    assert found.tolist() == [[at, at] for at in (1, 2, 3, 4, 5)]


def test_a_single_request_is_not_copied() -> None:
    """Its array goes to the engine as it is."""
    member = arrayed([1, 1])

    assert member.arrays is not None
    assert join([member], None)["x"] is member.arrays["x"]
