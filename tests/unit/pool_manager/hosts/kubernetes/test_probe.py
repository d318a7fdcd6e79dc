"""Tests of the Pod that tries what replicas must not reach."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from hosts.kubernetes.objects import Container, Metadata, Pod, PodSpec, SecurityContext
from pool_manager.hosts.kubernetes.probe import SCRIPT, Target, found_by, probe_pod

DOOR = Target("the door", "10.0.0.1", 7444, is_needed=True)
API = Target("the API server", "10.96.0.1", 443, is_known=True)
METADATA = Target("metadata", "169.254.169.254", 80)
TARGETS = (DOOR, API, METADATA)


def test_it_is_the_pod_of_a_replica_with_another_program() -> None:
    """Its labels, user and limits stay, so that the same rules are for both."""
    locked = SecurityContext(read_only_root_filesystem=True)
    replica = Pod(
        metadata=Metadata(name="fn-x", labels={"fngate.dev/replica": "x"}),
        spec=PodSpec(
            restart_policy="Never",
            containers=(
                Container(name="replica", image="i", args=("/run",), security_context=locked),
            ),
        ),
    )

    pod = probe_pod(replica, TARGETS)

    [container] = pod.spec.containers
    assert (pod.metadata.name, pod.metadata.labels) == ("fngate-doctor", replica.metadata.labels)
    assert (container.args, container.security_context) == ((), locked)
    assert container.command[:3] == ("python3", "-I", "-c")
    assert pod.spec.restart_policy == "Never"


def test_the_program_tries_each_target() -> None:
    """It tells a port that listens from one that does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as other:
            closed = other.getsockname()[1]
        targets = [["a", "127.0.0.1", port], ["b", "127.0.0.1", closed], ["c", "no.invalid", 1]]
        done = subprocess.run(
            [sys.executable, "-I", "-c", SCRIPT],
            env={"TARGETS": json.dumps(targets), "TRY_S": "2"},
            capture_output=True,
            check=True,
        )

    said = json.loads(done.stdout)
    assert (said["a"], said["b"]) == ("open", "refused")
    assert said["c"] not in ("open", "refused")


@pytest.mark.parametrize(
    ("said", "missing", "reached", "is_proven"),
    [
        (
            {"the door": "open", "the API server": "TimeoutError", "metadata": "OSError"},
            [],
            [],
            True,
        ),
        (
            {"the door": "open", "the API server": "open", "metadata": "open"},
            [],
            [API, METADATA],
            False,
        ),
        ({"the door": "TimeoutError", "metadata": "refused"}, [DOOR], [], False),
        ({}, [DOOR], [], False),
    ],
)
def test_what_a_pod_has_said_is_compared(
    said: dict[str, str], missing: list[Target], reached: list[Target], is_proven: bool
) -> None:
    """A port that surely listens and cannot be reached proves that policies are enforced."""
    log = b"2026-11-30T15:00:00Z " + json.dumps(said).encode()

    found = found_by(b"2026-11-30T15:00:00Z a warning\n" + log, TARGETS)

    assert found is not None
    assert (list(found.missing), list(found.reached), found.is_proven) == (
        missing,
        reached,
        is_proven,
    )


@pytest.mark.parametrize(
    "log", [b"", b"x", b"t []", b"t {1}", b"t " + b"[" * 100_000, b"\xff \xff"]
)
def test_another_output_is_none(log: bytes) -> None:
    """Whatever an image prints."""
    assert found_by(log, TARGETS) is None
