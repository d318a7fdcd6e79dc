from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from hosts.errors import Unreachable
from hosts.login import HOPS_MAX, Login, Target, log_in, parse_host_key, parse_target
from tests.support.sshd import Sshd, sshd

pytestmark = pytest.mark.slow


def note(error: pytest.ExceptionInfo[Unreachable]) -> str:
    return str(error.value.__notes__[0])


async def test_one_is_logged_in_and_out(login: Login) -> None:
    """An accepted key and a known host key give a connection."""
    there = await log_in(login)
    assert there.reason_lost() == ""

    await there.close()

    assert there.connection.is_closed()


async def test_an_unknown_host_key_ends_it(far: Sshd, login: Login) -> None:
    """An unknown host key is refused with its fingerprint and the command to add it."""
    far.known_hosts.write_text("")

    with pytest.raises(Unreachable, match=r"is not known: it sent ssh-ed25519 SHA256:") as error:
        await log_in(login)

    assert f"-p {far.port} " in note(error)
    assert error.value.host_key == far.host_key
    pinned = await log_in(replace(login, host_key=error.value.host_key))
    await pinned.close()


async def test_a_changed_host_key_ends_it(far: Sshd, login: Login) -> None:
    """A changed host key is refused, since it may be an attacker's."""
    far.know(far.make_key("other"))

    with pytest.raises(Unreachable, match="CHANGED") as error:
        await log_in(login)

    assert f"ssh-keygen -R '[127.0.0.1]:{far.port}' -f {far.known_hosts}" in note(error)
    assert error.value.host_key == ""


async def test_a_key_that_is_not_the_pinned_one_ends_it(far: Sshd, login: Login) -> None:
    """A pinned key alone counts, though known_hosts has the right one, and none is offered."""
    other = far.make_key("other").with_suffix(".pub").read_text()

    with pytest.raises(Unreachable, match="is not the pinned one") as error:
        await log_in(replace(login, host_key=parse_host_key(other)))

    assert error.value.host_key == ""
    assert error.value.is_refusal


async def test_known_hosts_none_in_the_config_checks_nevertheless(
    far: Sshd, login: Login, home: Path
) -> None:
    """`UserKnownHostsFile none` gives an empty list and does not disable the check."""
    config = "Host *\n  UserKnownHostsFile none\n  StrictHostKeyChecking no\n"
    (home / ".ssh" / "config").write_text(config)

    with pytest.raises(Unreachable, match="is not known"):
        await log_in(replace(login, known_hosts=None))


async def test_a_wrong_key_is_refused(far: Sshd, login: Login) -> None:
    """A key that the server refuses is reported with how to authorise it."""
    with pytest.raises(Unreachable, match="accepts none of your SSH keys") as error:
        await log_in(replace(login, identity=far.make_key("stranger")))

    assert "ssh-copy-id" in note(error)


async def test_an_identity_file_without_a_key_is_reported(login: Login, tmp_path: Path) -> None:
    """--identity with a file that is not a private key is reported."""
    (tmp_path / "no").write_text("no key")

    with pytest.raises(Unreachable, match=r"private key .*/no cannot be used"):
        await log_in(replace(login, identity=tmp_path / "no"))


async def test_a_machine_without_ssh_is_reported(far: Sshd, login: Login) -> None:
    """A machine without an SSH server is reported with the command to try by hand."""
    far.stop()

    with pytest.raises(Unreachable, match="cannot be reached by SSH") as error:
        await log_in(login)

    assert "ssh -p" in note(error)


