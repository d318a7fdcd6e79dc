"""Tests of the ready-made functions over HTTP: deployed, called cold, batched."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest

from functions.commands import train as commands
from functions.digits import train as digits
from functions.filetype import train as filetype
from tests.support.process_server import server_process

CALLS = {
    digits.FOLDER: ("two.png", "image/png", "2"),
    filetype.FOLDER: ("written/table.js", "application/octet-stream", "javascript"),
    commands.FOLDER: ("left.wav", "audio/wav", "left"),
}
"""For each folder a sample besides the manifest's, its content type, and the best label."""
BURST = 64


@pytest.mark.slow
@pytest.mark.parametrize("folder", CALLS, ids=lambda folder: folder.name)
async def test_a_burst_of_files_is_answered_in_batches(tmp_path: Path, folder: Path) -> None:
    """A burst of calls of a cold function is answered right, in batches as far as the profile
    allows.

    If one row keeps the machine as busy as several do, the measured batch size is 1.
    """
    file, content_type, label = CALLS[folder]
    rows: Counter[int] = Counter()
    with server_process(tmp_path / "data") as server:
        deployed = server.fnctl_json("deploy", str(folder))["result"]
        profile = deployed["profile"]
        assert profile["batchable"], profile["why_not"]
        async with server.session() as http:

            async def call() -> None:
                async with http.post(
                    f"/fn/{folder.name}",
                    data=(folder / file).read_bytes(),
                    headers={"Content-Type": content_type},
                ) as answer:
                    assert answer.status == 200, await answer.text()
                    assert (await answer.json())["top"][0][0]["label"] == label
                    desc = re.search(r'desc="(\d+) rows"', answer.headers["Server-Timing"])
                    rows[int(desc[1]) if desc else 1] += 1

            async with asyncio.TaskGroup() as group:
                for _ in range(BURST):
                    group.create_task(call())

    assert sum(rows.values()) == BURST
    assert (max(rows) > 1) == (profile["batch_max"] > 1)
