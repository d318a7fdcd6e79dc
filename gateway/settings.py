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
    grpc_port: int = 0
    """TCP port of the Open Inference Protocol over gRPC; 0 for none."""
    grpc_message_max: int = 16 * MIB
    """Max bytes of one message over gRPC, and at most a quarter of `held_bytes_max`."""
    public_hosts: tuple[str, ...] = ()
    """Accepted names in a Host header, besides the listening address."""
    cors_origins: tuple[str, ...] = ()
    """Web origins whose pages may call functions."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies that are believed about the origin of requests."""
    held_bytes_max: int = 256 * MIB
    """Max bytes of request bodies held at once: arriving, queued and in flight."""
    retries: int = 2
    """How often a request that had started runs again after its replica died."""
    body_read_s: float = 30.0
    """Max seconds for a client to send its body."""
    head_read_s: float = 15.0
    """Max seconds for a client to send a request head, from its first byte, or from the start of a
    new connection."""
    connections: int = 16_384
    """Max simultaneous client connections, if the limit of descriptors allows them."""
    wait_max_s: float = 600.0
    """Max wait in seconds that a client may request with `Prefer: wait`."""
    shutdown_s: float = 60.0
    """Max seconds that a shutdown waits for accepted requests."""
    access_log: bool = False
    """Write one access log line per request."""
    traces: str = ""
    """URL of the OTLP/HTTP endpoint for traces; "" disables traces."""
    traces_sample: float = 1.0
    """Share of requests that are traced (0 to 1), unless the client has decided itself."""
    fast_front: bool = True
    """Read plain requests on the fast path; otherwise aiohttp reads all requests."""
