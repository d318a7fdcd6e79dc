from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from admin.cli.verbs.doctor import settings
from tests.support.admin_api import AdminApi, Canned
from tests.support.sshd import sshd

pytestmark = pytest.mark.slow

NAMES = [
    "python",
    "data folder",
    "disk",
    "admin token",
    "socket path",
    "gRPC",
    "server isolation",
    "nvidia driver",
    "onnxruntime",
    "server",
    "access",
]


def test_a_healthy_machine_passes(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """With data folder, token and server in place, every check is ok or a warning."""
    token = tmp_path / "data" / "admin.token"
    token.parent.mkdir()
    token.touch(0o600)
    token.write_text("t")
    api.on("GET", "/readyz", Canned({"status": "ok", "reasons": []}))
    api.on("GET", "/admin/v1/functions", Canned({"items": []}))

    result = fnctl("doctor", "--json")

    found = {each["name"]: each["level"] for each in json.loads(result.stdout)["items"]}
    assert list(found) == NAMES
    assert set(found.values()) <= {"ok", "warn"}
    assert result.exit_code == 0


def test_a_failed_check_is_exit_code_1(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A failed check is exit code 1 and says what to do."""
    api.close()

    result = fnctl("doctor")

    assert result.exit_code == 1
    assert "-> start it: fnctl serve" in result.stdout


def test_a_chosen_engine_is_checked(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """With the Docker driver the engine must answer, at the address that --engine gives."""
    result = fnctl("doctor", "--driver", "docker", "--json")

    found = {each["name"]: each["level"] for each in json.loads(result.stdout)["items"]}
    assert found["docker engine"] == "fail"
    assert result.exit_code == 1


def test_another_machine_is_checked_over_ssh(
    api: AdminApi, fnctl: Callable[..., Result], tmp_path: Path
) -> None:
    """With --ssh only the SSH connection and the remote server are checked, not this machine."""
    api.on("GET", "/readyz", Canned({"status": "ok", "reasons": []}))
    api.on("GET", "/admin/v1/functions", Canned({"items": []}))
    api.on("GET", "/admin/v1/devices", Canned({"items": [{"kind": "cpu"}, {"kind": "cpu"}]}))
    with sshd(tmp_path / "ssh") as far:
        options = ("--identity", str(far.identity), "--known-hosts", str(far.known_hosts))

        good = fnctl("doctor", "--ssh", far.target, *options, "--json")
        far.known_hosts.write_text("")
        bad = fnctl("doctor", "--ssh", far.target, *options)

    found = {each["name"]: each["level"] for each in json.loads(good.stdout)["items"]}
    assert found == {"ssh": "ok", "server": "ok", "access": "ok", "devices": "ok"}
    assert "2 cpu, no GPU: fnctl doctor on the server's machine" in good.stdout
    assert bad.exit_code == 1
    assert "is not known" in bad.stdout


def test_settings_are_those_of_a_server_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As FN_IMAGE_CPU, the image to check; with invalid settings the defaults are checked, and the
    fault is one more failed check."""
    monkeypatch.setenv("FN_IMAGE_CPU", "mine:1")
    found, refused = settings(tmp_path)
    assert (found.image_cpu, refused) == ("mine:1", [])

    monkeypatch.setenv("FN_LINK_LISTEN", "0.0.0.0:7444")
    found, refused = settings(tmp_path)
    assert (found.image_cpu, found.image_gpu) == ("fngate-runtime:cpu", "fngate-runtime:gpu")
    assert found.store().secret_key.is_relative_to(tmp_path)
    assert [(check.level, check.name) for check in refused] == [("fail", "settings")]
    assert "FN_LINK_ADDRESS" in refused[0].found


def test_the_door_for_replicas_is_checked(
    api: AdminApi, fnctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With FN_LINK_LISTEN its port, its address and its authority are checked, too."""
    monkeypatch.setenv("FN_LINK_LISTEN", "127.0.0.1:0")

    items = json.loads(fnctl("doctor", "--json").stdout)["items"]

    assert {"link", "link address", "link authority"} <= {each["name"] for each in items}


def test_a_host_is_checked_by_the_server(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """With --host the server's own view comes first, then the checks of its login."""
    path = "/admin/v1/hosts/gpu2"
    words = {"name": "gpu2", "state": "unreachable", "reason": "no route", "agent": "no report"}
    lost = {**words, "settings": {"kind": "ssh"}}
    login = {"level": "fail", "name": "login", "found": "no route", "todo": "ssh gpu2"}
    api.on("GET", path, Canned({**lost, "state": "up", "reason": "", "agent": ""}), Canned(lost))
    docker = {"level": "ok", "name": "docker", "found": "24.0", "todo": ""}
    api.on("POST", f"{path}/check", Canned({"items": [docker]}), Canned({"items": [login]}))

    good = fnctl("doctor", "--host", "gpu2", "--json")
    bad = fnctl("doctor", "--host", "gpu2")

    found = {each["name"]: each["level"] for each in json.loads(good.stdout)["items"]}
    assert (good.exit_code, found) == (0, {"host": "ok", "agent": "ok", "docker": "ok"})
    assert bad.exit_code == 1
    assert "host   gpu2 is unreachable: no route" in bad.stdout
    assert "-> ssh gpu2" in bad.stdout


def test_the_local_host_has_other_checks(fnctl: Callable[..., Result]) -> None:
    """They are those of doctor without --host, on the server's machine."""
    result = fnctl("doctor", "--host", "local")

    assert result.exit_code == 1
    assert "local is the machine that the server runs on" in result.stdout
    assert "-> run there, without --host: fnctl doctor" in result.stdout


def test_an_unknown_host_is_a_failed_check(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The server's answer is the finding."""
    unknown = {"code": "unknown", "title": "Unknown", "detail": "no host 'gpu9'"}
    api.on("GET", "/admin/v1/hosts/gpu9", Canned(unknown, 404))

    result = fnctl("doctor", "--host", "gpu9")

    assert result.exit_code == 1
    assert "no host 'gpu9'" in result.stdout
