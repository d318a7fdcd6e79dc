"""Checks of the door for replicas that dial in: its settings, its port, its authority."""

from __future__ import annotations

import errno
import socket
import ssl
import stat
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from admin.cli.doctor.machine import PRIVATE
from admin.text import command
from hosts.checks import Check
from runtime_image.contract.addresses import TLS, TlsAddress
from runtime_image.contract.enrolment import SERVER_NAME
from runtime_image.link.tls_context import tls_context

NAME: Final = "link"
AUTHORITY: Final = "link authority"
PROBE_S: Final = 3.0
SOON_DAYS: Final = 90
MINUTE: Final = "%Y-%m-%d %H:%M"
WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - to recognise them
BIND_TODO: Final = {
    errno.EADDRNOTAVAIL: "set FN_LINK_LISTEN to an address of this machine, or to 0.0.0.0:PORT",
    errno.EACCES: "choose a port of 1024 or more",
}


def checks(listen: str, address: str, folder: Path, now_s: float) -> list[Check]:
    """Return the checks of a door with the valid settings FN_LINK_LISTEN and FN_LINK_ADDRESS; none
    if it is closed. `folder` is that of its authority, `now_s` Unix seconds."""
    from admin.settings import link_address

    if not listen:
        return []
    bound = link_address(listen)
    dialled = link_address(address) if address else bound
    authority, pem = examine(folder, now_s)
    return [port(bound, pem), reachable(dialled, is_set=bool(address)), authority]


def port(listen: TlsAddress, authority: str) -> Check:
    """Check that the port is free, or that a server with this authority has it; `authority` is the
    certificate, PEM, "" without one."""
    host = listen.host
    shown = str(listen).removeprefix(TLS)
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, listen.port, type=socket.SOCK_STREAM)[
            0
        ]
        with socket.socket(family, kind) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            todo = BIND_TODO.get(error.errno or 0, "correct FN_LINK_LISTEN")
            return Check("fail", NAME, f"{shown} cannot be bound: {error.strerror}", todo)
    else:
        return Check("ok", NAME, f"{shown} is free")
    loopback = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    reason = answer(loopback if host in WILDCARDS else host, listen.port, authority)
    if reason:
        todo = (
            "choose another port in FN_LINK_LISTEN, or give the data folder of the server: --data"
        )
        return Check("fail", NAME, f"{shown} is in use, but not by this server: {reason}", todo)
    return Check("ok", NAME, f"{shown}: the server answers")


def answer(host: str, port: int, authority: str) -> str:
    """Return why the program at a port is no server with this authority; "" if it is."""
    if not authority:
        return "this data folder has no authority"
    try:
        context = tls_context(authority)
        with (
            socket.create_connection((host, port), PROBE_S) as sock,
            context.wrap_socket(sock, server_hostname=SERVER_NAME),
        ):
            return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__


def reachable(address: TlsAddress, *, is_set: bool) -> Check:
    """Check that replicas on other machines can dial an address, as far as that shows here."""
    shown = str(address).removeprefix(TLS)
    todo = "set FN_LINK_ADDRESS to the address and port at which replicas reach this machine"
    if not address.port:
        return Check("fail", "link address", f"{shown} has no fixed port", todo)
    try:
        is_loopback = ip_address(address.host).is_loopback
    except ValueError:
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            text = f"{address.host} has no address here: {error.strerror}"
            return Check("warn", "link address", text, todo)
        is_loopback = all(ip_address(one[4][0]).is_loopback for one in found)
    if is_loopback:
        text = f"{shown} is this machine alone: no other one can dial it"
        return Check("warn", "link address", text, todo)
    return Check(
        "ok", "link address", f"replicas dial {shown}" + ("" if is_set else ", as it listens")
    )


def examine(folder: Path, now_s: float) -> tuple[Check, str]:
    """Check that the authority is private, whole and valid now; also return its certificate, PEM,
    "" if it is not usable. Changes nothing."""
    from hosts.tls.authority import AUTHORITY_FILE, Authority
    from registry.errors import StoreUnavailable

    path = folder / AUTHORITY_FILE
    try:
        modes = [(each, stat.S_IMODE(each.stat().st_mode)) for each in (folder, path)]
    except FileNotFoundError:
        text = f"{path} does not exist; fnctl serve creates it"
        return Check("ok", AUTHORITY, text), ""
    except OSError as error:
        return Check("fail", AUTHORITY, f"{path}: {error.strerror}", "run as the server's user"), ""
    for each, mode in modes:
        if mode & PRIVATE:
            wanted = "0700" if each == folder else "0600"
            text = f"{each} has mode {mode:04o}, expected {wanted}: others can sign any identity"
            todo = f"{command('chmod', wanted[1:], str(each))}; if others had access, remove {path}"
            return Check("fail", AUTHORITY, text, f"{todo} and restart the server"), ""
    try:
        pem = Authority.open(folder, 0, lambda: now_s).pem
    except StoreUnavailable as error:
        found, _, todo = str(error).partition(". ")
        return Check("fail", AUTHORITY, found, todo), ""
    return valid(pem, now_s), pem


def valid(pem: str, now_s: float) -> Check:
    """Check the time of an authority's certificate, and this machine's clock by it."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(pem.encode())
    now = datetime.fromtimestamp(now_s, UTC)
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    if now < begin:
        text = f"the clock says {now:{MINUTE}}, before its certificate was made: {begin:{MINUTE}}"
        return Check("fail", AUTHORITY, text, "set the clock, and let NTP keep it")
    if (end - now).days < SOON_DAYS:
        todo = "fnctl backup and fnctl restore give the server a new one; replicas start anew"
        return Check("warn", AUTHORITY, f"expires on {end:%Y-%m-%d}", todo)
    return Check("ok", AUTHORITY, f"readable only by you, valid until {end:%Y-%m-%d}")
