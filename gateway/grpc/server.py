"""The gRPC server of one gateway process: its port, its limits, its methods, its end."""

from __future__ import annotations

from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gateway.grpc.calls import Calls
from gateway.grpc.infer import Inferences
from gateway.grpc.messages import METHODS, POOL, SERVICE
from gateway.grpc.service import Service
from gateway.http.connections import connections_max
from gateway.http.context import Invoker
from gateway.settings import MIB, GatewaySettings
from registry.tasks import Tasks

log = structlog.get_logger()

REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"
"""The newer name of reflection, with the same messages."""
UNASKED: Final = 64 * 1024
"""Bytes of a message that a client may send before it is read (HTTP/2's initial window)."""
RECEIVE_SHARE: Final = 4
"""One message may take this part (1/N) of the memory for held bodies: 64 MiB by default, which is
the default limit of a function's body."""
STREAM_BYTES: Final = 4 * MIB
"""Held memory per stream that may be open: 64 by default. All of them are read at any time."""
METADATA_MAX: Final = 16 * 1024
PING_MS: Final = 60_000
PING_TIMEOUT_MS: Final = 20_000
CLIENT_PING_MS: Final = 5_000
"""Clients that ping more often are disconnected."""
IDLE_MS: Final = 600_000
"""A connection without calls for this long is closed; clients connect again by themselves."""
LAST_S: Final = 1.0
"""Seconds for the last status messages, and for calls that only their client ends, such as the
watch of health."""


def receive_max(settings: GatewaySettings) -> int:
    """Return the max bytes of one message."""
    return settings.held_bytes_max // RECEIVE_SHARE


def calls_max(settings: GatewaySettings) -> int:
    """Return the max calls at once, read or not: what they send unasked fits into the memory for
    held bodies."""
    return max(1, settings.held_bytes_max // UNASKED)


def streams_max(settings: GatewaySettings) -> int:
    """Return the max open streams."""
    return max(1, settings.held_bytes_max // STREAM_BYTES)


class GrpcServer:
    """The server of one process; `start` and `close` once each, `stop` before `close`."""

    def __init__(self, invoker: Invoker, version: str, *, is_shared: bool) -> None:
        """Create the server, in the event loop. `version`: fngate's release; `is_shared`: other
        processes use its port."""
        settings = invoker.settings
        self._settings = settings
        self._tasks = Tasks("grpc")
        self._calls = Calls(invoker)
        self._inferences = Inferences(self._calls, self._tasks, streams_max(settings))
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(
            options=_options(settings, is_shared=is_shared),
            maximum_concurrent_rpcs=calls_max(settings),
        )
        self._service = Service(invoker, version)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        _add_reflection(self._server)

    def _handlers(self) -> grpc.GenericRpcHandler:
        own = {
            "ModelInfer": grpc.stream_unary_rpc_method_handler(self._inferences.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._inferences.stream),
        }
        others = {
            name: grpc.unary_unary_rpc_method_handler(self._service.handler(name))
            for name in METHODS.keys() - own.keys()
        }
        return grpc.method_handlers_generic_handler(SERVICE, {**own, **others})

    async def start(self) -> int:
        """Start to accept connections; return the port. Raises OSError if it is not available."""
        listen, port = self._settings.listen, self._settings.grpc_port
        address = f"[{listen}]:{port}" if ":" in listen else f"{listen}:{port}"
        try:
            bound: int = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen for gRPC on {listen} port {port}: {error}") from error
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        return bound

    async def stop(self) -> None:
        """Accept nothing more: connections get GOAWAY, streams read no more.

        Accepted calls go on.
        """
        await self._health.enter_graceful_shutdown()
        self._inferences.stop()
        await self._service.waits.stop()
        self._tasks.spawn("stop", self._server.stop(self._settings.shutdown_s + LAST_S))

    async def close(self) -> None:
        """End what is left, after accepted calls were answered."""
        await self._server.stop(LAST_S)
        await self._tasks.close()
        self._calls.close()


def _options(settings: GatewaySettings, *, is_shared: bool) -> list[tuple[str, Any]]:
    connections = connections_max(settings.connections)
    return [
        ("grpc.so_reuseport", int(is_shared)),
        ("grpc.max_receive_message_length", receive_max(settings)),
        # Replicas bound their answers.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_MAX),
        ("grpc.max_concurrent_streams", calls_max(settings)),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", int(settings.head_read_s * 1e3)),
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", CLIENT_PING_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", CLIENT_PING_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
    ]


def _add_reflection(server: grpc.aio.Server) -> None:
    """Add the reflection of all services, by its two names: older and newer clients know one
    each."""
    for one in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(one.DESCRIPTOR.serialized_pb)
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names, pool=POOL)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, REFLECTION_V1):
        generic = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        server.add_generic_rpc_handlers((generic,))
