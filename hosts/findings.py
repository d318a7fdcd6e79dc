"""Judges what was found on a host: a check each, with the one line that mends it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SESSIONS: Final = 4
"""Sessions that are tried at the same time."""
SESSIONS_MIN: Final = 2
"""SFTP and one command."""
LOGINS: Final = 4
"""Logins that are tried at the same time."""
API_OLDEST: Final = (1, 41)
GIB: Final = 2**30
FREE_MIN: Final = 2 * GIB
"""Bytes that must be free for files and images."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a host: `found` is what there is, `remedy` the line that mends it ("" if ok)."""

    name: str
    is_ok: bool
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Engine:
    """Container engine. `exists` is None if the host does not say whether the socket is there."""

    exists: bool | None = None
    is_open: bool = False
    error: str = ""
    version: str = ""
    api: str = ""
    has_nvidia: bool = False


@dataclass(frozen=True, slots=True)
class Gpus:
    """NVIDIA GPUs as "NAME, DRIVER"; none if the driver is not installed."""

    found: tuple[str, ...] = ()
    error: str = ""
    has_toolkit: bool = False


@dataclass(slots=True)
class Findings:
    """What was found on a host. `forwards_there`: a socket of the host can be reached from here;
    `forwards_here`: a socket there can be served from here."""

    engine: str
    user: str
    runs_commands: bool = False
    command_error: str = ""
    has_sftp: bool = False
    sftp_error: str = ""
    free_bytes: int | None = None
    forwards_there: bool = False
    forwards_here: bool = False
    forbids_tcp: bool = False
    sessions: int = 0
    logins: int = LOGINS
    login_error: str = ""
    container_engine: Engine = field(default_factory=Engine)
    gpus: Gpus = field(default_factory=Gpus)


def judge(found: Findings) -> list[Check]:
    """Return all checks of a host, in the order in which they should be mended."""
    checks = [
        _commands(found),
        _sftp(found),
        _forwarding(found),
        _sessions(found),
        _logins(found),
        _disk(found),
    ]
    if found.forwards_there:
        checks += [_engine(found), _gpus(found)]
    return checks


def _commands(found: Findings) -> Check:
    name = "SSH commands"
    if found.runs_commands:
        return Check(name, True, "run")
    if found.sessions == 0 and not found.has_sftp and found.forwards_there:
        return Check(name, False, "no session is allowed", "sshd_config: MaxSessions 10")
    if "not available" in found.command_error:
        remedy = f"give the user a shell: usermod -s /bin/sh {found.user}"
        return Check(name, False, found.command_error, remedy)
    remedy = f"sshd_config: no ForceCommand for {found.user}; authorized_keys: no command="
    return Check(name, False, f"another command runs: {found.command_error}", remedy)


def _sftp(found: Findings) -> Check:
    name = "SFTP"
    if found.has_sftp:
        return Check(name, True, "open")
    if not found.runs_commands:
        return Check(name, False, found.sftp_error, "first mend SSH commands")
    return Check(name, False, found.sftp_error, "sshd_config: Subsystem sftp internal-sftp")


def _forwarding(found: Findings) -> Check:
    name = "SSH forwarding of sockets"
    if found.forwards_there and found.forwards_here:
        return Check(name, True, "in both directions")
    if found.forwards_there:
        return Check(
            name,
            False,
            "only to the host: AllowStreamLocalForwarding local",
            "sshd_config: AllowStreamLocalForwarding yes",
        )
    if found.forwards_here and found.forbids_tcp:
        return Check(
            name, False, "only from the host: PermitOpen none", "sshd_config: PermitOpen any"
        )
    if found.forwards_here:
        return Check(
            name,
            False,
            "only from the host: AllowStreamLocalForwarding remote",
            "sshd_config: AllowStreamLocalForwarding yes",
        )
    if not found.forbids_tcp:
        return Check(
            name,
            False,
            "in no direction: AllowStreamLocalForwarding no",
            "sshd_config: AllowStreamLocalForwarding yes",
        )
    return Check(
        name,
        False,
        "in no direction, TCP neither: AllowTcpForwarding no, DisableForwarding yes, or a key with"
        " restrict or no-port-forwarding",
        "sshd_config: AllowTcpForwarding yes, DisableForwarding no;"
        " authorized_keys: restrict,port-forwarding",
    )


def _sessions(found: Findings) -> Check:
    name = "SSH sessions"
    shown = f"{found.sessions} at the same time"
    if found.sessions >= SESSIONS_MIN:
        return Check(name, True, f"at least {shown}" if found.sessions >= SESSIONS else shown)
    if not found.runs_commands and found.sessions:
        return Check(name, False, shown, "first mend SSH commands")
    return Check(name, False, shown, "sshd_config: MaxSessions 10")


def _logins(found: Findings) -> Check:
    name = "SSH logins"
    if found.logins == LOGINS:
        return Check(name, True, f"at least {LOGINS} at the same time")
    return Check(
        name,
        False,
        f"{found.logins} of {LOGINS} at the same time: {found.login_error}",
        "sshd_config: MaxStartups 10:30:100, PerSourceMaxStartups none",
    )


def _disk(found: Findings) -> Check:
    name = "disk"
    if found.free_bytes is None:
        return Check(name, found.has_sftp, "the free space is not known", "first mend SFTP")
    shown = f"{found.free_bytes / GIB:.1f} GiB free in the home folder"
    if found.free_bytes >= FREE_MIN:
        return Check(name, True, shown)
    return Check(name, False, shown, f"free at least {FREE_MIN // GIB} GiB there")


def _engine(found: Findings) -> Check:
    name = "container engine"
    engine = found.container_engine
    if engine.version:
        shown = f"Docker {engine.version}, API {engine.api}"
        if _numbers(engine.api) >= API_OLDEST:
            return Check(name, True, shown)
        oldest = ".".join(map(str, API_OLDEST))
        return Check(name, False, shown, f"install an engine with API {oldest} or newer")
    if engine.is_open:
        return Check(name, False, engine.error or "no answer", "systemctl restart docker")
    if engine.exists is False:
        return Check(
            name,
            False,
            f"{found.engine} does not exist",
            "install Docker: apt-get install docker.io; or name its socket with --engine",
        )
    return Check(
        name,
        False,
        f"{found.engine} refuses {found.user}",
        f"usermod -aG docker {found.user}; systemctl start docker",
    )


def _gpus(found: Findings) -> Check:
    name = "NVIDIA"
    gpus = found.gpus
    if gpus.error:
        return Check(name, False, gpus.error, "nvidia-smi must work there: reinstall, then reboot")
    if not gpus.found:
        return Check(name, True, "no NVIDIA driver: CPU slots only")
    shown = "; ".join(gpus.found)
    if gpus.has_toolkit or found.container_engine.has_nvidia:
        return Check(name, True, shown)
    return Check(
        name,
        False,
        f"{shown}; no NVIDIA container toolkit",
        "apt-get install nvidia-container-toolkit && nvidia-ctk runtime configure"
        " --runtime=docker && systemctl restart docker",
    )


def _numbers(api: str) -> tuple[int, ...]:
    parts = api.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()
