"""Concurrent calls to models that mix rows: each answer must be that of its row alone."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from tests.chaos.calls import client
from tests.chaos.ledger import Ledger
from tests.chaos.row_functions import Call, RowFunction
from tests.support.caller import Caller
from tests.support.process_server import server_process
from tests.support.row_models import honest, reported
from tests.support.row_models.case import Case
from tests.support.row_models.honest import Honest
from tests.support.row_models.table import MIXING

CALLERS: Final = 64
LANES: Final = 4
"""Functions called concurrently, each by CALLERS / LANES callers, so that its replica always has a
queue."""
ROUNDS_MAX: Final = 4
"""Rounds of calls; after the first, only of functions whose rows should have shared a run."""
SLOTS: Final = 8
DEPLOYS_AT_ONCE: Final = 2
TIMEOUT_S: Final = 120.0
MIXING_MIN: Final = 30
"""Min number of deployed models that mix rows, besides those of `reported`, in a full run."""
ROWS: Final = re.compile(r'batch;dur=[\d.]+;desc="(\d+) rows"')
TRUSTED: Final = '[batching]\nmode = "always"\n'
JOINED: Final = (
    "mlp_torchscript",
    "mlp_dynamo",
    "cnn_dynamo",
    "cnn_float16",
    "encoder_torchscript",
    "attention_dynamo",
    "vit_dynamo",
    "bert_dynamo",
    "lstm_dynamo",
    "recommender_dynamo",
    "last_token_dynamo",
    "logistic",
    "forest",
    "knn",
    "tf_idf",
    "cnn_qdq",
)
"""Honest models whose requests share runs: at least one per family."""
UNREFUTED: Final = tuple(
    case for case in MIXING if case.name in {"column_by_count", "count_overflows"}
)
"""Models that mix rows although no comparison of runs shows it; only a proof detects them. They are
deployed as trusted (`mode = "always"`) to show that this scenario detects wrong answers."""


@dataclass(frozen=True)
class Dose:
    """Parameters of a run. `mixing`: number of models besides those of `reported`. `trusted`:
    models deployed with `mode = "always"`. `rows`: distinct rows per model."""

    seed: int
    calls: int = 100_000
    mixing: int = len(MIXING)
    joined: Sequence[str] = JOINED
    trusted: Sequence[Case] = ()
    rows: int = 60

    def sources(self) -> list[Case | Honest]:
        """Return the models in random order, honest ones among the others."""
        chance = random.Random(self.seed)
        usual = [case for case in MIXING if case.shown != "again"]
        others = [case for case in usual if case not in reported.CASES]
        chosen: list[Case | Honest] = [
            *(case for case in usual if case in reported.CASES and self.mixing),
            *chance.sample(others, min(self.mixing, len(others))),
            *(one for one in honest.manifest() if one.name in self.joined),
            *self.trusted,
        ]
        chance.shuffle(chosen)
        return chosen


@dataclass
class Tally:
    """Outcomes of the calls; all but `statuses` and `refused` by function."""

    statuses: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    shared: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    refused: int = 0


async def run(data: Path, dose: Dose) -> Ledger:
    """Models that mix rows never share runs, honest ones do, and no answer depends on other
    rows."""
    ledger, tally = Ledger("strangers", {"calls": dose.calls}), Tally()
    began_s = time.monotonic()
    sources = dose.sources()
    made = [RowFunction.made(one, dose.rows, dose.seed) for one in sources]
    unfit = {one.name: why for one in made if (why := one.unfit())}
    functions = [one for one in made if one.name not in unfit]
    ledger.figures["models left out"] = unfit
    options = ("--cpu-slots", str(SLOTS))
    with server_process(data / "data", *options) as server:
        async with client(server) as caller:
            served = await _deployed(caller, functions, dose, ledger)
            deployed_s = time.monotonic()
            await _load(server.url, served, dose, tally, ledger)
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    ledger.require(not server.replica_pids(), "replicas are left")
    ledger.figures["seconds to deploy"] = round(deployed_s - began_s, 1)
    ledger.figures["seconds of load"] = round(time.monotonic() - deployed_s, 1)
    _judge(served, tally, dose, ledger)
    return ledger


async def _deployed(
    caller: Caller, functions: Sequence[RowFunction], dose: Dose, ledger: Ledger
) -> list[RowFunction]:
    """Return the functions that the server accepted."""
    places, served = asyncio.Semaphore(DEPLOYS_AT_ONCE), []
    trusted = {case.name.replace("_", "-") for case in dose.trusted}

    async def deploy(one: RowFunction) -> None:
        manifest = f'schema = 1\nmodel = "model.onnx"\n{TRUSTED if one.name in trusted else ""}'
        files = {"model.onnx": one.model.SerializeToString()}
        async with places:
            operation = (await caller.try_deploy(files, name=one.name, manifest=manifest)).json()
        if operation.get("state") != "done":
            refused.append(f"{one.name}: {str(operation.get('error') or operation)[:200]}")
            return
        one.joins = not operation["result"]["batching"].startswith("off")
        served.append(one)

    refused: list[str] = []
    async with asyncio.TaskGroup() as group:
        for one in functions:
            group.create_task(deploy(one))
    ledger.figures["deploys refused"] = refused
    return served


async def _load(
    url: str, functions: Sequence[RowFunction], dose: Dose, tally: Tally, ledger: Ledger
) -> None:
    """Call the functions of each lane one after another with the lane's share of the callers."""
    chance = random.Random(dose.seed)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    each = -(-dose.calls // max(1, len(functions)))
    left = list(functions)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector) as session:
        for _ in range(ROUNDS_MAX):
            async with asyncio.TaskGroup() as group:
                for lane in range(LANES):
                    own = [(one, one.drawn(chance, each)) for one in left[lane::LANES]]
                    group.create_task(_lane(session, own, tally, ledger))
            # On a busy machine all calls of a small dose may arrive one after another.
            left = [one for one in left if one.joins and not one.mixes and tally.rows[one.name] < 2]


