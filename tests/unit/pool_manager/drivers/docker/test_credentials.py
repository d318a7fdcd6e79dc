"""Tests of credentials for registries, with docker configs and helpers of every kind."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import select
import signal
from pathlib import Path
from typing import Any

import pytest

from pool_manager.drivers.docker.credentials import ANSWER_MAX, registry_header
from registry.errors import DriverError

HOST = "registry.example:5000"
HIDDEN = "correct-horse-9f0c"
AUTH = base64.b64encode(f"operator:{HIDDEN}".encode()).decode()
ANSWER = json.dumps({"ServerURL": HOST, "Username": "operator", "Secret": HIDDEN})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the docker config and of the helpers."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def write(folder: Path, config: Any) -> None:
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / "config.json").write_text(text)


def write_helper(folder: Path, script: str) -> None:
    """Make `script` the helper of all registries."""
    program = folder / "docker-credential-tests"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    write(folder, {"credsStore": "tests"})


def decoded(header: dict[str, str]) -> dict[str, str]:
    found: dict[str, str] = json.loads(base64.urlsafe_b64decode(header["X-Registry-Auth"]))
    return found


async def test_a_login_of_the_config_is_used(folder: Path) -> None:
    """Of the registry itself, and of no other."""
    assert await registry_header(HOST) == {}
    write(folder, {"auths": {HOST: {"auth": AUTH}}})

    found = decoded(await registry_header(HOST))

    assert (found["username"], found["password"]) == ("operator", HIDDEN)
    assert await registry_header("other.example") == {}


async def test_a_helper_is_asked_for_the_registry(folder: Path) -> None:
    """Its answer outweighs a login of the config; a registry that it does not know has that
    login. The index of Docker has the name that helpers know."""
    write_helper(folder, f"read -r server; echo \"$server\" >{folder}/asked; echo '{ANSWER}'")
    found = decoded(await registry_header(HOST))
    assert found == {"ServerAddress": HOST, "Username": "operator", "Password": HIDDEN}
    assert (folder / "asked").read_text() == f"{HOST}\n"
    await registry_header("docker.io")
    assert (folder / "asked").read_text() == "https://index.docker.io/v1/\n"

    write_helper(folder, "cat >/dev/null; echo credentials not found in native keychain; exit 1")
    write(folder, {"credHelpers": {HOST: "tests"}, "auths": {HOST: {"auth": AUTH}}})
    assert decoded(await registry_header(HOST))["password"] == HIDDEN
    write_helper(folder, 'cat >/dev/null; echo \'{"Username": "", "Secret": ""}\'')
    assert await registry_header(HOST) == {}


async def test_an_identity_token_has_no_user(folder: Path) -> None:
    """Helpers mark it by the user <token>."""
    write_helper(folder, 'cat >/dev/null; echo \'{"Username": "<token>", "Secret": "abc"}\'')

    assert decoded(await registry_header(HOST)) == {"ServerAddress": HOST, "IdentityToken": "abc"}


@pytest.mark.parametrize(
    "config",
    [
        "",
        f'{{"auths": {{"{HIDDEN}',
        f'["{HIDDEN}"]',
        "[" * 100_000,
        {"auths": {HOST: HIDDEN}},
        {"auths": {HOST: {"auth": 5}}},
        {"auths": {HOST: {"auth": base64.b64encode(HIDDEN.encode()).decode()}}},
        {"auths": {HOST: {"auth": base64.b64encode(b"operator:\xff" + HIDDEN.encode()).decode()}}},
        {"auths": [HIDDEN]},
        {"credHelpers": [HIDDEN]},
        json.dumps({"auths": {HOST: {"auth": AUTH}}, "more": "x" * 2**20}),
    ],
)
async def test_a_broken_config_is_said_without_its_text(folder: Path, config: Any) -> None:
    """Whatever its form: the pull ends with the config's path, and quotes nothing of it."""
    write(folder, config)

    with pytest.raises(DriverError, match=r"config\.json is not as docker writes it") as refused:
        await registry_header(HOST)

    assert HIDDEN not in refused.value.message


async def test_a_config_that_cannot_be_read_is_said(folder: Path) -> None:
    """Such as a folder of its name."""
    (folder / "config.json").mkdir()

    with pytest.raises(DriverError, match=r"config\.json cannot be read: Is a directory"):
        await registry_header(HOST)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"echo {HIDDEN}; echo {HIDDEN} >&2; exit 3", "ended with exit code 3"),
        (f"cat >/dev/null; echo {HIDDEN}", "printed no credentials"),
        (f"cat >/dev/null; echo '[\"{HIDDEN}\"]'", "printed no credentials"),
        (f'cat >/dev/null; echo \'{{"Secret": "{HIDDEN}"}}\'', "printed no credentials"),
        ("cat >/dev/null; printf '\\377\\376'", "printed no credentials"),
        ("kill -9 $$", "ended with exit code -9"),
        (f"yes {HIDDEN}", "ended with exit code -9"),
    ],
)
async def test_a_failing_helper_is_said_without_its_text(
    folder: Path, script: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its answer may hold the password. It is read up to a limit; nothing of it reaches the log."""
    write_helper(folder, script)

    with pytest.raises(DriverError, match=said) as refused:
        await registry_header(HOST)

    assert f"try it: echo {HOST} | docker-credential-tests get" in refused.value.message
    assert HIDDEN not in refused.value.message + "".join(capfd.readouterr())
    assert len(refused.value.message) < ANSWER_MAX


async def test_a_helper_whose_output_nobody_reads_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe is full when it is killed, so that its end is not read."""
    write_helper(folder, f"yes {HIDDEN}")
    read = asyncio.StreamReader.read

    async def read_late(self: asyncio.StreamReader, count: int = -1) -> bytes:
        while not self._paused:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
        return (await read(self, count))[:100] + b"x" * ANSWER_MAX

    monkeypatch.setattr(asyncio.StreamReader, "read", read_late)

    with pytest.raises(DriverError, match="ended with exit code -9"):
        await registry_header(HOST)


async def test_a_helper_that_leaves_a_process_with_its_output_ends(folder: Path) -> None:
    """Such as an agent in a session of its own; it lives on, and the pull does not wait for it."""
    write_helper(folder, f"setsid sleep 1000 & echo $! >{folder}/agent; exit 3")
    try:
        with pytest.raises(DriverError, match=r"gave no answer in 0\.5 s"):
            async with asyncio.timeout(20):
                await registry_header(HOST, helper_s=0.5)
    finally:
        os.kill(int((folder / "agent").read_text()), signal.SIGKILL)


async def test_a_hanging_helper_is_killed_with_its_children(folder: Path) -> None:
    """After its time, and told; its child does not live on."""
    write_helper(folder, f"sleep 1000 & echo $! >{folder}/child; wait")

    with pytest.raises(DriverError, match=r"gave no answer in 0\.5 s"):
        await registry_header(HOST, helper_s=0.5)

    try:
        child = os.pidfd_open(int((folder / "child").read_text()))
    except ProcessLookupError:
        return
    try:
        assert select.select([child], [], [], 10)[0]
    finally:
        os.close(child)


async def test_a_missing_helper_is_said(folder: Path) -> None:
    """By its program's name."""
    write(folder, {"credsStore": "none-such"})

    with pytest.raises(DriverError, match="docker-credential-none-such cannot be run"):
        await registry_header(HOST)
