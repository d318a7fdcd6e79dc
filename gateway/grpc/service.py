"""The calls of GRPCInferenceService other than inferences.

Their answers are the documents of REST as messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec
import structlog
from google.protobuf import json_format

from gateway.grpc.call_admission import AnyKey, CallAdmission, CallClass
from gateway.grpc.codes import abort, failure
from gateway.grpc.messages import METHODS, message, parse
from gateway.grpc.metadata import CallHead, read_metadata
from gateway.http.context import Invoker
from gateway.http.oip.served import ServedModels
from gateway.oip import documents
from registry.errors import BadRequest, FnError, NotServed, Unknown
from registry.model.keys import Need

log = structlog.get_logger()

Document = dict[str, Any]
Serve = Callable[[Any, CallHead], Awaitable[Document]]
Handler = Callable[[object, Any], Awaitable[bytes]]

SHOWN_MAX: Final = 100
"""Max characters of a client's text in an error."""


class Method(NamedTuple):
    """How a method is served."""

    need: Need | AnyKey | None
    """The scope, as of the same request over REST; checked before the message is read, and with the
    model's name after it. None if anyone may call the method: its message says nothing and is not
    read."""
    serve: Serve


class Service:
    """Serves each method by a function from its request and its caller to a document."""

    def __init__(self, invoker: Invoker, admission: CallAdmission, version: str) -> None:
        """Create the service of fngate's release `version`."""
        self._invoker = invoker
        self._admission = admission
        self._version = version
        self._models = ServedModels(invoker)
        self.waits: Final = self._models.waits
        self.methods: Final = {
            "ServerLive": Method(None, self._live),
            "ServerReady": Method(None, self._ready),
            "ModelReady": Method("invoke", self._model_ready),
            "ServerMetadata": Method("any", self._server_metadata),
            "ModelMetadata": Method("invoke", self._model_metadata),
            "ModelConfig": Method("invoke", self._model_config),
            "ModelStatistics": Method("read", self._model_statistics),
            "RepositoryIndex": Method("any", self._index),
            "RepositoryModelLoad": Method("deploy", self._load),
            "RepositoryModelUnload": Method("deploy", self._unload),
            "SystemSharedMemoryStatus": Method("any", self._no_regions),
            "SystemSharedMemoryRegister": Method("any", self._no_registering),
            "SystemSharedMemoryUnregister": Method("any", self._no_regions),
            "CudaSharedMemoryStatus": Method("any", self._no_regions),
            "CudaSharedMemoryRegister": Method("any", self._no_registering),
            "CudaSharedMemoryUnregister": Method("any", self._no_regions),
            "TraceSetting": Method("admin", self._trace_setting),
            "LogSettings": Method("admin", self._log_settings),
        }

    def handler(self, method: str) -> Handler:
        """Return gRPC's handler of a method, which reads its message itself, as bytes."""
        (need, serve), described = self.methods[method], METHODS[method]
        request, response = message(described.input_type.name), message(described.output_type.name)

        async def answer(data: bytes, caller: CallHead) -> bytes:
            document = await serve(parse(request, data), caller)
            return bytes(json_format.ParseDict(document, response()).SerializeToString())

        async def handle(_messages: object, context: Any) -> bytes:
            caller = read_metadata(context.invocation_metadata())
            try:
                if need is None:
                    return await answer(b"", caller)
                with self._admission.admit(CallClass.CONTROL, caller, need, context) as admitted:
                    data = await admitted.read_one(described.input_type.name)
                    return admitted.answer(await answer(data, caller))
            except FnError as error:
                found = error
            except Exception:  # error boundary: a defect must not expose internals
                log.exception("a request failed", method=method)
                found = FnError("see the server's log")
            is_admin = self._invoker.access.is_admin(caller.credential)
            return await abort(context, failure(found, for_admin=is_admin))

        return handle

    async def _live(self, _request: Any, _caller: CallHead) -> Document:
        return {"live": True}

    async def _ready(self, _request: Any, _caller: CallHead) -> Document:
        return {"ready": self._invoker.gate.is_open}

    async def _model_ready(self, request: Any, caller: CallHead) -> Document:
        """Answer whether a call would be accepted; of an unknown model that it is not ready."""
        try:
            found = self._models.find(caller.credential, "invoke", request.name, request.version)
        except Unknown:
            return {"ready": False}
        shown = self._invoker.delivery.endpoints(found.revision.key)
        return {"ready": self._invoker.gate.is_open and shown.state != "failing"}

    async def _server_metadata(self, _request: Any, caller: CallHead) -> Document:
        self._models.identify(caller.credential)
        return documents.server_metadata(self._version)

    async def _model_metadata(self, request: Any, caller: CallHead) -> Document:
        found = self._models.find(caller.credential, "invoke", request.name, request.version)
        return self._models.metadata(found)

    async def _model_config(self, request: Any, caller: CallHead) -> Document:
        found = self._models.find(caller.credential, "invoke", request.name, request.version)
        return {"config": self._models.config(found)}

    async def _model_statistics(self, request: Any, caller: CallHead) -> Document:
        models, credential = self._models, caller.credential
        if not request.name:
            models.check(credential, "read")
            counted = await models.statistics()
        else:
            found = models.find(credential, "read", request.name, request.version)
            counted = await models.statistics(found, is_one=bool(request.version))
        return msgspec.to_builtins(counted)  # type: ignore[no-any-return]

    async def _index(self, request: Any, caller: CallHead) -> Document:
        """List every version of the models that the caller may invoke."""
        return {"models": self._models.index(caller.credential, only_ready=request.ready)}

    async def _load(self, request: Any, caller: CallHead) -> Document:
        """Answer once a replica of the model is ready, within the wait budget of a call."""
        found = self._models.find(caller.credential, "deploy", request.model_name)
        wait_s = found.function.limits.wait_s
        await self._models.load(found, _encoded(request.parameters), wait_s)
        return {}

    async def _unload(self, request: Any, caller: CallHead) -> Document:
        """Answer at once; the replicas stop when they are idle."""
        found = self._models.find(caller.credential, "deploy", request.model_name)
        await self._models.unload(found, _encoded(request.parameters))
        return {}

    async def _no_regions(self, request: Any, caller: CallHead) -> Document:
        """Answer about shared memory, or unregister it: there is none, of no name."""
        self._models.identify(caller.credential)
        if request.DESCRIPTOR.name.endswith("StatusRequest") and request.name:
            raise Unknown(f"no shared memory region {request.name[:SHOWN_MAX]!r}: there is none")
        return {}

    async def _no_registering(self, _request: Any, caller: CallHead) -> Document:
        self._models.identify(caller.credential)
        raise NotServed("this server uses no shared memory of clients: send tensors in messages")

    async def _trace_setting(self, request: Any, caller: CallHead) -> Document:
        self._models.check(caller.credential, "admin")
        if request.model_name:
            self._models.find(caller.credential, "admin", request.model_name)
        # A setting without values is Triton's "as before".
        if any(one.value for one in request.settings.values()):
            raise BadRequest(documents.TRACES_FIXED)
        found = documents.trace_settings(self._invoker.settings)
        values = {k: {"value": v if isinstance(v, list) else [v]} for k, v in found.items()}
        return {"settings": values}

    async def _log_settings(self, request: Any, caller: CallHead) -> Document:
        self._models.check(caller.credential, "admin")
        if any(one.WhichOneof("parameter_choice") for one in request.settings.values()):
            raise BadRequest(documents.LOGS_FIXED)
        return {"settings": {key: _log_value(one) for key, one in documents.LOG_SETTINGS.items()}}


def _encoded(parameters: Any) -> bytes:
    """Return parameters of the model repository as the body of the same request over REST."""
    given = {}
    for name, one in parameters.items():
        chosen = one.WhichOneof("parameter_choice")
        value = None if chosen is None else getattr(one, chosen)
        given[name] = "" if isinstance(value, bytes) else value
    return msgspec.json.encode({"parameters": given})


def _log_value(value: object) -> Document:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param": value} if isinstance(value, int) else {"string_param": value}
