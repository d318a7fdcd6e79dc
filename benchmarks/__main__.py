"""`python -m benchmarks [NAME...]`: run benchmarks, print their tables; `make bench` runs all."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from benchmarks.measuring.report import Part
from benchmarks.measuring.setting import MODELS, ROUNDS, LeftOut, Setting, about
from benchmarks.suite import NAMES


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the given benchmarks. All names are checked before the first measurement."""
    given = _parser().parse_args(arguments)
    # On SIGTERM, exit in an orderly way, which stops the servers started here.
    signal.signal(signal.SIGTERM, _end)
    setting = Setting(
        rounds=1 if given.quick and given.rounds is None else given.rounds or ROUNDS,
        quick=given.quick,
        pinned=not given.no_pin,
        models=given.models,
    )
    report: dict[str, Any] = {
        **about(),
        "rounds": setting.rounds,
        "quick": setting.quick,
        "pinned": setting.pinned,
        "benchmarks": [],
    }
    for name in given.names or NAMES:
        report["benchmarks"].append(_run(name, setting))
        if given.json:
            # After each benchmark: an interrupted run of an hour leaves the results so far.
            given.json.write_text(json.dumps(report, indent=1) + "\n")


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - signal's
    sys.exit(128 + number)


def _run(name: str, setting: Setting) -> dict[str, Any]:
    """Run one benchmark; print its tables and return them as plain data."""
    module = importlib.import_module(f"benchmarks.suite.{name}")
    headline = str(module.__doc__).strip()
    print(f"## {name}\n\n{headline}\n", flush=True)
    began = time.monotonic()
    shown: dict[str, Any] = {"name": name, "headline": headline}
    try:
        parts: list[Part] = module.measure(setting)
    except LeftOut as reason:
        print(f"left out: {reason}\n", flush=True)
        return {**shown, "left_out": str(reason)}
    for part in parts:
        print("\n".join(part.lines()) + "\n")
    sys.stdout.flush()
    taken_s = round(time.monotonic() - began, 1)
    return {**shown, "seconds": taken_s, "parts": [part.to_json() for part in parts]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", type=_name, help=f"{', '.join(NAMES)}; default: all")
    add("--rounds", type=_rounds, help=f"repetitions of everything ({ROUNDS})")
    add("--json", type=Path, metavar="FILE", help="also write every figure to FILE")
    add("--quick", action="store_true", help="one round, small models: only checks that it runs")
    add("--no-pin", action="store_true", help="do not pin processes to cores")
    add("--models", type=Path, default=MODELS, help="folder of the generated models (%(default)s)")
    return parser


def _name(text: str) -> str:
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(NAMES)}, got {text!r}")
    return text


def _rounds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"expected 1 to 1000, got {text!r}")
    return int(text)


if __name__ == "__main__":
    main()
