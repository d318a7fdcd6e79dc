"""The gRPC server of one gateway process: its port, its limits, its methods, its end."""

from __future__ import annotations

from typing import Any, Final

import grpc

from gateway.grpc.call_admission import UNASKED, CallAdmission, message_max, rpcs_max
from gateway.grpc.calls import Calls
from gateway.grpc.infer import Inferences
from gateway.grpc.messages import METHODS, SERVICE
from gateway.grpc.public_services import Health, reflection_handlers
from gateway.grpc.service import Service
from gateway.http.connections import connections_max
from gateway.http.context import Invoker
from gateway.settings import GatewaySettings
from registry.tasks import Tasks

STREAMS_MAX: Final = 1024
"""RPCs of one connection at once; a client keeps further ones back."""
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


class GrpcServer:
    """The server of one process; `start` and `close` once each, `stop` before `close`."""

    def __init__(self, invoker: Invoker, version: str, *, is_shared: bool) -> None:
        """Create the server, in the event loop. `version`: fngate's release; `is_shared`: other
        processes use its port."""
        settings = invoker.settings
        self._settings = settings
        self._tasks = Tasks("grpc")
        self._calls = Calls(invoker)
        self._admission = admission = CallAdmission(invoker)
        self._inferences = Inferences(self._calls, admission, self._tasks)
        self._health = Health(admission)
        self._service = Service(invoker, admission, version)
        self._server = grpc.aio.server(
            options=_options(settings, is_shared=is_shared),
            maximum_concurrent_rpcs=rpcs_max(settings),
        )
        handlers = (self._handlers(), self._health.handlers(), *reflection_handlers(admission))
        self._server.add_generic_rpc_handlers(handlers)

    def _handlers(self) -> grpc.GenericRpcHandler:
        own = {
            "ModelInfer": grpc.stream_unary_rpc_method_handler(self._inferences.infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._inferences.stream),
        }
        others = {
            name: grpc.stream_unary_rpc_method_handler(self._service.handler(name))
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
            raise OSError(
                f"cannot listen for gRPC on {listen} port {port}, choose another port with"
                f" --grpc-port or FN_GRPC_PORT: {error}"
            ) from error
        await self._health.start()
        await self._server.start()
        return bound

    async def stop(self) -> None:
        """Accept nothing more: connections get GOAWAY, streams read no more.

        Accepted calls go on.
        """
        await self._health.stop()
        self._inferences.stop()
        await self._service.waits.stop()
        self._tasks.spawn("stop", self._server.stop(self._settings.shutdown_s + LAST_S))

    async def close(self) -> None:
        """End what is left, after accepted calls were answered."""
        await self._server.stop(LAST_S)
        await self._tasks.close()
        self._admission.close()
        self._calls.close()


def _options(settings: GatewaySettings, *, is_shared: bool) -> list[tuple[str, Any]]:
    connections = connections_max(settings.connections)
    return [
        ("grpc.so_reuseport", int(is_shared)),
        ("grpc.max_receive_message_length", message_max(settings)),
        # Probing would open the window of every stream of a connection to 8 MiB and more, read or
        # not; a read opens it for its own message.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", UNASKED),
        # Replicas bound their answers.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", METADATA_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_MAX),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", int(settings.head_read_s * 1e3)),
        ("grpc.keepalive_time_ms", PING_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", CLIENT_PING_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", CLIENT_PING_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS),
    ]
