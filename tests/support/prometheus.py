"""A real Prometheus server that scrapes one fngate server, in a folder and on a port of its own."""

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
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: fngate
    static_configs: [{{targets: ["{target}"]}}]
"""
Series = dict[float, float]
"""Values by the time of their scrape."""


def program(name: str) -> str:
    """Where `prometheus` or `promtool` is. Skips the test where it is not, and fails it in CI."""
    found = shutil.which(name)
    if found is None and os.environ.get("FN_CI"):
        pytest.fail(f"{name} is missing: .ci/run installs it")
    if found is None:
        pytest.skip(f"{name} is missing: apt-get install prometheus")
    return found


class Prometheus:
    """One that runs. Everything is asked by its HTTP API."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self._url = url
        self._process = process
        self._log = log

    def get(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its API, which must be a success."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=ASK_S) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def until_ready(self) -> None:
        """Ask until it answers."""
        while self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready", timeout=ASK_S):
                    return
            except OSError:
                continue
        raise AssertionError(f"Prometheus has ended: {self.log()}")

    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(errors="replace")

    def series(self, metric: str) -> dict[tuple[str, ...], Series]:
        """Every sample of the last minutes as it was scraped, by the values of labels that are not
        the target's."""
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
        """How many have brought the ledger."""
        found = self.get("query", query="count_over_time(fngate_accepted_total[10m])")["result"]
        return int(sum(float(one["value"][1]) for one in found))

    def own(self, metric: str) -> float:
        """The sum of a metric of Prometheus itself."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=ASK_S) as answer:
            rows = answer.read().decode().splitlines()
        return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith(metric))

    def end(self) -> None:
        """Have it go."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)


@contextmanager
def scraping(folder: Path, url: str) -> Iterator[Prometheus]:
    """Prometheus with its data in `folder`, over the server at `url` and our rules."""
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
