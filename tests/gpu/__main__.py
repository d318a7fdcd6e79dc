"""Verify every promise about GPUs on this machine: `python -m tests.gpu` or `make gpu`.

Needs an NVIDIA GPU and its driver, no network, and at most eight minutes. Exit code 0 if every
check that could run holds, 1 if one fails, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from runtime_image.contract.gpus import NoDriver
from tests.gpu import checks, parking, several
from tests.gpu.box import Box, running
from tests.gpu.machine import Machine, cores, find
from tests.gpu.outcome import Check, NotTried, Outcome, markdown

CHECKS = (*checks.CHECKS, *parking.CHECKS, *several.CHECKS)
LIMIT_S = 480.0
CLOSING_S = 40.0
"""Seconds reserved for stopping the server and writing the report."""
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def options() -> argparse.Namespace:
    """Parse the command line."""
    names = [check.name for check in CHECKS]
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--check", action="append", choices=names, help="default: all")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="time limit for all checks")
    parser.add_argument("--out", type=Path, help="report file (default: in benchmarks/results)")
    return parser.parse_args()


def outcomes(
    machine: Machine,
    folder: Path,
    chosen: Sequence[Check],
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome]:
    """Run the checks in order, on one server per kind of settings."""
    until_s = clock() + limit_s - CLOSING_S
    with ExitStack() as stack:
        box: Box | None = None
        kind: tuple[int, Mapping[str, str]] | None = None
        for number, check in enumerate(chosen):
            if check.cards > len(machine.gpus):
                reason = f"it needs {check.cards} GPUs, this machine has {len(machine.gpus)}"
                yield Outcome(check.name, check.promise, "not tried", reason, 0.0)
                continue
            if (check.cards, check.settings) != kind:
                stack.close()
                kind = check.cards, check.settings
                server = running(
                    machine, folder / f"server-{number}", check.cards, **check.settings
                )
                box = stack.enter_context(server)
            assert box is not None
            yield _outcome(check, box, until_s, clock)


def _outcome(check: Check, box: Box, until_s: float, clock: Callable[[], float]) -> Outcome:
    began = clock()
    try:
        if began >= until_s:
            raise NotTried("no time was left")
        with _alarm(until_s - began):
            figure, verdict = check.run(box), "holds"
    except NotTried as error:
        figure, verdict = str(error), "not tried"
    except Exception as error:  # noqa: BLE001 - a failed check must not hide the others
        figure, verdict = f"{type(error).__name__}: {error}"[:1500], "fails"
    return Outcome(check.name, check.promise, verdict, figure, clock() - began)  # type: ignore[arg-type]


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this thread after `seconds`, even during a blocking call
    (setitimer(2))."""

    def ring(_number: int, _frame: object) -> None:
        raise TimeoutError("the time of all checks together is over")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    """Run the checks, print and write the report, return the exit code."""
    given = options()
    with tempfile.TemporaryDirectory(prefix="fn-gpu-") as name:
        folder = Path(name)
        try:
            machine = find(folder)
        except (NoDriver, NotTried) as error:
            print(f"there is no GPU to check: {error}", file=sys.stderr)
            return 2
        chosen = [check for check in CHECKS if not given.check or check.name in given.check]
        found = []
        for outcome in outcomes(machine, folder, chosen, given.limit_s):
            print(outcome.line(), flush=True)
            found.append(outcome)
    about = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": str(machine.gpu.name),
        "driver": machine.driver,
        "python": platform.python_version(),
        "cores": str(cores()),
        **{key: str(value) for key, value in machine.libraries.items()},
    }
    path = given.out or RESULTS / f"{about['date']}-gpu.md"
    path.write_text(markdown(about, found, "python -m tests.gpu"))
    print(f"written: {path}")
    return int(any(outcome.verdict == "fails" for outcome in found))


if __name__ == "__main__":
    sys.exit(main())
