"""Turns findings about a host into checks, each with its remedy. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from hosts.checks import Check, Level
from hosts.errors import shown

SESSIONS: Final = 5
"""Sessions that are tried at the same time: SFTP and four commands."""
SESSIONS_MIN: Final = 2
"""SFTP and one command."""
LOGINS: Final = 4
"""Logins that are tried at the same time."""
API_OLDEST: Final = (1, 41)
"""Docker 20.10, the oldest engine that is tested."""
GIB: Final = 2**30
FREE_MIN: Final = 2 * GIB
"""Bytes that must be free for files and images."""
HOME_MAX: Final = 60
"""Max characters of the home folder: below it are sockets, whose paths have at most 107."""
CONFIG: Final = "/etc/ssh/sshd_config"
RELOAD: Final = "systemctl reload ssh"
KEYS: Final = "~/.ssh/authorized_keys"


class EngineState(Enum):
    """State of the container engine's socket; UNKNOWN: the reason why it is closed is not known."""

    UNKNOWN = auto()
    ABSENT = auto()
    FORBIDDEN = auto()
    STOPPED = auto()
    OPEN = auto()


@dataclass(frozen=True, slots=True)
class Engine:
    """Container engine. `error`: why its state is unknown; `machine`: the processor it runs on."""

    state: EngineState = EngineState.UNKNOWN
    error: str = ""
    version: str = ""
    api: str = ""
    machine: str = ""
    folder: str = ""
    has_nvidia: bool = False


@dataclass(frozen=True, slots=True)
class Gpus:
    """NVIDIA GPUs as "NAME, DRIVER"; none if the driver is not installed. `cards`: number of cards
    then."""

    found: tuple[str, ...] = ()
    error: str = ""
    has_toolkit: bool = False
    cards: int = 0


@dataclass(slots=True)
class Findings:
    """Findings about a host. `machine`: the processor of this machine, whose images go there.

    `forwards_there`: a socket of the host can be reached from here; `forwards_here`: a socket there
    can be served from here. `free`: free bytes by folder. `is_noisy`: the login's
    shell writes text before the command's output.
    """

    engine: str
    user: str
    machine: str
    runs_commands: bool = False
    command_error: str = ""
    is_noisy: bool = False
    has_sftp: bool = False
    sftp_error: str = ""
    home: str = ""
    home_error: str = ""
    free: dict[str, int] = field(default_factory=dict)
    forwards_there: bool = False
    forwards_here: bool = False
    forbids_tcp: bool = False
    sessions: int = 0
    logins: int = LOGINS
    login_error: str = ""
    container_engine: Engine = field(default_factory=Engine)
    gpus: Gpus = field(default_factory=Gpus)

    @property
    def has_commands_beside_sftp(self) -> bool:
        """Whether a command runs while SFTP is open."""
        return self.runs_commands and self.sessions >= SESSIONS_MIN


def judge(found: Findings) -> list[Check]:
    """Return all checks of a host, in the order in which they should be fixed."""
    checks = [
        _commands(found),
        _sftp(found),
        _forwarding(found),
        _sessions(found),
        _logins(found),
        _home(found),
        _disk(found),
    ]
    if found.forwards_there:
        checks.append(_engine(found))
    if found.has_commands_beside_sftp:
        checks.append(_gpus(found))
    return [Check(one.level, one.name, shown(one.found), shown(one.todo)) for one in checks]


def _sshd(settings: str) -> str:
    """Return the remedy by sshd's settings. It takes the first value of each."""
    return f"{CONFIG}: {settings} (before other lines with the same words); then {RELOAD}"


def _commands(found: Findings) -> Check:
    name = "SSH commands"
    if found.runs_commands:
        return Check("ok", name, "run")
    if not found.sessions:
        return Check("fail", name, "no session is allowed", _sshd("MaxSessions 10"))
    shell = f"usermod --shell /bin/sh {found.user}"
    if "not available" in found.command_error:
        return Check("fail", name, found.command_error, f"give the user a shell: {shell}")
    if found.is_noisy:
        remedy = "~/.bashrc of the login, first line: case $- in *i*) ;; *) return ;; esac"
        return Check("fail", name, f"the shell writes at its start: {found.command_error}", remedy)
    remedy = (
        f"{CONFIG}: no ForceCommand for {found.user}, then {RELOAD}; {KEYS}: no command= before"
        f" the key; if its shell is none: {shell}"
    )
    return Check("fail", name, f"another command runs: {found.command_error}", remedy)


def _sftp(found: Findings) -> Check:
    name = "SFTP"
    if found.has_sftp:
        return Check("ok", name, "open")
    if not found.runs_commands:
        return Check("fail", name, found.sftp_error, "first fix SSH commands")
    return Check("fail", name, found.sftp_error, _sshd("Subsystem sftp internal-sftp"))


def _forwarding(found: Findings) -> Check:
    """Judge by the directions that work; TCP distinguishes the settings of one direction."""
    name = "SSH forwarding of sockets"
    if not found.has_sftp and not found.runs_commands:
        return Check("fail", name, "not tried", "first fix SSH commands")
    if found.forwards_there and found.forwards_here:
        return Check("ok", name, "in both directions")
    if found.forwards_there:
        return Check(
            "fail",
            name,
            "only to the host: AllowStreamLocalForwarding local, or AllowTcpForwarding local",
            _sshd("AllowStreamLocalForwarding yes, AllowTcpForwarding yes"),
        )
    if found.forwards_here and found.forbids_tcp:
        return Check(
            "fail",
            name,
            "only from the host: PermitOpen, or AllowTcpForwarding remote",
            _sshd("PermitOpen any, AllowTcpForwarding yes") + f"; {KEYS}: no permitopen=",
        )
    if found.forwards_here:
        return Check(
            "fail",
            name,
            "only from the host: AllowStreamLocalForwarding remote",
            _sshd("AllowStreamLocalForwarding yes"),
        )
    if not found.forbids_tcp:
        return Check(
            "fail",
            name,
            "in no direction: AllowStreamLocalForwarding no",
            _sshd("AllowStreamLocalForwarding yes"),
        )
    return Check(
        "fail",
        name,
        "in no direction, and no TCP: AllowTcpForwarding no, DisableForwarding yes, or a key with"
        " restrict or no-port-forwarding",
        _sshd("AllowTcpForwarding yes, DisableForwarding no") + f"; {KEYS}:"
        " restrict,port-forwarding",
    )


