"""A real Prometheus server that scrapes one fngate server, with its own folder and port."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.promql import RULES

END_S = 60.0
ASK_S = 10.0
CONFIG = """\
global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: fngate
    static_configs: [{{targets: ["{target}"]}}]
"""
Series = dict[float, float]
"""Values by scrape time."""


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Without it the test is skipped, or fails in
    CI."""
    found = shutil.which(name)
    if found is None and os.environ.get("FN_CI"):
        pytest.fail(f"{name} is missing: .ci/run installs it")
    if found is None:
        pytest.skip(f"{name} is missing: apt-get install prometheus")
    return found


class Prometheus:
    """A running Prometheus, queried through its HTTP API."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self._url = url
        self._process = process
        self._log = log

    def get(self, path: str, **parameters: str) -> Any:
        """Return the `data` of an API answer, which must be a success."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=ASK_S) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def until_ready(self) -> None:
        """Poll until it answers."""
        while self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready", timeout=ASK_S):
                    return
            except OSError:
                continue
        raise AssertionError(f"Prometheus has ended: {self.log()}")

    def log(self) -> str:
        """Return its log."""
        return self._log.read_text(errors="replace")

    def series(self, metric: str) -> dict[tuple[str, ...], Series]:
        """Return every sample of the last minutes as scraped, by the values of the labels that are
        not the target's."""
        found = self.get("query", query=f"{metric}[10m]")["result"]
        return {
            tuple(
                value
                for name, value in sorted(one["metric"].items())
                if name not in ("__name__", "instance", "job")
            ): {float(at): float(value) for at, value in one["values"]}
            for one in found
        }

    def scrapes(self) -> int:
        """Return the number of scrapes that returned the ledger."""
        found = self.get("query", query="count_over_time(fngate_accepted_total[10m])")["result"]
        return int(sum(float(one["value"][1]) for one in found))

    def own(self, metric: str) -> float:
        """Return the sum of one of Prometheus' own metrics."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=ASK_S) as answer:
            rows = answer.read().decode().splitlines()
        return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith(metric))

    def end(self) -> None:
        """Terminate it."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)


@contextmanager
def scraping(folder: Path, url: str) -> Iterator[Prometheus]:
    """Run Prometheus with data in `folder`, scraping the server at `url`, with the project's
    rules."""
    command = program("prometheus")
    folder.mkdir()
    target = urllib.parse.urlsplit(url).netloc
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(rules=RULES, target=target))
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                command,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    prometheus = Prometheus(f"http://{address}", process, log)
    try:
        prometheus.until_ready()
        yield prometheus
    finally:
        prometheus.end()
