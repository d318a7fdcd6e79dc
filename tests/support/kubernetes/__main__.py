"""A cluster by hand: `python -m tests.support.kubernetes [--nodes N] [--gpus N] [--claims]`.

Prints the variables of `fnctl serve` in this cluster, and runs until it is interrupted. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from tests.support.dial_in.places import free_port
from tests.support.kubernetes.double import IMAGE, NAMESPACE, Double, NodePlan
from tests.support.kubernetes.pace import REAL, Pace


def main() -> int:
    """Run a cluster."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.kubernetes")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0, help="of each node")
    parser.add_argument("--claims", action="store_true", help="GPUs by claims, not by a plugin")
    parser.add_argument("--real", action="store_true", help="as slow as a real cluster")
    parser.add_argument("--folder", type=Path, help="where its files are; must not be there")
    given = parser.parse_args()
    plans = [
        NodePlan(
            f"n{number}",
            plugin_gpus=0 if given.claims else given.gpus,
            claimed_gpus=given.gpus if given.claims else 0,
        )
        for number in range(1, given.nodes + 1)
    ]
    asyncio.run(_run(Double(plans, pace=REAL if given.real else Pace(), root=given.folder)))
    return 0


async def _run(double: Double) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with double:
        variables = {
            **double.environment,
            "FN_LINK_LISTEN": f"{double.address}:{free_port()}",
        }
        for name, value in variables.items():
            sys.stdout.write(f"export {name}={value}\n")
        sys.stdout.write(f"# namespace {NAMESPACE}, runtime image {IMAGE}\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    sys.exit(main())
