"""Random graphs: ONNX Runtime never refutes a graph that the analysis proved row-independent.

`python -m tests.chaos.row_graphs FIRST COUNT` prints one JSON line per graph. It runs in a separate
process because ONNX Runtime 1.31 crashes on some shapes that it should reject.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.chaos.ledger import Ledger

GRAPHS = 10_000
SHARE_MIN = 0.1
"""Min share of proven graphs and of refuted graphs. With fewer the run shows nothing."""
CRASHES_MAX = 0.01
"""Max share of graphs that may crash ONNX Runtime."""
GRAPH_S = 1.0


def results(first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield one result per seed from `first` on; a process crash is a result, too."""
    end = first + count
    while first < end:
        done = subprocess.run(
            [sys.executable, "-m", "tests.chaos.row_graphs", str(first), str(end - first)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60 + GRAPH_S * count,
            check=False,
        )
        for line in done.stdout.splitlines():
            yield json.loads(line)
            first += 1
        if first < end:
            yield {"seed": first, "found": f"crashes with exit code {done.returncode}"}
            first += 1


def judge(seed: int, graphs: int) -> Ledger:
    """Judge `graphs` random graphs, one per seed from `seed` on: compare each verdict with its
    runs."""
    ledger, verdicts, refusals = Ledger("row-graphs"), Counter[str](), Counter[str]()
    for result in results(seed, graphs):
        verdicts[result["found"]] += 1
        refutation = result.get("refutation", "")
        verdicts["refuted"] += bool(refutation)
        if result["found"] == "proven" and refutation:
            ledger.violated(f"graph {result['seed']} is proven, but {refutation}")
        if result["found"] == "not analysed":
            ledger.violated(f"graph {result['seed']} is not analysed: {result['reason']}")
        if result["found"] == "mixed" and not refutation:
            refusals[result["operator"]] += 1
    ledger.figures |= {"graphs": graphs, **verdicts}
    ledger.figures["mixed, not refuted"] = dict(refusals.most_common())
    for kind in ("proven", "refuted"):
        ledger.require(verdicts[kind] >= SHARE_MIN * graphs, f"only {verdicts[kind]} are {kind}")
    crashes = sum(count for kind, count in verdicts.items() if kind.startswith("crashes"))
    ledger.require(crashes <= CRASHES_MAX * graphs, f"{crashes} graphs crash ONNX Runtime")
    return ledger


async def run(_data: Path, seed: int, graphs: int) -> Ledger:
    """Run the full scenario."""
    return judge(seed % 2**31, graphs)


def main() -> None:
    """Judge the graphs of the seeds on the command line; print one JSON line each."""
    # Imported here because the parent process needs neither.
    from runtime_image.verification.rows.analysis import analyse
    from tests.support.random_graphs import Refuter, draw
    from tests.support.random_nodes import RULES

    first, count = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, first + count):
        result: dict[str, Any] = {"seed": seed, "found": "without an output of rows"}
        if drawn := draw(seed, RULES):
            verdict = analyse(drawn.model)
            found = "proven" if verdict.proven else "mixed" if verdict.analysed else "not analysed"
            result |= {"found": found, "operator": verdict.operator, "reason": verdict.reason}
            try:
                refuter = Refuter(drawn, seed, verdict.equal_axes)
            except Exception:  # noqa: BLE001 - nodes run one by one, the graph does not
                result["found"] = "refused by ONNX Runtime"
            else:
                result["refutation"] = refuter.refutation()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
