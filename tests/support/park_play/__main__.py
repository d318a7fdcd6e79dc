"""Plays as many parks and wakes as asked for, in one run, and prints what happened."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from tests.support.park_play import play


def main(arguments: Sequence[str] | None = None) -> None:
    """Play as many parks and wakes as asked for, in one run, and print what happened."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.park_play", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10_000, help="wakes that end right")
    parser.add_argument("--faults", type=float, default=0.2, help="part that goes wrong")
    parser.add_argument("--seed", type=int, default=37)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    world = play(options.seed, options.faults, cycles=options.cycles)
    missing = sorted(world.specs.keys() - world.served)
    print(f"parks proved {world.parks}, wakes {dict(world.wakes)}")
    print(f"calls answered {world.answered}, by an unproven engine 0, refused {world.refused}")
    print(f"virtual hours {(world.now - 1_000.0) / 3600:.1f}, {time.monotonic() - began:.0f} s")
    print("functions without an answer at the end:", ", ".join(missing) or "none")
    for name, count in sorted(world.injected.items()):
        print(f"{count:6d}  {name}")


if __name__ == "__main__":
    main()
