"""Tests of which requests share runs, from the deploy to real replicas and over restarts."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from admin.deploy import revalidation
from runtime_image.contract.control import RECORD_FILE
from tests.support import mixing, models
from tests.support.mixing import MIXING
from tests.support.operator import until
from tests.support.process_server import server_process
from tests.support.server import ServingServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MANIFEST = """
schema = 1
[scaling]
min = 2
max = 2
[batching]
mode = "always"
wait_ms = 100
[sample]
x = [[1, 2, 3, {last}]]
"""


async def batching(server: ServingServer, name: str) -> tuple[int, str]:
    """Return the rows per run and the reason, for the current revision."""
    revisions = (await server.function(name))["revisions"]
    current = next(one for one in revisions if one["traffic"])
    why = (await server.admin("GET", f"/functions/{name}/why")).json()
    assert why["batching"] == current["batching"]
    return current["batch_max"], current["batching"]


async def decisions(server: ServingServer, name: str) -> list[str]:
    why = (await server.admin("GET", f"/functions/{name}/why")).json()
    return [one["text"] for one in why["decisions"]]


def row(value: float) -> dict[str, Any]:
    return {"inputs": {"x": [[value, 2, 3, 4]]}}


async def test_a_model_that_loses_rows_loses_no_request(tmp_path: Path) -> None:
    """If a model that was joined unproven loses rows, every answer is still that of a run alone.

    All replicas stop joining, and neither a restart nor another deploy starts it again.
    """
    model = mixing.drops_seven(tmp_path).read_bytes()

    async def deploy(server: ServingServer, last: int) -> dict[str, Any]:
        files = {"m.onnx": model, "function.toml": MANIFEST.format(last=last).encode()}
        return await server.deploy(files, name="drops")

    async with serving(tmp_path, cpu_slots=3) as server:
        deployed = await deploy(server, 4)
        pools, key = server.server.manager, "default/drops@1"
        await server.until_pools(lambda: sum(one.can_serve for one in server.bound()) == 2)
        values = [7.0 if place % 5 == 0 else float(place) for place in range(40)]
        answers = await asyncio.gather(*(server.call("drops", row(one)) for one in values))
        await until(lambda: not any(one.batches for one in server.bound()))
        profile = lambda: server.server.store.catalog.resolve("drops").profile  # noqa: E731
        await until(lambda: bool(profile().refuted_at_runtime))  # type: ignore[union-attr]
        off = await batching(server, "drops")
        said = [one.text for one in pools.decisions(key)]
        metrics = (await server.get("/metrics")).body.decode()

    assert "on by function.toml, not proven" in deployed["batching"]
    assert [one.status for one in answers] == [200] * 40
    assert [one.json()["outputs"]["y"] for one in answers] == [
        [] if value == 7 else [[value, 2, 3, 4]] for value in values
    ]
    assert off[0] == 1
    assert off[1].startswith("off: a joined run lost rows: output y of a joined run of")
    assert len([text for text in said if text.startswith("requests are no longer batched: ")]) == 1
    assert "fngate_batching_refuted_total 1.0" in metrics

    async with serving(tmp_path, cpu_slots=3) as server:
        assert await batching(server, "drops") == off
        await deploy(server, 5)
        assert await batching(server, "drops") == off
        assert not any(one.batches for one in server.bound() if one.can_serve)


async def test_mixing_models_are_not_joined(tmp_path: Path) -> None:
    """A model that mixes rows is not joined; the reason names the operator."""
    async with serving(tmp_path, prepare=False) as server:
        for number, (operator, build) in enumerate(MIXING.items()):
            await server.deploy(build(tmp_path), name=f"f{number}")
            rows, text = await batching(server, f"f{number}")
            assert rows == 1
            assert operator.partition(" ")[0].replace("DynamicQuantizeLinear", "") in text, text
        await server.deploy(models.add_one(tmp_path), name="good")
        assert (await batching(server, "good"))[0] > 1


async def test_the_owners_word_does_not_outweigh_a_comparison(tmp_path: Path) -> None:
    """mode = "always" is refused if the comparison shows that rows mix; a handler is joined only
    with it."""
    always = '[batching]\nmode = "always"\n'
    handler = {
        "handler.py": b"def predict(inputs, ctx): return ctx.run(inputs)\n",
        "m.onnx": models.add_one(tmp_path).read_bytes(),
    }
    async with serving(tmp_path, prepare=False) as server:
        refused = await server.try_deploy(
            {"m.onnx": models.softmax_over_batch(tmp_path).read_bytes()},
            name="mixed",
            manifest=f"schema = 1\n{always}",
        )
        await server.deploy(handler, name="handled", manifest="schema = 1\n")
        single = await batching(server, "handled")
        await server.deploy(handler, name="handled", manifest=f"schema = 1\n{always}")
        joined = await batching(server, "handled")

    error = refused.json()["error"]
    assert '[batching] mode = "always" in function.toml, but output y of a row' in json.dumps(
        error, ensure_ascii=False
    ).replace('\\"', '"')
    assert single[0] == 1
    assert '[batching] mode = "always" in function.toml joins them' in single[1]
    assert joined[0] > 1
    assert "on by function.toml, not proven" in joined[1]  # perhaps measured on a busy machine


def age(database: Path) -> None:
    """Make all profiles those of a release whose comparison of five rows was its only test."""
    fields = ("proof", "model", "operator", "equal_axes", "compared", "refuted_at_runtime")
    paths = ", ".join(f"'$.{field}'" for field in fields)
    with sqlite3.connect(database) as connection:
        connection.execute(f"UPDATE profiles SET record = json_remove(record, {paths})")
        connection.execute(
            "UPDATE profiles SET record = json_set(record, '$.batchable', json('true'),"
            " '$.why_not', '', '$.batch_max', 32)"
        )
    connection.close()


async def test_functions_of_an_earlier_release_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profiles of an earlier release are replaced in the background after the first call; until
    then requests run one at a time."""
    monkeypatch.setattr(revalidation, "LOOK_S", 0.01)
    async with serving(tmp_path, prepare=False) as server:
        await server.deploy(models.add_one(tmp_path), name="good")
        await server.deploy(MIXING["DynamicQuantizeLinear"](tmp_path), name="mixed")
        await server.deploy(MIXING["Compress"](tmp_path), name="asleep")
        rows = (await batching(server, "good"))[0]
        database = server.server.store.settings.database
    age(database)

    async with serving(tmp_path, prepare=False, cpu_slots=4) as server:
        before = [await batching(server, name) for name in ("good", "mixed", "asleep")]
        for name in ("good", "mixed"):
            assert (await server.call(name, row(1))).status == 200

        def judged(name: str) -> bool:
            profile = server.server.store.catalog.resolve(name).profile
            return profile is not None and profile.proof > 0

        await until(lambda: judged("good") and judged("mixed"))
        await until(lambda: len(server.bound()) == 2)  # the trials have ended
        good, mixed = await batching(server, "good"), await batching(server, "mixed")
        said = await decisions(server, "mixed")
        assert not judged("asleep")

    assert before == [(1, "off: not analysed yet")] * 3
    assert (good[0] > 1, rows > 1) == (True, True)
    assert mixed[0] == 1
    assert "MatMulInteger" in mixed[1] or "DynamicQuantizeLinear" in mixed[1]
    assert f"batching by current rules: {mixed[1]}" in said


async def test_a_replica_of_another_link_version_is_replaced(tmp_path: Path) -> None:
    """A replica of another link version is released by a new server; calls are held until its
    successor answers."""
    with server_process(tmp_path / "data") as server:
        server.fnctl_json("deploy", str(models.add_one(tmp_path)), "--name", "f")
        async with server.session() as http, http.post("/fn/f", json=row(1)) as answer:
            assert answer.status == 200
        before = set(server.replica_pids("serve"))
        server.kill()
        for path in server.data.rglob(RECORD_FILE):
            path.write_text(json.dumps({**json.loads(path.read_text()), "link": 2}))
        server.start()

        async with server.session() as http, http.post("/fn/f", json=row(1)) as answer:
            assert answer.status == 200
        after = set(server.replica_pids("serve"))

    assert len(before) == len(after) == 1
    assert before.isdisjoint(after)
