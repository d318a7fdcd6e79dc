"""Credentials for registries: those of the docker config of this process's user, and of the
credential helpers that it names (docker-credential-helpers, "Development").

A helper is a program of the operator's: it may hang, and print anything. It runs for a bounded
time, and nothing that it prints is quoted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from docker import auth
from docker.errors import DockerException
from docker.utils.config import find_config_file

from registry.errors import DriverError

T = TypeVar("T")
HELPER_S: Final = 30.0
"""Max seconds of a credential helper."""
CONFIG_MAX: Final = 1024 * 1024
"""Max bytes of a docker config."""
ANSWER_MAX: Final = 64 * 1024
"""Max bytes of a helper's answer: a token of a registry has a few KiB."""
TOKEN_USER: Final = "<token>"  # noqa: S105 - the name that marks an identity token
NOT_FOUND: Final = b"credentials not found in native keychain"
"""What a helper prints, and fails, for a registry that it does not know."""
_BAD: Final = (
    DockerException,
    AttributeError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.DecodeError,
)
"""What docker-py raises for a config of another form. Their texts may quote a password."""


async def registry_header(registry: str, *, helper_s: float = HELPER_S) -> dict[str, str]:
    """Return the header with the credentials for a registry; {} if there are none.

    Raises DriverError, which quotes neither the config nor a helper, also after `helper_s` without
    a helper's answer.
    """
    path = await asyncio.to_thread(find_config_file)
    if path is None:
        return {}
    config = await asyncio.to_thread(_config, Path(path))
    helper = _checked(path, lambda: config.get_credential_store(registry))
    found = None
    if helper:
        found = await _asked(f"docker-credential-{helper}", registry, helper_s)
    if found is None:
        logins = auth.AuthConfig({"auths": config.auths})
        found = _checked(path, lambda: logins.resolve_authconfig(registry))
    if not found:
        return {}
    return {"X-Registry-Auth": _checked(path, lambda: str(auth.encode_header(found), "ascii"))}


def _config(path: Path) -> auth.AuthConfig:
    """Return the docker config, read anew. Blocking."""
    try:
        with path.open("rb") as file:
            data = file.read(CONFIG_MAX)
    except OSError as error:
        raise DriverError(f"the docker config {path} cannot be read: {error.strerror}") from error
    return _checked(
        path, lambda: auth.AuthConfig.load_config(None, msgspec.json.decode(data, type=dict), None)
    )


def _checked(path: str | Path, work: Callable[[], T]) -> T:
    """Run `work` over the config at `path`. Raises DriverError without the reason's text."""
    try:
        return work()
    except _BAD as error:
        raise DriverError(
            f"the docker config {path} is not as docker writes it ({type(error).__name__}); log in"
            " again: docker login"
        ) from None


async def _asked(program: str, registry: str, limit_s: float) -> dict[str, str] | None:
    """Return what a credential helper has for a registry, None if it does not know it. Raises
    DriverError."""
    server = auth.INDEX_URL if registry == auth.INDEX_NAME else registry
    by_hand = f"try it: echo {server} | {program} get"
    try:
        async with asyncio.timeout(limit_s):
            code, output = await _run(program, server)
    except TimeoutError:
        raise DriverError(f"{program} gave no answer in {limit_s:g} s; {by_hand}") from None
    except OSError as error:
        raise DriverError(f"{program} cannot be run: {error.strerror}; install it") from error
    if code:
        if NOT_FOUND in output:
            return None
        raise DriverError(f"{program} ended with exit code {code}; {by_hand}")
    try:
        answer = msgspec.json.decode(output, type=dict[str, Any])
        user, value = str(answer["Username"]), str(answer["Secret"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        raise DriverError(
            f"{program} printed no credentials: expected an object with Username and Secret;"
            f" {by_hand}"
        ) from None
    if not user and not value:
        return None
    if user == TOKEN_USER:
        return {"ServerAddress": server, "IdentityToken": value}
    return {"ServerAddress": server, "Username": user, "Password": value}


async def _run(program: str, server: str) -> tuple[int, bytes]:
    """Return exit code and output of a helper; the output is cut. A helper that is cancelled is
    killed with its children. Raises OSError if it cannot be run."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(0, "not found in PATH")
    helper = await asyncio.create_subprocess_exec(
        found, "get", stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    try:
        assert helper.stdin is not None
        assert helper.stdout is not None
        with contextlib.suppress(ConnectionError):
            helper.stdin.write(server.encode())
            await helper.stdin.drain()
        helper.stdin.close()
        output = b""
        while len(output) < ANSWER_MAX and (piece := await helper.stdout.read(ANSWER_MAX)):
            output += piece
        if len(output) >= ANSWER_MAX:
            _kill(helper)
            _close_pipes(helper)
        return await helper.wait(), output
    finally:
        _close_pipes(helper)
        if helper.returncode is None:
            _kill(helper)
            # Shielded: a second cancellation must not leave a zombie process.
            await asyncio.shield(helper.wait())


def _kill(helper: Process) -> None:
    """Kill a helper and the processes of its session's group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(helper.pid, signal.SIGKILL)


def _close_pipes(helper: Process) -> None:
    """Close a helper's pipes.

    `wait` waits for their end, too, which does not come while nobody reads one, or while a process
    that has left the session holds one.
    """
    transport = helper._transport  # type: ignore[attr-defined]
    for number in (0, 1):
        # Not `transport.close()`: it polls the process, whose exit code is lost then.
        if (pipe := transport.get_pipe_transport(number)) is not None:
            pipe.close()
