"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Immutable settings of one gateway process, created by `admin/settings.py`."""

    listen: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8080
    """TCP port; 0 lets the system choose."""
    public_hosts: tuple[str, ...] = ()
    """Names besides the listening address that a Host header may carry."""
    held_bytes_max: int = 256 * MIB
    """Bytes of request bodies that may be held at once, waiting and in flight."""
    retries: int = 2
    """How often a request that had started is run again after its replica died."""
    body_read_s: float = 30.0
    """Seconds a client may take to send its body."""
    head_read_s: float = 15.0
    """Seconds a client may take to send the head of a request, from its first byte, or on a new
    connection from the beginning."""
    connections: int = 16_384
    """Connections of clients at once, where descriptors allow for so many."""
    wait_max_s: float = 600.0
    """The longest wait a client may ask for with `Prefer: wait`."""
    shutdown_s: float = 60.0
    """Seconds a shutdown waits for accepted requests."""
    access_log: bool = False
    """Whether every request leaves one line."""
    traces: str = ""
    """Where traces are sent over OTLP/HTTP: a URL; "" for nowhere."""
    traces_sample: float = 1.0
    """The share of requests that are traced, of those whose client does not say."""
    fast_front: bool = True
    """Whether plain requests are read by the fast front; otherwise aiohttp reads all of them."""
