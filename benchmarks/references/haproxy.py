"""HAProxy as a proxy: a lower bound for the cost of a gateway written in C."""

from __future__ import annotations

import shutil
from pathlib import Path


def program() -> str | None:
    """Return the path of HAProxy, None if it is missing; Debian installs it outside users' PATH."""
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


IDLE_S = 300.0


def configuration(port: int, upstream: int, idle_s: float = IDLE_S) -> str:
    """Return the configuration: one thread, no log, keep-alive on both sides.

    `idle_s`: seconds without a byte after which it gives up on the client or the server. Without
    `http-no-delay` small chunks wait for more data, up to 125 ms.
    """
    idle_ms = round(idle_s * 1e3)
    return f"""
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  option http-no-delay
  http-reuse always
  timeout connect 10s
  timeout client {idle_ms}ms
  timeout server {idle_ms}ms
frontend front
  bind 127.0.0.1:{port}
  default_backend behind
backend behind
  server one 127.0.0.1:{upstream}
"""


def command(folder: Path, port: int, upstream: int, idle_s: float = IDLE_S) -> list[str]:
    """Write the configuration; return the command. Raises FileNotFoundError without HAProxy."""
    path = program()
    if path is None:
        raise FileNotFoundError("HAProxy is not installed")
    file = folder / "haproxy.cfg"
    file.write_text(configuration(port, upstream, idle_s))
    return [path, "-db", "-f", str(file)]
