"""Checks of the running server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from admin.cli.doctor.check import Check

if TYPE_CHECKING:
    from admin.client import Client


def server(client: Client) -> Check:
    """The server answers and has nothing to complain of."""
    from admin.client import ApiError, Unreachable

    try:
        answer = client.ready()
    except Unreachable as error:
        return Check("fail", "server", str(error), "start it: fnctl serve; or name it with --url")
    except ApiError as error:
        return Check("fail", "server", str(error), "see the server's log")
    reasons = answer.get("reasons") or []
    if answer.get("status") != "ok" or reasons:
        shown = "; ".join(map(str, reasons)) or "no reason given"
        return Check("warn", "server", f"{client.url} is degraded: {shown}")
    return Check("ok", "server", f"{client.url} takes calls")


def access(client: Client) -> Check:
    """The key or token opens the admin API."""
    from admin.client import ApiError, Unreachable

    try:
        count = len(client.functions())
    except Unreachable:
        return Check("warn", "access", "not tried: the server gives no answer")
    except ApiError as error:
        todo = "give --key or FN_KEY, or the server's own folder with --data or FN_DATA"
        return Check("fail", "access", str(error), todo)
    return Check("ok", "access", f"functions can be listed ({count})")
