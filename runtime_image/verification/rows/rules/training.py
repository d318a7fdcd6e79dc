"""BatchNormalization: in training, it is the one operator that combines rows on purpose."""

from __future__ import annotations

from runtime_image.verification.rows.node import Node, untouched
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.states import Mixed, Tensor


@rule("BatchNormalization 7 9 14 15")
def batch_normalization(node: Node) -> Tensor:
    """With given statistics, it scales and shifts each channel."""
    tensor = node.tensor(0)
    node.without_rows(1, 2, 3, 4)
    if node.flag("training_mode", 0) or any(node.used[1:]):
        raise Mixed("normalises by the statistics of the batch: it is in training")
    if not node.flag("spatial", 1):
        raise Mixed("has statistics for each place: spatial = 0")
    untouched(tensor.state, [1], "scales along")
    return Tensor(tensor.state, tensor.dims)
