"""gRPC's own services, health and reflection, which need no key and have a small share of their
own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from gateway.grpc.call_admission import AdmittedCall, CallAdmission, CallClass
from gateway.grpc.codes import abort, failure
from gateway.grpc.messages import POOL, SERVICE, parse
from registry.errors import FnError

REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"
"""The newer name of reflection, with the same messages."""
WATCH_S: Final = 3600.0
"""Seconds after which a watch of health is ended; a client that still wants it begins another."""


class Health:
    """The handlers of grpc.health.v1."""

    def __init__(self, admission: CallAdmission) -> None:
        self._admission = admission
        self._servicer = health.aio.HealthServicer()

    async def start(self) -> None:
        """Say that the server and its service serve."""
        for name in ("", SERVICE):
            await self._servicer.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        """Say for good that they serve no more."""
        await self._servicer.enter_graceful_shutdown()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for gRPC."""
        serialize = health_pb2.HealthCheckResponse.SerializeToString
        handlers = {
            "Check": grpc.stream_unary_rpc_method_handler(
                self._check, response_serializer=serialize
            ),
            "Watch": grpc.stream_stream_rpc_method_handler(
                self._watch, response_serializer=serialize
            ),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers)

    async def _check(self, _messages: object, context: Any) -> Message:
        try:
            with self._admission.admit_anyone(CallClass.CHECK, context) as admitted:
                request = await _health_request(admitted)
        except FnError as error:
            await abort(context, failure(error))
        answer: Message = await self._servicer.Check(request, context)
        return answer

    async def _watch(self, _messages: object, context: Any) -> None:
        try:
            with self._admission.admit_anyone(CallClass.WATCH, context) as admitted:
                request = await _health_request(admitted)
                async with asyncio.timeout(WATCH_S):
                    await self._servicer.Watch(request, context)
        except FnError as error:
            await abort(context, failure(error))
        except TimeoutError:
            text = f"a watch ends after {WATCH_S:g} s: begin another one"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)


def reflection_handlers(admission: CallAdmission) -> list[grpc.GenericRpcHandler]:
    """Return the handlers of the reflection of all services, by its two names: older and newer
    clients know one each."""
    for one in (health_pb2, reflection_pb2):
        POOL.AddSerializedFile(one.DESCRIPTOR.serialized_pb)
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names, pool=POOL)

    async def reflect(_messages: object, context: Any) -> AsyncIterator[Message]:
        try:
            with admission.admit_anyone(CallClass.REFLECTION, context) as admitted:
                async for answer in servicer.ServerReflectionInfo(_questions(admitted), context):
                    yield answer
        except FnError as error:
            await abort(context, failure(error))

    handler = grpc.stream_stream_rpc_method_handler(
        reflect, response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        for name in (reflection.SERVICE_NAME, REFLECTION_V1)
    ]


async def _health_request(admitted: AdmittedCall) -> Any:
    return parse(health_pb2.HealthCheckRequest, await admitted.read_one("HealthCheckRequest"))


async def _questions(admitted: AdmittedCall) -> AsyncIterator[Any]:
    while (data := await admitted.read()) is not None:
        yield parse(reflection_pb2.ServerReflectionRequest, data)