async def test_a_silent_machine_is_given_up(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that accepts the connection and sends nothing is given up."""
    monkeypatch.setattr("hosts.login.HOP_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = replace(login.target, port=silent.getsockname()[1])

        with pytest.raises(Unreachable, match="does not answer SSH in time"):
            await log_in(replace(login, target=target))


async def test_an_alias_of_the_config_is_followed(far: Sshd, home: Path) -> None:
    """A `Host` block gives address, port, user, key and known hosts."""
    (home / ".ssh" / "config").write_text(
        f"Host gpubox\n  HostName 127.0.0.1\n  Port {far.port}\n  User {far.user}\n"
        f"  IdentityFile {far.identity}\n  UserKnownHostsFile {far.known_hosts}\n"
    )

    there = await log_in(Login(Target("gpubox")))

    assert there.connection.get_extra_info("username") == far.user
    await there.close()


async def test_the_default_files_are_enough(far: Sshd, home: Path) -> None:
    """~/.ssh/id_ed25519 and ~/.ssh/known_hosts are used without configuration."""
    far.identity.rename(home / ".ssh" / "id_ed25519")
    far.known_hosts.rename(home / ".ssh" / "known_hosts")

    there = await log_in(Login(parse_target(far.target)))

    await there.close()


async def test_jump_hosts_are_gone_through(far: Sshd, login: Login, home: Path) -> None:
    """ProxyJump connects through another machine, whose host key is checked too."""
    config = f"Host inner\n  HostName 127.0.0.1\n  Port {far.port}\n  ProxyJump {far.target}\n"
    (home / ".ssh" / "config").write_text(config)

    there = await log_in(replace(login, target=Target("inner", far.user)))

    assert there.before is not None
    await there.close()
    assert there.before.connection.is_closed()


async def test_a_jump_host_is_checked_too(
    far: Sshd, login: Login, home: Path, tmp_path: Path
) -> None:
    """An unknown host key of a jump host ends the login."""
    with sshd(tmp_path / "jump", f"AuthorizedKeysFile {far.identity}.pub") as jump:
        config = f"Host inner\n  HostName 127.0.0.1\n  Port {far.port}\n  ProxyJump {jump.target}\n"
        (home / ".ssh" / "config").write_text(config)

        with pytest.raises(Unreachable, match=f"host key of {jump.target} is not known"):
            await log_in(replace(login, target=Target("inner", far.user)))


async def test_each_jump_host_is_reached_through_the_one_before(
    far: Sshd, login: Login, home: Path, tmp_path: Path
) -> None:
    """Each jump host is reached through the one before, and all connections are closed at the
    end."""
    config = f"Host inner\n  HostName 127.0.0.1\n  Port {far.port}\n  ProxyJump "
    (home / ".ssh" / "config").write_text(f"{config}{far.target},{far.target}\n")
    inner = replace(login, target=Target("inner", far.user))

    there = await log_in(inner)
    await there.close()
    assert there.before is not None
    assert there.before.before is not None
    assert there.before.before.connection.is_closed()

    keys = f"AuthorizedKeysFile {far.identity}.pub"
    with sshd(tmp_path / "first", keys, "AllowTcpForwarding no") as first:
        known = far.known_hosts.read_text() + first.known_hosts.read_text()
        far.known_hosts.write_text(known)
        (home / ".ssh" / "config").write_text(f"{config}{first.target},{far.target}\n")
        with pytest.raises(Unreachable, match=f"{far.target} cannot be reached"):
            await log_in(inner)


async def test_a_jump_host_for_all_is_not_its_own(far: Sshd, login: Login, home: Path) -> None:
    """With ProxyJump under `Host *`, the jump host itself is reached directly."""
    config = f"Host *\n  ProxyJump bastion\nHost bastion\n  HostName 127.0.0.1\n  Port {far.port}\n"
    (home / ".ssh" / "config").write_text(f"{config}Host inner\n  HostName 127.0.0.1\n")

    there = await log_in(replace(login, target=Target("inner", far.user, far.port)))

    assert there.before is not None
    assert there.before.before is None
    await there.close()


async def test_jumps_in_a_circle_end(login: Login, home: Path) -> None:
    """A circle of jump hosts is refused at the limit."""
    (home / ".ssh" / "config").write_text(
        "Host inner\n  ProxyJump outer\nHost outer\n  ProxyJump inner\n"
    )

    with pytest.raises(Unreachable, match=f"more than {HOPS_MAX} machines"):
        await log_in(replace(login, target=Target("inner")))


async def test_an_invalid_config_is_reported(login: Login, home: Path) -> None:
    """An unreadable config or an invalid jump host is reported."""
    (home / ".ssh" / "config").write_text("Port nonsense\n")
    with pytest.raises(Unreachable, match=r"~/\.ssh/config"):
        await log_in(login)

    (home / ".ssh" / "config").write_text(f"ProxyJump {','.join('abcdefgh')}\n")
    with pytest.raises(Unreachable, match="ProxyJump: expected at most"):
        await log_in(login)
