"""Hostile connections in numbers: `python -m tests.chaos.links TARGET COUNT`.

TARGET is a `Target` as JSON. Prints one JSON object: how many connections of each kind ended in
which way, and what the crowd that keeps the door waiting has seen.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from tests.chaos.links.attacks import AT_REPLICA, AT_SERVER, Target, attack
from tests.chaos.links.crowd import Crowd


def main() -> None:
    """Attack, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.links", description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--threads", type=int, default=24)
    parser.add_argument("--sources", type=int, default=1000, help="addresses of the attackers")
    parser.add_argument("--crowd", type=int, default=0, help="peers that keep the door waiting")
    parser.add_argument("--pace", type=float, default=0, help="connections a second, 0: no limit")
    given = parser.parse_args()
    target = Target.load(given.target)
    kinds = list(AT_SERVER if target.good else AT_REPLICA)
    tally: defaultdict[str, Counter[str]] = defaultdict(Counter)
    errors: Counter[str] = Counter()
    guard, stop = threading.Lock(), threading.Event()
    numbers = iter(range(given.count))

    def work(seed: int) -> None:
        chance = random.Random(seed)
        while True:
            with guard:
                number = next(numbers, None)
            if number is None:
                return
            if given.pace:
                stop.wait(max(0.0, began_s + number / given.pace - time.monotonic()))
            kind = kinds[number % len(kinds)]
            try:
                outcome = str(attack(target, kind, chance, given.sources))
            except Exception as error:  # noqa: BLE001 - counted, and shown
                outcome = f"error: {type(error).__name__}"
                errors[f"{kind}: {error!r}"[:300]] += 1
            with guard:
                tally[kind][outcome] += 1

    began_s = time.monotonic()
    threads = [threading.Thread(target=work, args=(given.seed + n,)) for n in range(given.threads)]
    crowd = Crowd(target, given.crowd, given.sources, random.Random(given.seed))
    for thread in threads:
        thread.start()
    if given.crowd:
        crowd.run(lambda: any(thread.is_alive() for thread in threads))
    for thread in threads:
        thread.join()
    print(  # noqa: T201 - the program's answer
        json.dumps(
            {
                "kinds": tally,
                "errors": errors,
                "seconds": time.monotonic() - began_s,
                "crowd": {
                    "kinds": crowd.kept,
                    "at once": crowd.most,
                    "closed within 0.5 s": crowd.closed_at_once,
                    "kept for at most": crowd.longest_s,
                    "entered": crowd.entered,
                },
            }
        )
    )


if __name__ == "__main__":
    main()