def _sessions(found: Findings) -> Check:
    name = "SSH sessions"
    text = f"{found.sessions} at the same time"
    if found.sessions >= SESSIONS_MIN:
        return Check("ok", name, f"at least {text}" if found.sessions >= SESSIONS else text)
    return Check("fail", name, text, _sshd("MaxSessions 10"))


def _logins(found: Findings) -> Check:
    name = "SSH logins"
    if found.logins == LOGINS:
        return Check("ok", name, f"at least {LOGINS} at the same time")
    text = f"{found.logins} of {LOGINS} at the same time: {found.login_error}"
    return Check("fail", name, text, _sshd("MaxStartups 10:30:100, PerSourceMaxStartups none"))


def _home(found: Findings) -> Check:
    name = "home folder"
    if not found.has_sftp:
        return Check("fail", name, "not known", "first fix SFTP")
    if found.home_error:
        remedy = f"mkhomedir_helper {found.user}, or chown it to {found.user}"
        return Check("fail", name, f"{found.home}: {found.home_error}", remedy)
    if len(found.home) > HOME_MAX:
        text = f"{found.home} has {len(found.home)} characters, too many for sockets below it"
        remedy = f"usermod --move-home --home /home/{found.user} {found.user}"
        return Check("fail", name, text, remedy)
    return Check("ok", name, f"{found.home} is writable")


def _disk(found: Findings) -> Check:
    name = "disk"
    if not found.free:
        # Not all servers report it.
        level: Level = "ok" if found.has_sftp else "fail"
        return Check(level, name, "the free space is not known", "first fix SFTP")
    text = ", ".join(f"{free / GIB:.1f} GiB free in {at}" for at, free in found.free.items())
    full = [at for at, free in found.free.items() if free < FREE_MIN]
    if not full:
        return Check("ok", name, text)
    remedy = f"free at least {FREE_MIN // GIB} GiB in {' and '.join(full)}: docker image prune"
    return Check("fail", name, text, remedy)


def _engine(found: Findings) -> Check:
    name = "container engine"
    engine = found.container_engine
    closed = {
        EngineState.ABSENT: (
            f"there is no socket {found.engine}",
            "install Docker, for example apt-get install docker.io; or name its socket:"
            " --docker-socket",
        ),
        EngineState.FORBIDDEN: (
            f"{found.user} may not connect to {found.engine}",
            f"usermod --append --groups docker {found.user}",
        ),
        EngineState.STOPPED: (
            f"nothing listens on {found.engine}",
            "systemctl enable --now docker",
        ),
        EngineState.UNKNOWN: (
            f"{found.engine} cannot be connected to",
            f"usermod --append --groups docker {found.user}; systemctl enable --now docker",
        ),
    }
    if engine.state in closed:
        text, remedy = closed[engine.state]
        return Check("fail", name, text, remedy)
    if engine.error:
        return Check("fail", name, engine.error, "systemctl restart docker")
    text = f"Docker {engine.version}, API {engine.api}, {engine.machine}"
    if _numbers(engine.api) < API_OLDEST:
        oldest = ".".join(map(str, API_OLDEST))
        return Check("fail", name, text, f"upgrade Docker Engine: API {oldest} (20.10) or newer")
    if engine.machine != found.machine:
        remedy = f"take a machine with {found.machine}: the images here are for it"
        return Check("fail", name, text, remedy)
    return Check("ok", name, text)


def _gpus(found: Findings) -> Check:
    name = "NVIDIA"
    gpus = found.gpus
    if gpus.error:
        remedy = "modprobe nvidia; if nvidia-smi still fails: reinstall the NVIDIA driver, reboot"
        return Check("fail", name, gpus.error, remedy)
    if not gpus.found and gpus.cards:
        # Not a failure: it may be the card of a screen, and the host runs replicas without it.
        text = f"{gpus.cards} NVIDIA cards without a driver: CPU slots only"
        remedy = "for its GPUs: apt-get install nvidia-driver nvidia-container-toolkit, then reboot"
        return Check("ok", name, text, remedy)
    if not gpus.found:
        return Check("ok", name, "no NVIDIA driver: CPU slots only")
    text = "; ".join(gpus.found)
    if gpus.has_toolkit or found.container_engine.has_nvidia:
        return Check("ok", name, text)
    if not found.container_engine.version:
        unknown = f"{text}; whether the container toolkit is installed is not known"
        return Check("fail", name, unknown, "first mend the checks above")
    return Check(
        "fail",
        name,
        f"no NVIDIA container toolkit for {text}",
        "apt-get install nvidia-container-toolkit && nvidia-ctk runtime configure"
        " --runtime=docker && systemctl restart docker",
    )


def _numbers(api: str) -> tuple[int, ...]:
    parts = api.split(".")
    is_version = all(part.isdecimal() and len(part) < 6 for part in parts)
    return tuple(map(int, parts)) if is_version else ()
