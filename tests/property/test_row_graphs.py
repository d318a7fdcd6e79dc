"""Property tests of the row-independence analysis against ONNX Runtime, over random graphs."""

from __future__ import annotations

import pytest

from tests.chaos.row_graphs import judge
from tests.support.doses import amount

GRAPHS = amount(150, 500)
"""`make chaos` draws 10,000."""


@pytest.mark.slow
def test_no_proven_graph_mixes_rows() -> None:
    """Many random graphs are proven, many mix their rows, and no proven graph mixes rows."""
    ledger = judge(0, GRAPHS)

    assert ledger.violations == [], "\n".join(ledger.lines())
