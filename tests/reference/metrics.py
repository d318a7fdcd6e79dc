"""docs/reference/metrics.md: the families of `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, get_args

from admin.metrics import DEVICE as DEVICE_LABELS
from pool_manager.core.state import State
from pool_manager.reports import DeviceState
from tests.reference.markdown import code, items, page, table, wrapped
from tests.support.families import SUFFIXES
from tests.surface.metrics import DATA, counted
from tests.surface.states import pool_states

TITLE = "Metrics"
INTRO = """
`GET /metrics` is for Prometheus: OpenMetrics with exemplars for a scraper that prefers it, the
Prometheus text format for all others. It is open on loopback while there are no access keys;
otherwise it needs a key of the scope `read`.

The names below are those of Prometheus queries: counters end in `_total`, and a histogram has the
samples `_bucket`, `_sum` and `_count`.
"""
LEDGER = """
Every accepted request ends in exactly one way, or it is held or in flight. All values of one scrape
are of one moment and cover all gateway processes, including processes that died. At every scrape
`fngate_accepted_total = sum(fngate_ended_total) + sum(fngate_open_requests)`; the alert
`FngateLedgerDoesNotBalance` fires if it is not.
"""
SERIES = """
The first 1,000 functions that are called have series of their own. Calls of all others are counted
together as `function="_others"`. `process_*` describe the server's process; with several gateway
processes that is the process of the pool manager.
"""


def _listed(values: Iterable[str]) -> str:
    return ", ".join(code(one) for one in sorted(values))


LABELS = {
    "device": "Id of a device: a CPU slot or a GPU.",
    "direction": "`in`: from clients; `out`: to clients.",
    "driver": "Driver that starts replicas.",
    "function": (
        "Name of the function, `_others` beyond the first 1,000; `_idle` for what no function held."
    ),
    "host": "Name of a host, `local` for the server's own machine.",
    "how": (
        "End of a request: `completed` (a replica answered), `failed` (an error), `expired` "
        "(the wait budget was over), `cancelled` (the client left) or `aborted` (the gateway "
        "process died)."
    ),
    "kind": (
        "Kind of a device, or of a start: `process`, `standby` (a standby got a model), "
        "`ahead` (start of a standby) or `trial` (a deploy)."
    ),
    "le": "Upper bound of a bucket.",
    "namespace": "Namespace of the function.",
    "outcome": (
        "Result: `ok`, `refused` (4xx) or `failed` (5xx) of a request; `ready`, `failed` or "
        "`dropped` (no longer wanted) of a start; `right`, `wrong` or `failed` of a wake."
    ),
    "phase": "Phase of a cold start.",
    "pool": "Revision, or kind of standby, that the replicas are for.",
    "reason": (
        "Code of a [problem](problems.md), `server` for a status from 400 on that a function's "
        "server answered, or why a replica failed or a request was sent again."
    ),
    "state": (
        f"State of a device ({_listed(get_args(DeviceState))}), "
        f"of a pool ({_listed(pool_states())}) "
        f"or of a replica ({_listed(one.value for one in State)})."
    ),
    "step": "Step of the pool manager that failed.",
    "version": "Version of fngate.",
    "verdict": (
        "What a golden sample showed: `right`, `wrong`, `no_answer`, or `none` if nothing."
    ),
    "victim": "Replica that made room for another pool: `idle` or `busy`.",
    "when": "Whether a replica failed while `starting` or while `serving`.",
    "xid": "Number of an error in NVIDIA's catalogue, 0 for those beyond the first 32 of a GPU.",
    "what": "`bodies` of requests, or unsent `answers`.",
    "where": "Place of an open request: `held` or `in_flight`.",
}
"""Meanings of the labels. `document` raises where one is missing or left over."""
GROUPS = {
    "Requests": (
        "accepted",
        "ended",
        "open",
        "held",
        "in_flight",
        "request",
        "queue",
        "retries",
        "clients",
    ),
    "Batches": ("batch", "runs"),
    "Exchanges": ("exchange", "first_byte"),
    "Models at /v1": ("input", "output", "usage", "first_token"),
    "Builds": ("builds", "running_builds", "waiting_builds"),
    "Cold starts and replicas": (
        "cold",
        "replica",
        "waiting",
        "evictions",
        "pool",
        "manager",
        "golden",
        "wakes",
    ),
    "Devices and hosts": ("device", "function", "host", "link"),
    "Server": ("build", "gateway", "history", "access", "tasks"),
    "Process": ("process",),
}
"""Families by the words after `fngate_` with which their names begin."""


class Family(NamedTuple):
    """A family by the name that Prometheus knows. `labels` have their values, none for data."""

    name: str
    kind: str
    text: str
    labels: dict[str, list[str]]


def document() -> str:
    """The page."""
    found = families()
    used = {label for one in found for label in one.labels}
    if used != LABELS.keys():
        raise ValueError(f"LABELS does not fit the labels: {used ^ LABELS.keys()}")
    blocks = ["## Ledger", wrapped(LEDGER)]
    for group in GROUPS:
        blocks += [f"## {group}"]
        for one in found:
            if _group(one.name) == group:
                blocks += _section(one)
    rows = ((code(name), text) for name, text in LABELS.items())
    return page(
        TITLE, INTRO, *blocks, "## Labels", wrapped(SERIES), table(("label", "meaning"), rows)
    )


def families() -> list[Family]:
    """Every family, by name."""
    found = []
    for metric in counted().collect():
        labels: dict[str, set[str]] = {}
        for sample in metric.samples:
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
        suffix = "" if metric.type == "histogram" else SUFFIXES.get(metric.type, ("",))[0]
        values = {
            label: []
            if label in (*DATA, *DEVICE_LABELS, "le", "state")
            else sorted(filter(None, each))
            for label, each in sorted(labels.items())
        }
        found.append(Family(metric.name + suffix, metric.type, metric.documentation, values))
    return sorted(found)


def _group(name: str) -> str:
    if name.startswith("process_"):
        return "Process"
    rest = name.removeprefix("fngate_")
    groups = (group for group, words in GROUPS.items() if rest.startswith(words))
    found = next(groups, None)
    if found is None:
        raise ValueError(f"{name} is in no group of GROUPS")
    return found


def _section(one: Family) -> Iterator[str]:
    labels = (
        f"{code(name)} ({', '.join(values)})" if values else code(name)
        for name, values in one.labels.items()
    )
    yield f"### {code(one.name)}"
    yield wrapped(one.text)
    facts = [f"Type: {one.kind}"]
    if one.labels:
        facts.append(f"Labels: {', '.join(labels)}")
    yield items(facts)
