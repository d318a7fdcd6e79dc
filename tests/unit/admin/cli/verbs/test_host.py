"""Tests of fnctl host."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.verbs import host
from tests.support.admin_api import AdminApi, Canned

HOSTS = "/admin/v1/hosts"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0"
ROW: dict[str, Any] = {
    "name": "gpu2",
    "address": "nn@gpu2",
    "state": "up",
    "reason": "",
    "since_s": 1.0,
    "labels": {"host": "gpu2", "zone": "a"},
    "driver": "docker",
    "engine_version": "24.0.7",
    "rtt_ms": 0.42,
    "agent": "",
    "cpu_slots": 8,
    "gpus": 2,
    "replicas": 3,
    "disk_free_mib": 2048,
    "cached_files": 4,
    "cached_mib": 1024,
    "images": 2,
    "clock_offset_s": -0.25,
    "transfer": "digits 40 %",
}
SETTINGS = {
    "kind": "ssh",
    "host_key": "",
    "identity": "",
    "engine": "/var/run/docker.sock",
    "files_mib": 51_200,
}
DETAIL = {**ROW, "settings": SETTINGS}
LOCAL = {**ROW, "name": "local", "address": "", "rtt_ms": None, "labels": {}, "transfer": ""}
CHECKS = [
    {"level": "ok", "name": "docker", "found": "24.0", "todo": ""},
    {"level": "fail", "name": "forwarding", "found": "refused", "todo": "AllowTcpForwarding yes"},
]


def test_a_host_is_added_with_its_options(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Only given options are sent, and the checks that passed are counted."""
    pinned = {**DETAIL, "settings": {**SETTINGS, "host_key": KEY}, "checks": CHECKS[:1]}
    api.on("POST", HOSTS, Canned(pinned, 201))

    given = ["--label", "zone=a", "--files-gib", "2", "--host-key", f"gpu2 {KEY} comment"]
    result = fnctl("host", "add", "nn@gpu2", *given)

    assert api.requests[0].json == {
        "kind": "ssh",
        "address": "nn@gpu2",
        "labels": {"zone": "a"},
        "files_mib": 2048,
        "host_key": KEY,
    }
    assert result.stdout == (
        f"gpu2 is added (nn@gpu2, 1 checks passed)\n  its key is pinned: {KEY}\n"
    )
    assert "next: fnctl host show gpu2" in result.stderr


def test_the_error_of_an_unknown_key_names_the_option(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The hint is the command with the option that pins the key."""
    problem = {
        "code": "host_refused",
        "title": "The host was refused",
        "detail": "not known",
        "host_key": KEY,
    }
    api.on("POST", HOSTS, Canned({**problem, "hint": "ssh gpu2"}, 422))

    result = fnctl("host", "add", "gpu2")

    assert result.exit_code == 1
    assert (
        "next: if that is its key, add --accept-host-key to this command; or: ssh gpu2"
        in result.stderr
    )


def test_a_passed_check_with_a_remedy_is_printed(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The line that makes more of the host usable is shown where the host is added."""
    cards = {"level": "ok", "name": "NVIDIA", "found": "2 cards", "todo": "apt-get install driver"}
    api.on("POST", HOSTS, Canned({**DETAIL, "checks": [CHECKS[0], cards]}, 201))

    assert fnctl("host", "add", "nn@gpu2").stdout == (
        "gpu2 is added (nn@gpu2, 2 checks passed)\n"
        "  NVIDIA: 2 cards\n    -> apt-get install driver\n"
    )


def test_failed_checks_are_printed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """All checks are shown as doctor does, and the remedy is the hint."""
    problem = {
        "code": "host_refused",
        "title": "The host was refused",
        "detail": "cannot run replicas",
    }
    api.on("POST", HOSTS, Canned({**problem, "checks": CHECKS, "hint": "change it"}, 422))

    result = fnctl("host", "add", "gpu2")

    assert result.exit_code == 1
    assert "fail  forwarding  refused" in result.stderr
    assert "-> AllowTcpForwarding yes" in result.stderr
    assert "next: change it" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["add", "gpu2", "--label", "zone"],
        ["add", "gpu2", "--label", "zone-"],
        ["add", "gpu2", "--label", "zone=a", "--label", "zone=b"],
        ["add", "gpu2", "--host-key", ""],
        ["add", "gpu2", "--host-key", "", "--accept-host-key"],
        ["add", "gpu2", "--files-gib", "99999999999999999999"],
        ["label", "gpu2", "zone="],
        ["add", "gpu2", "--host-key", KEY, "--accept-host-key"],
        ["set", "gpu2"],
    ],
)
def test_wrong_usage(fnctl: Callable[..., Result], words: list[str]) -> None:
    """Options that contradict each other, or none, send no request."""
    assert fnctl("host", *words).exit_code == 2


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (f"{KEY} nn@ssh-box", KEY),
        (f"ssh-box {KEY}", KEY),
        (f"@cert-authority * {KEY} x", KEY),
        (KEY, KEY),
        ("bogus", "bogus"),
        ("", ""),
    ],
)
def test_a_key_is_taken_out_of_its_line(
    api: AdminApi, fnctl: Callable[..., Result], given: str, sent: str
) -> None:
    """The line may be of a .pub file, of known_hosts or of ssh-keyscan, for a host of any name; ''
    takes the pin away."""
    api.on("PATCH", f"{HOSTS}/gpu2", Canned(DETAIL))

    assert fnctl("host", "set", "gpu2", "--host-key", given, "--identity-file", "").exit_code == 0

    assert api.requests[0].json == {"host_key": sent, "identity": ""}


