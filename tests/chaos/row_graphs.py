"""Random graphs: none that the analysis proves row-independent is refuted on ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from runtime_image.verification.rows.analysis import analyse
from tests.chaos.ledger import Ledger
from tests.support.random_graphs import Refuter, draw
from tests.support.random_nodes import RULES

GRAPHS = 10_000
SHARE_MIN = 0.1
"""Of the graphs must be proven, and as many be refuted: else the rest shows nothing."""


def judge(seed: int, graphs: int) -> Ledger:
    """Draw so many graphs, one per seed from `seed` on, and hold each verdict against its runs."""
    ledger, verdicts, refusals = Ledger("row-graphs"), Counter[str](), Counter[str]()
    for number in range(seed, seed + graphs):
        drawn = draw(number, RULES)
        if drawn is None:
            verdicts["without an output of rows"] += 1
            continue
        verdict = analyse(drawn.model)
        refutation = Refuter(drawn, number, verdict.equal_axes).refutation()
        found = "proven" if verdict.proven else "mixed" if verdict.analysed else "not analysed"
        verdicts[found] += 1
        verdicts["refuted"] += bool(refutation)
        if verdict.proven and refutation:
            ledger.violated(f"graph {number} is proven, but {refutation}")
        if not verdict.analysed:
            ledger.violated(f"graph {number} is not analysed: {verdict.reason}")
        if not verdict.proven and not refutation:
            refusals[verdict.operator] += 1
    ledger.figures |= {"graphs": graphs, **verdicts, "mixed without a refutation": dict(refusals)}
    for kind in ("proven", "refuted"):
        ledger.require(verdicts[kind] >= SHARE_MIN * graphs, f"only {verdicts[kind]} are {kind}")
    return ledger


async def run(_data: Path, seed: int, graphs: int) -> Ledger:
    """The full dose."""
    return judge(seed % 2**31, graphs)
