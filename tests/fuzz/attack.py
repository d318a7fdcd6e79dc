"""Coverage-guided attack on all subjects in turn: `make attack ATTACK="--seconds 1800"`.

Prints for each subject its inputs, what libFuzzer has covered, and what is wrong, and writes the
same to a file all the time. Exits with 1 if anything is wrong. `--keep` adds what was reached to
the corpus that the tests play, minimised; `--keep --seconds 0` does so after an attack.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from tests.fuzz.corpus import keep
from tests.fuzz.subject import Subject
from tests.fuzz.subjects import SUBJECTS

MODULE = "tests.fuzz.attacking"
NOTED_EVERY_S = 5.0
"""Seconds between two reports of a subject that is under attack."""
LEFT_MIN_S = 3
"""Seconds for which a process that has ended early is started again."""
STARTS_MAX = 20
ARTIFACTS = ("crash", "timeout", "oom", "leak")
"""Kinds of inputs that libFuzzer writes when it ends the process."""
_COVERED = re.compile(rb"cov: (\d+) ft: (\d+)")


@dataclass
class Report:
    """What is known of one subject. `edges` and `features` are libFuzzer's; `kept` inputs reach
    something of their own. `wrong`: a text by place, with the file of an input."""

    name: str
    inputs: int = 0
    edges: int = 0
    features: int = 0
    kept: int = 0
    wrong: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the report in a line, and a line for each thing that is wrong."""
        text = (
            f"{self.name:14} {self.inputs:9} inputs {self.edges:6} edges {self.features:6}"
            f" features {self.kept:5} kept {len(self.wrong):3} wrong"
        )
        shown = (f"    {place}: {one['text']}\n      {one['file']}" for place, one in self._wrong())
        return "\n".join([text, *shown])

    def _wrong(self) -> list[tuple[str, Any]]:
        return sorted(self.wrong.items())


class Attack:
    """One attack, whose files are in `folder`."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.reports: dict[str, Report] = {}
        self._folder = folder
        self._file = file
        self._lock = Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def stop(self) -> None:
        """End all processes; what they have noted is kept."""
        self._is_stopped = True
        for process in list(self._processes):
            process.kill()

    def run(self, subject: Subject, seconds: int) -> None:
        """Attack a subject, then judge what was kept, and print its line."""
        report = self.reports[subject.name] = Report(subject.name)
        end = time.monotonic() + seconds
        for _ in range(STARTS_MAX):
            left = int(end - time.monotonic())
            if left < LEFT_MIN_S or self._is_stopped:
                break
            self._play(report, left)
        if not self._is_stopped:
            self._play(report, 0)
        print(report.line(), flush=True)

    def _play(self, report: Report, seconds: int) -> None:
        command = [sys.executable, "-m", MODULE, report.name, str(self._folder), str(seconds)]
        with (self._folder / f"{report.name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._processes.add(process)
        while (code := _ended(process)) is None:
            self._note(report)
        self._processes.remove(process)
        self._note(report)
        if code and not self._is_stopped:
            report.wrong.setdefault(f"ended with {code}", self._last_words(report.name))

    def _last_words(self, name: str) -> dict[str, str]:
        """Return the end of a process's log, and the input that it has written, or its log."""
        log = self._folder / f"{name}.log"
        text = log.read_bytes()[-300:].decode("utf-8", "replace")
        folder = self._folder / "crashes" / name
        written = [path for kind in ARTIFACTS for path in folder.glob(f"{kind}-*")]
        return {"text": text, "file": str(written[-1] if written else log)}

    def _note(self, report: Report) -> None:
        """Read what a process has noted so far, and write all reports."""
        notes = self._folder / f"{report.name}.json"
        try:
            noted = json.loads(notes.read_text())
            report.inputs = noted["inputs"]
            report.wrong |= noted["found"]
        except (OSError, ValueError):
            pass  # not yet, or in this moment
        covered = _COVERED.findall((self._folder / f"{report.name}.log").read_bytes())
        if covered:
            report.edges, report.features = map(int, covered[-1])
        grown = self._folder / "corpus" / report.name
        report.kept = len(list(grown.iterdir())) if grown.exists() else 0
        with self._lock:
            text = json.dumps([asdict(one) for one in self.reports.values()], indent=1)
            self._file.write_text(text + "\n")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return the code of a process that ends within NOTED_EVERY_S, else None."""
    try:
        return process.wait(NOTED_EVERY_S)
    except subprocess.TimeoutExpired:
        return None


def main() -> int:
    """Attack the chosen subjects."""
    names = [one.name for one in SUBJECTS]
    parser = argparse.ArgumentParser(prog=MODULE, description=__doc__)
    parser.add_argument("--seconds", type=int, default=1800, help="of all subjects together")
    parser.add_argument("--target", nargs="+", choices=names, default=names)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--folder", type=Path, default=Path(".attack"), help="of what is found")
    parser.add_argument("--json", type=Path, default=Path("attack.json"), metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="add to the corpus of the tests")
    given = parser.parse_args()
    chosen = [one for one in SUBJECTS if one.name in given.target]
    attack = Attack(given.folder, given.json)
    if given.seconds:
        shutil.rmtree(given.folder, ignore_errors=True)
        given.folder.mkdir(parents=True)
        share = given.seconds * given.jobs // len(chosen)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with ThreadPoolExecutor(given.jobs) as pool:
            try:
                for done in [pool.submit(attack.run, one, share) for one in chosen]:
                    done.result()
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                attack.stop()
    for subject in chosen if given.keep else ():
        kept = keep(subject, given.folder / "corpus" / subject.name)
        print(f"{subject.name:14} {kept:6} bytes in the corpus")
    return int(any(one.wrong for one in attack.reports.values()))


if __name__ == "__main__":
    sys.exit(main())
