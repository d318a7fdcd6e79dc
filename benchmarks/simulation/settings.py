"""Settings of a simulated day."""

from __future__ import annotations

from dataclasses import dataclass

from admin.advice.load_model import Conditions


@dataclass(frozen=True, slots=True)
class Settings(Conditions):
    """One run with randomly drawn functions.

    `rate` is requests per second over all functions; `zipf` the exponent of their popularity.
    `spread`: how much functions differ in their times and memory, 0 for equal ones. Every n-th of
    them is a server, `servers` in total; `stream_s` is the median length of its exchanges,
    `server_start_s` that of its start.
    """

    functions: int = 50
    arrivals: str = "poisson"
    seed: int = 1
    policy: str = "fngate"
    rate: float = 0.25
    zipf: float = 1.0
    service_s: float = 0.2
    load_s: float = 2.0
    spread: float = 1.0
    memory_mib: float = 4096.0
    servers: int = 0
    stream_s: float = 30.0
    server_start_s: float = 90.0
