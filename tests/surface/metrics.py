"""Section of the surface: the families of `/metrics`."""

from __future__ import annotations

from admin.workers.messages import Woken
from admin.workers.metrics import MergedMetrics
from gateway.metrics.ledger import Balance
from gateway.replies import Receipt
from gateway.statuses import STATUS, outcome
from runtime_image.contract.control import PHASES, WAKE_PHASES
from runtime_image.link.meta import AnswerMeta
from tests.support.families import page

DATA = ("device", "driver", "function", "host", "namespace", "pool", "version", "xid")
"""Labels whose values are data, not part of the surface."""


def metrics() -> list[str]:
    """List families with types, and samples with labels and the values of closed labels."""
    found = []
    for family in counted().collect():
        found.append(f"{family.name} {family.type}")
        samples: dict[str, dict[str, set[str]]] = {}
        for sample in family.samples:
            labels = samples.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
        found += [f"{name} {{{_shown(labels)}}}" for name, labels in samples.items()]
    return [one for one in found if "_created " not in one]


def _shown(labels: dict[str, set[str]]) -> str:
    return ", ".join(
        label if label in DATA else f"{label}={'|'.join(sorted(values, key=_order))}"
        for label, values in sorted(labels.items())
    )


def _order(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return 0.0, value


def counted() -> MergedMetrics:
    """Return a page on which everything was counted once."""
    pools = {"default/f@1": 1}
    shown, metrics = page(Balance(2.0, {}, pools, pools))
    phases = {phase: 1.0 for phase in PHASES if phase not in WAKE_PHASES}
    meta = AnswerMeta("application/json", 1, 1, 1, 1, 1)
    receipt = Receipt("f@1", "r", ("cpu:0",), 1.0, phases, True, meta)
    shown.count_cold_starts([Woken("default", "f", "r", phases)])
    metrics.count_answer(("default", "f"), 0.1, receipt, 3, 1)
    for status in STATUS.values():
        metrics.count_reply("default", "f", outcome(status), "", 0.1)
    numbers = metrics.exchange_numbers("default", "f")
    numbers.opened()
    numbers.answered(0.1, None, 0.0)
    numbers.ended((1, 1))
    shown.snapshot()
    return shown
