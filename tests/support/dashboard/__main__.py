"""Simulated server for viewing the dashboard.

Usage: `python -m tests.support.dashboard --functions 1000 --rate 50`.
"""

from __future__ import annotations

import argparse
import asyncio
import signal

from tests.support.dashboard.server import KEY, Player, serving_dashboard


async def serve(functions: int, devices: int, hosts: int, rate: float, port: int) -> None:
    """Serve until a signal arrives."""
    loop = asyncio.get_running_loop()
    async with (
        serving_dashboard(functions, devices, port, hosts) as dashboard,
        asyncio.TaskGroup() as group,
    ):
        print(f"{dashboard.url}/ui/#key={KEY}", flush=True)  # noqa: T201 - the URL for the user
        playing = group.create_task(Player(dashboard, rate).play())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, playing.cancel)


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.dashboard")
    parser.add_argument("--functions", type=int, default=40)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=0, help="beside this machine")
    parser.add_argument("--rate", type=float, default=5.0, help="events a second")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    asyncio.run(serve(given.functions, given.devices, given.hosts, given.rate, given.port))


main()