async def _lane(
    session: aiohttp.ClientSession,
    turns: list[tuple[RowFunction, list[Call]]],
    tally: Tally,
    ledger: Ledger,
) -> None:
    for function, calls in turns:
        left = iter(calls)
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS // LANES):
                group.create_task(_caller(session, function, left, tally, ledger))


async def _caller(
    session: aiohttp.ClientSession,
    function: RowFunction,
    calls: Iterator[Call],
    tally: Tally,
    ledger: Ledger,
) -> None:
    for call in calls:
        try:
            async with session.post(call.path, data=call.body, headers=call.headers) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            ledger.violated(f"{function.name}: {error!r}")
            continue
        found = ROWS.search(response.headers.get("Server-Timing", ""))
        rows = int(found[1]) if found else 0
        tally.statuses[str(response.status)] += 1
        tally.calls[function.name] += 1
        tally.shared[function.name] += rows > 1
        tally.rows[function.name] = max(rows, tally.rows[function.name])
        tally.refused += function.wanted[call.row] is None
        length = response.headers.get("Inference-Header-Content-Length", "")
        if complaint := function.complaint(call, response.status, body, length, rows):
            tally.wrong[function.name] += 1
            ledger.violated(f"{function.name}: {complaint}")


def _judge(functions: Sequence[RowFunction], tally: Tally, dose: Dose, ledger: Ledger) -> None:
    trusted = {case.name.replace("_", "-") for case in dose.trusted}
    mixing = [one.name for one in functions if one.mixes and one.name not in trusted]
    joining = [one.name for one in functions if not one.mixes and one.joins]
    for name in mixing:
        if tally.rows[name] > 1:
            ledger.violated(f"{name} mixes rows, and {tally.rows[name]} of them shared a run")
    for one in functions:
        if not one.mixes and one.joins:
            ledger.require(tally.rows[one.name] > 1, f"{one.name}: no two requests shared a run")
    calls = sum(tally.calls[name] for name in joining)
    shared = sum(tally.shared[name] for name in joining)
    reported_names = {case.name.replace("_", "-") for case in reported.CASES}
    others = [name for name in mixing if name not in reported_names]
    wanted = min(MIXING_MIN, dose.mixing // 2)
    ledger.require(len(others) >= wanted, f"only {len(others)} further models that mix rows")
    ledger.figures |= {
        "calls": tally.calls.total(),
        "models that mix rows": len(mixing),
        "of those, reported ones": len(mixing) - len(others),
        "honest models that share runs": len(joining),
        "honest models that do not": [
            one.name for one in functions if not one.mixes and not one.joins
        ],
        "statuses": dict(tally.statuses),
        "calls whose row fails alone, too": tally.refused,
        "share of honest calls that shared a run": round(shared / max(1, calls), 3),
        "largest run": max(tally.rows.values(), default=0),
        "wrong": tally.wrong.total(),
        "wrong by model": dict(tally.wrong.most_common(20)),
    }
