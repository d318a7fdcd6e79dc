"""Data folders written by earlier releases, stored as text, and the tool that makes them.

python -m tests.support.earlier_release COMMIT NAME

The tool runs the code of COMMIT in its own worktree, kills its server during a deploy and writes
`tests/integration/upgrades/NAME.json`: the database as SQL, the blobs in base64, the secret of a
key and the id of the unfinished operation. Nothing else of the machine is stored.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import chdir, closing
from pathlib import Path
from typing import Any

import aiohttp

from tests.support import models
from tests.support.caller import Caller
from tests.support.nouns import sha256
from tests.support.process_server import ServerProcess, server_process

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "integration" / "upgrades"
MAIN = (sys.executable, "-c", "from admin.cli.main import main; main()")
"""fnctl of the code in the working directory."""
HISTORY = ("cold_starts", "state_intervals", "arrivals", "device_use")
"""Tables stored empty because they hold one machine's times."""


def unpack(name: str, data: Path) -> dict[str, str]:
    """Restore the stored folder `name` into `data`; return its secret and operation id."""
    kept = json.loads((FOLDER / f"{name}.json").read_text())
    data.mkdir(mode=0o700)
    with closing(sqlite3.connect(data / "fngate.db")) as connection:
        connection.executescript("\n".join(kept["sql"]))
        connection.execute("PRAGMA journal_mode = WAL")
    for digest, content in kept["blobs"].items():
        path = data / "blobs" / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
        path.chmod(0o444)
    return {"secret": kept["secret"], "operation": kept["operation"]}


async def use(server: ServerProcess, folder: Path) -> dict[str, Any]:
    """Deploy two revisions of `add-one` and one of `fixed`, make a key, and kill the server during
    the deploy of `late`."""
    async with aiohttp.ClientSession() as session:
        caller = Caller(server.url, server.token, session)
        await caller.deploy(models.add_one(folder), name="add-one", idle_s=120, max=2)
        await caller.deploy(models.add_one(folder), name="add-one", batch_max=4)
        await caller.deploy(models.fixed_batch(folder), name="fixed")
        key = await caller.admin("POST", "/keys", {"scopes": ["invoke"], "note": "shop"})
        content = models.two_inputs(folder).read_bytes()
        file = {"path": "late.onnx", "size": len(content), "sha256": sha256(content)}
        await caller.admin("PUT", f"/blobs/{sha256(content)}", content)
        late = {"files": [file], "model": "late.onnx"}
        accepted = await caller.admin("POST", "/functions/late/revisions", late)
    server.kill()
    return {"secret": key.json()["secret"], "operation": accepted.json()["id"]}


def pack(data: Path) -> dict[str, Any]:
    """Return the database and the blobs of a stopped server's folder as text."""
    with closing(sqlite3.connect(data / "fngate.db")) as connection:
        for table in HISTORY:
            connection.execute(f"DELETE FROM {table}")
        running = "SELECT record FROM operations WHERE state = 'running'"
        assert len(connection.execute(running).fetchall()) == 1, "the deploy had ended: try again"
        sql = list(connection.iterdump())
    blobs = {path.name: path.read_bytes() for path in sorted(data.glob("blobs/??/*"))}
    return {"sql": sql, "blobs": {k: base64.b64encode(v).decode() for k, v in blobs.items()}}


def main(commit: str, name: str) -> None:
    """Write the data folder of `commit` as `name`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tree = folder / "tree"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            # The server and its replicas import from the working directory.
            environment = {"PYTHONPATH": str(tree)}
            with (
                chdir(tree),
                server_process(folder / "data", environment=environment, program=MAIN) as server,
            ):
                found = asyncio.run(use(server, folder))
            kept = {"commit": commit, **found, **pack(folder / "data")}
            text = json.dumps(kept, indent=1)
            assert os.fspath(folder) not in text
            assert os.fspath(ROOT) not in text
            (FOLDER / f"{name}.json").write_text(f"{text}\n")
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
