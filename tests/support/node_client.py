"""OpenAI's client for Node, installed from the configured index."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from admin.ui import build
from tests.support.engine import refuse

PACKAGE = "openai@6.49.0"
SOURCE = Path(__file__).parent / "node" / "openai.mjs"
LIMIT_S = 100.0


class NodeClient:
    """The client in `folder`. Without Node or an index the test is skipped; in CI it fails."""

    def __init__(self, folder: Path) -> None:
        found = build.find_node() or build.node_in(Path(sys.prefix) / "node" / build.NODE_MODULE)
        if found is None:
            refuse("there is no Node: make ui fetches one")
        self._node = found.node
        self._program = folder / SOURCE.name
        shutil.copy(SOURCE, self._program)
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]
        try:
            self._run([*found.npm, "install", *options, "--prefix", str(folder), PACKAGE])
        except subprocess.CalledProcessError as error:
            refuse(f"{PACKAGE} could not be installed: {error.stderr[-500:]}")

    def results(self, base: str, key: str, model: str) -> dict[str, Any]:
        """Make all calls; return their results by name."""
        made: dict[str, Any] = json.loads(
            self._run([*self._node, str(self._program), base, key, model])
        )
        return made

    def _run(self, command: list[str]) -> str:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
        return done.stdout
