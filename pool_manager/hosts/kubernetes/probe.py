"""A Pod that tries what NetworkPolicies must deny, and what replicas need. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from hosts.errors import shown
from hosts.kubernetes.objects import EnvVar, Pod
from hosts.kubernetes.objects import PodSpec as Spec

NAME: Final = "fngate-doctor"
CONTAINER: Final = "replica"
TRY_S: Final = 3.0
"""Seconds for one connection: a denied packet is dropped, mostly."""
LOG_BYTES: Final = 16 * 1024
SCRIPT: Final = """\
import json, os, socket, sys
from concurrent.futures import ThreadPoolExecutor
def attempt(target):
    try:
        socket.create_connection(target[1:], float(os.environ["TRY_S"])).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return type(error).__name__
    return "open"
targets = json.loads(os.environ["TARGETS"])
with ThreadPoolExecutor(8) as pool:
    print(json.dumps(dict(zip((t[0] for t in targets), pool.map(attempt, targets)))), flush=True)
"""
"""Prints what became of each connection, as a JSON object."""


class Target(NamedTuple):
    """Something that a replica may reach or not."""

    name: str
    host: str
    port: int
    is_needed: bool = False
    """Whether a replica has to reach it; otherwise nothing may be reached there."""
    is_known: bool = False
    """Whether something surely listens there, so that it is a proof if it cannot be reached."""


class Finding(NamedTuple):
    """What the Pod has found."""

    missing: Mapping[Target, str]
    """What it needs and does not reach, with what has become of the connection."""
    reached: tuple[Target, ...]
    """What it reaches and must not."""
    is_proven: bool
    """Whether it does not reach something that listens: policies are enforced."""


def probe_pod(replica: Pod, targets: Sequence[Target]) -> Pod:
    """Return the Pod of a replica with the program of a probe in it. It takes the labels of a
    replica, so that the same policies select it."""
    container = replica.spec.containers[0]
    tries = json.dumps([[one.name, one.host, one.port] for one in targets])
    program = msgspec.structs.replace(
        container,
        command=("python3", "-I", "-c", SCRIPT),
        args=(),
        env=(EnvVar(name="TARGETS", value=tries), EnvVar(name="TRY_S", value=str(TRY_S))),
    )
    spec: Spec = msgspec.structs.replace(replica.spec, containers=(program,))
    metadata = msgspec.structs.replace(replica.metadata, name=NAME)
    return msgspec.structs.replace(replica, metadata=metadata, spec=spec)


def found_by(log: bytes, targets: Sequence[Target]) -> Finding | None:
    """Return what a probe has printed, each line behind a timestamp; None if it has printed
    nothing of the kind."""
    for line in log.splitlines():
        try:
            said = msgspec.json.decode(line.partition(b" ")[2], type=dict[str, str])
        except (msgspec.DecodeError, RecursionError):
            continue
        needed = [one for one in targets if one.is_needed]
        is_open = {one: said.get(one.name) == "open" for one in targets}
        return Finding(
            {one: shown(said.get(one.name, "")) for one in needed if not is_open[one]},
            tuple(one for one in targets if not one.is_needed and is_open[one]),
            any(one.is_known and one.name in said and not is_open[one] for one in targets),
        )
    return None
