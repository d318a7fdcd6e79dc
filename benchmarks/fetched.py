"""A model's file that a replica fetches by digest through the door, beside `scp` of the same file.

    python -m benchmarks.fetched [--rounds 9] [--mb 100]

Both over loopback, in turns. The fetch is that of a replica in a process of its own, from its first
connection until the file has its name; the door checks certificates, the fetch the SHA-256. `scp`
is the whole program, whose authentication is a part of it; it checks nothing at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import FetchedFile, replica_name
from runtime_image.link.credentials import Credentials
from runtime_image.replica.fetching import Fetcher
from tests.support.link_door import Scene
from tests.support.sshd import SFTP, Sshd

ID = "aaaa0001"
DIAL_S = 5.0
FETCH = "import sys; from benchmarks.fetched import fetch; fetch(sys.stdin.read())"


def fetch(given: str) -> None:
    """Fetch what the parent names, and print the milliseconds that it took."""
    data = json.loads(given)
    credentials = Credentials(data["authority"])
    credentials.replace(data["identity"])
    dial = partial(credentials.dial, TlsAddress.parse(data["server"]), DIAL_S)
    print(Fetcher(dial, Path(data["folder"])).fetch(data["files"]).ms)


def copied_ms(sshd: Sshd, source: Path, target: Path) -> float:
    """Copy a file by scp."""
    options = ("-q", "-B", "-i", str(sshd.identity), "-P", str(sshd.port))
    known = ("-o", f"UserKnownHostsFile={sshd.known_hosts}")
    began = time.perf_counter()
    to = f"{sshd.user}@{sshd.host}:{target}"
    subprocess.run(["scp", *options, *known, str(source), to], check=True, capture_output=True)
    return (time.perf_counter() - began) * 1e3


async def measure(rounds: int, size: int, folder: Path) -> dict[str, list[float]]:
    """Return the milliseconds of each round, by what was measured."""
    source = folder / "source"
    source.write_bytes(os.urandom(size))
    sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
    sshd = Sshd(folder / "sshd")
    await asyncio.to_thread(sshd.start, SFTP)
    taken: dict[str, list[float]] = {"fetch": [], "scp": []}
    try:
        async with Scene(folder) as scene:
            scene.admit(ID, was_enrolled=True, files={sha256: source})
            await _rounds(scene, sshd, source, size, sha256, rounds, taken)
    finally:
        sshd.stop()
    return taken


async def _rounds(  # noqa: PLR0913 - what both are measured with
    scene: Scene,
    sshd: Sshd,
    source: Path,
    size: int,
    sha256: str,
    rounds: int,
    taken: dict[str, list[float]],
) -> None:
    folder = source.parent
    issued = scene.authority.issue(replica_name(ID))
    file: FetchedFile = {"path": "model", "size": size, "sha256": sha256}
    given: dict[str, Any] = {
        "authority": scene.authority.pem,
        "identity": {"certificate": issued.certificate, "key": issued.key},
        "server": str(scene.door.address),
        "files": [file],
    }
    for number in range(rounds):
        model, copy = folder / f"model-{number}", folder / "copy"
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", FETCH],
            input=json.dumps({**given, "folder": str(model)}),
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        )
        taken["fetch"].append(float(done.stdout))
        (model / "model").unlink()
        taken["scp"].append(await asyncio.to_thread(copied_ms, sshd, source, copy))
        copy.unlink()


def main() -> None:
    """Measure, and print both with their ratio: median, and least to greatest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fetched", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--mb", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fn-") as name:
        taken = asyncio.run(measure(given.rounds, given.mb * 10**6, Path(name)))
    ratios = [a / b for a, b in zip(taken["fetch"], taken["scp"], strict=True)]
    for name, values in (*taken.items(), ("ratio", ratios)):
        unit = "" if name == "ratio" else " ms"
        low, high, middle = min(values), max(values), statistics.median(values)
        print(f"{name}: {middle:.3g}{unit} ({low:.3g} to {high:.3g})")


if __name__ == "__main__":
    main()
