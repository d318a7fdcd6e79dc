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
    `server_start_s` that of its start. `closed` is the number of callers per function who call
    again after their answer and a pause; 0 for independent arrivals.

    A `mix` is a population of `mixes.MIXES` instead, "" for none. Its servers are parked, and wake
    in this part (`wake_part`) of the time of their loads, if that is not 0; they keep `residue_mib`
    of each device, and take `host_mib` of host memory at most.

    With several `hosts`, the devices are distributed over them and none is local. `rtt_ms` is the
    round trip to each, `link_mb_s` what its link transfers. A function's files have `files_mb` per
    MiB of its memory; `file_hosts` hosts have them from the start; a host keeps up to `cache_mb` of
    all files, 0 for no limit. `losses` is the number of times per hour that any host loses power,
    for `outage_s` on average. `blind`: placement is not told which files a host has.
    """

    functions: int = 50
    arrivals: str = "poisson"
    seed: int = 1
    mix: str = ""
    wake_part: float = 0.0
    residue_mib: float = 1_126.0
    host_mib: float = 524_288.0
    policy: str = "fngate"
    rate: float = 0.25
    zipf: float = 1.0
    closed: int = 0
    service_s: float = 0.2
    load_s: float = 2.0
    spread: float = 1.0
    memory_mib: float = 4096.0
    servers: int = 0
    stream_s: float = 30.0
    server_start_s: float = 90.0
    hosts: int = 1
    rtt_ms: float = 0.0
    link_mb_s: float = 100.0
    files_mb: float = 0.0
    file_hosts: int = 0
    cache_mb: float = 0.0
    losses: float = 0.0
    outage_s: float = 120.0
    blind: bool = False