def test_hosts_are_listed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """One line per host, then what is wrong or under way."""
    away = {**ROW, "name": "gpu3", "state": "unreachable", "reason": "timed out", "transfer": ""}
    api.on("GET", HOSTS, Canned({"items": [LOCAL, ROW, away], "next": None}))

    lines = fnctl("host", "ls").stdout.splitlines()

    assert lines[0].split() == [
        "NAME",
        "ADDRESS",
        "STATE",
        "RTT",
        "CPU",
        "GPUS",
        "REPLICAS",
        "FREE",
        "LABELS",
    ]
    assert lines[1].split()[:4] == ["local", "-", "up", "-"]
    assert lines[2].split() == [
        "gpu2",
        "nn@gpu2",
        "up",
        "0.42",
        "ms",
        "8",
        "2",
        "3",
        "2.0",
        "GiB",
        "zone=a",
    ]
    assert lines[4:] == ["gpu2: digits 40 %", "gpu3: timed out"]
    assert json.loads(fnctl("host", "ls", "--json").stdout)["items"][1] == ROW


def test_a_host_is_shown(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The fields that are known are shown; a host without contact has a hint at doctor."""
    away = {**DETAIL, "state": "unreachable", "reason": "timed out", "labels": {"host": "gpu2"}}
    api.on("GET", f"{HOSTS}/gpu2", Canned({**away, "disk_free_mib": 0}))

    result = fnctl("host", "show", "gpu2")

    shown = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert shown["state"][:2] == ["unreachable", "for"]
    assert shown["files"] == ["4", "files,", "1.0", "GiB", "of", "50.0", "GiB"]
    assert shown["clock"] == ["-0.250", "s"]
    assert shown["disk"] == ["0", "B", "free"]
    assert "labels" not in shown
    assert result.stderr == "next: fnctl doctor --host gpu2\n"


def test_a_host_is_drained_and_labelled(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Each change is one PATCH; KEY- removes a label."""
    api.on("PATCH", f"{HOSTS}/gpu2", *[Canned(DETAIL)] * 4)

    assert fnctl("host", "drain", "gpu2").stdout == "gpu2 is draining, 3 replicas left\n"
    assert fnctl("host", "drain", "gpu2", "--undo").stdout == "gpu2 takes replicas again\n"
    assert fnctl("host", "label", "gpu2", "zone=b", "disk-").stdout == "gpu2: zone=a\n"
    assert fnctl("host", "set", "gpu2", "--gpus", "none").exit_code == 0

    assert [one.json for one in api.requests] == [
        {"draining": True},
        {"draining": False},
        {"labels": {"zone": "b", "disk": None}},
        {"gpus": "none"},
    ]


def test_a_host_that_is_away_drains_later(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Its replicas cannot be stopped: the text does not say that it drains."""
    away = {**DETAIL, "state": "unreachable", "settings": {**SETTINGS, "draining": True}}
    api.on("PATCH", f"{HOSTS}/gpu2", Canned(away), Canned(away))
    api.on("GET", f"{HOSTS}/gpu2", Canned({**away, "since_s": 0}))

    drained, undone = (fnctl("host", "drain", "gpu2", *more).stdout for more in ([], ["--undo"]))

    assert drained == "gpu2 is unreachable; it drains when it is up\n"
    assert undone == "gpu2 is unreachable; it takes replicas when it is up\n"
    shown = fnctl("host", "show", "gpu2").stdout
    assert "state       unreachable, it drains when it is up\n" in shown


def test_a_removal_waits_for_the_replicas(
    api: AdminApi, fnctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host is asked for until it is unknown."""
    monkeypatch.setattr(host, "POLL_S", 0.0)
    api.on("DELETE", f"{HOSTS}/gpu2", Canned({"removed": None, "replicas": 3}, 202))
    unknown = Canned({"code": "unknown", "title": "Unknown", "detail": "no host"}, 404)
    api.on("GET", f"{HOSTS}/gpu2", Canned({**DETAIL, "replicas": 1}), unknown)

    result = fnctl("host", "rm", "gpu2")

    assert result.stdout == "gpu2 is removed\n"
    waits = [line for line in result.stderr.splitlines() if line.startswith("waiting")]
    assert [line.split(" of")[0] for line in waits] == [
        "waiting for 3 replicas",
        "waiting for 1 replica",
    ]


def test_a_removal_by_force_sends_the_option(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """`--force` is sent; without a wait a drain is only begun."""
    api.on(
        "DELETE",
        f"{HOSTS}/gpu2",
        Canned({"removed": "gpu2", "replicas": 0}),
        Canned({"removed": None, "replicas": 3}, 202),
    )

    assert fnctl("host", "rm", "gpu2", "--force").stdout == "gpu2 is removed\n"
    assert fnctl("host", "rm", "gpu2", "--no-wait").stdout == "gpu2 is draining\n"
    assert [one.query for one in api.requests] == [{"force": "true"}, {}]


CLUSTER = {
    **ROW,
    "name": "k",
    "address": "kubernetes",
    "driver": "kubernetes",
    "transfer": "",
    "settings": {
        "kind": "kubernetes",
        "image": "registry.example/fn:1",
        "node_selector": {"pool": "gpu"},
        "cpu_slots": 4,
        "devices": "claims",
        "device_class": "gpu.nvidia.com",
        "tolerations": [
            {"key": "nvidia.com/gpu"},
            {"key": "team", "operator": "Equal", "value": "a"},
        ],
        "priority_class": "fngate-serving",
    },
    "checks": CHECKS[:1],
}


def test_a_cluster_is_added_by_its_name(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Only given options are sent, each in its form."""
    api.on("POST", HOSTS, Canned(CLUSTER, 201))

    result = fnctl(
        *("host", "add", "k", "--kubernetes", "--image", "registry.example/fn:1"),
        *("--cpu-slots", "4", "--node-selector", "pool=gpu", "--node-selector", "empty="),
        *("--tolerate", "nvidia.com/gpu", "--tolerate", "team=a:NoSchedule"),
        *("--devices", "claims", "--pull-secret", "registry", "--label", "zone=a"),
    )

    assert api.requests[0].json == {
        "kind": "kubernetes",
        "name": "k",
        "image": "registry.example/fn:1",
        "labels": {"zone": "a"},
        "cpu_slots": 4,
        "node_selector": {"pool": "gpu", "empty": ""},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "value": "", "effect": ""},
            {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        ],
        "devices": "claims",
        "pull_secrets": ["registry"],
    }
    assert result.stdout == "k is added (kubernetes, 1 checks passed)\n"


def test_a_cluster_is_shown_with_its_settings(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """As they were given; no files, images or keys."""
    api.on("GET", f"{HOSTS}/k", Canned(CLUSTER))

    shown = fnctl("host", "show", "k").stdout

    assert "GPUs by       claims gpu.nvidia.com" in shown
    assert "slots a node  4, 4/5 of the memory" in shown
    assert "tolerates     nvidia.com/gpu:* team=a:*" in shown
    assert "identity" not in shown


def test_a_cluster_is_changed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """An empty option that may be repeated restores the default."""
    api.on("PATCH", f"{HOSTS}/k", Canned(CLUSTER))

    fnctl("host", "set", "k", "--image", "i:2", "--tolerate", "", "--node-selector", "")

    assert api.requests[0].json == {"image": "i:2", "tolerations": [], "node_selector": {}}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("k", "--kubernetes"), "expected --image"),
        (("k", "--image", "i"), "expected --kubernetes"),
        (("k", "--kubernetes", "--image", "i", "--gpus", "0"), "expected no options of a login"),
        (("k", "--kubernetes", "--image", "i", "--accept-host-key"), "expected no options of a"),
        (("k", "--kubernetes", "--image", "i", "--name", "x"), "expected no options of a login"),
        (("k", "--kubernetes", "--image", "i", "--node-selector", "a"), "--node-selector KEY"),
        (("k", "--kubernetes", "--image", "i", "--tolerate", ":NoSchedule"), "--tolerate KEY"),
        (("k", "--kubernetes", "--image", "i", "--devices", "x"), "--devices"),
    ],
)
def test_wrong_usage_of_clusters(
    fnctl: Callable[..., Result], words: tuple[str, ...], expected: str
) -> None:
    """Nothing is sent."""
    result = fnctl("host", "add", *words)
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())
