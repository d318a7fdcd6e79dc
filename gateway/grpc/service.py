"""The calls of GRPCInferenceService other than inferences.

Their answers are the documents of REST as messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import structlog
from google.protobuf import json_format

from gateway.access import Need
from gateway.grpc.codes import failure
from gateway.grpc.messages import METHODS, message, parse
from gateway.grpc.metadata import CallHead, read_metadata
from gateway.http.context import Invoker
from gateway.http.oip.extensions import LOG_SETTINGS, trace_settings
from gateway.oip import documents, repository, statistics
from gateway.oip.names import find_served, served_name, served_version
from gateway.ports import ModelControl
from gateway.waits import OpenWaits
from registry.catalog import Deployed
from registry.errors import BadRequest, FnError, NotServed, ShuttingDown, Unknown

log = structlog.get_logger()

Document = dict[str, Any]
Serve = Callable[[Any, CallHead], Awaitable[Document]]
Handler = Callable[[bytes, Any], Awaitable[bytes]]

SHOWN_MAX: Final = 100
"""Max characters of a client's text in an error."""
_FIXED: Final = "these settings cannot be changed while the server runs: set {}"


class Service:
    """Serves each method by a function from its request and its caller to a document."""

    def __init__(self, invoker: Invoker, version: str) -> None:
        """Create the service of fngate's release `version`."""
        self._invoker = invoker
        self._version = version
        self.waits: Final = OpenWaits()
        self._serves: dict[str, Serve] = {
            "ServerLive": self._live,
            "ServerReady": self._ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "SystemSharedMemoryStatus": self._no_regions,
            "SystemSharedMemoryRegister": self._no_registering,
            "SystemSharedMemoryUnregister": self._no_regions,
            "CudaSharedMemoryStatus": self._no_regions,
            "CudaSharedMemoryRegister": self._no_registering,
            "CudaSharedMemoryUnregister": self._no_regions,
            "TraceSetting": self._trace_setting,
            "LogSettings": self._log_settings,
        }

    @property
    def methods(self) -> list[str]:
        """Names of the methods."""
        return list(self._serves)

    def handler(self, method: str) -> Handler:
        """Return gRPC's handler of a method, of bytes in both directions."""
        serve, described = self._serves[method], METHODS[method]
        request, response = message(described.input_type.name), message(described.output_type.name)

        async def handle(data: bytes, context: Any) -> bytes:
            caller = read_metadata(context.invocation_metadata())
            try:
                document = await serve(parse(request, data), caller)
                answer = json_format.ParseDict(document, response())
                return bytes(answer.SerializeToString())
            except FnError as error:
                found = error
            except Exception:  # error boundary: a defect must not expose internals
                log.exception("a request failed", method=method)
                found = FnError("see the server's log")
            is_admin = self._invoker.access.is_admin(caller.authorization)
            failed = failure(found, for_admin=is_admin)
            await context.abort(failed.code, failed.text, failed.metadata)
            raise AssertionError("abort raises")

        return handle

    def _check_caller(self, caller: CallHead) -> None:
        """Raise NoKey unless the caller has any key, or needs none."""
        access = self._invoker.access
        if caller.authorization is not None or not access.is_open:
            access.caller(caller.authorization)

    def _check(self, caller: CallHead, need: Need, name: str = "") -> None:
        """Raise NoKey or WrongScope unless the caller has the scope `need`, for function `name`.

        While the server is open to anyone, only `admin` needs a key.
        """
        access = self._invoker.access
        if caller.authorization is not None or need == "admin" or not access.is_open:
            access.check(caller.authorization, need, name)

    def _model(self, caller: CallHead, need: Need, name: str, version: str = "") -> Deployed:
        """Return the revision that a request names. Raises FnError, first for a lack of rights."""
        catalog = self._invoker.catalog
        found = catalog.find_oip(name, version)
        self._check(caller, need, name if found is None else found.function.name)
        return find_served(catalog, name, version)

    def _revisions(self, deployed: Deployed) -> tuple[Deployed, ...]:
        function = deployed.function
        return self._invoker.catalog.revisions(function.name, function.namespace)

    async def _live(self, _request: Any, _caller: CallHead) -> Document:
        return {"live": True}

    async def _ready(self, _request: Any, _caller: CallHead) -> Document:
        return {"ready": self._invoker.gate.is_open}

    async def _model_ready(self, request: Any, caller: CallHead) -> Document:
        """Answer whether a call would be accepted; of an unknown model that it is not ready."""
        try:
            found = self._model(caller, "invoke", request.name, request.version)
        except Unknown:
            return {"ready": False}
        shown = self._invoker.delivery.endpoints(found.revision.key)
        return {"ready": self._invoker.gate.is_open and shown.state != "failing"}

    async def _server_metadata(self, _request: Any, caller: CallHead) -> Document:
        self._check_caller(caller)
        return documents.server_metadata(self._version)

    async def _model_metadata(self, request: Any, caller: CallHead) -> Document:
        found = self._model(caller, "invoke", request.name, request.version)
        return documents.model_metadata(found, self._revisions(found))

    async def _model_config(self, request: Any, caller: CallHead) -> Document:
        found = self._model(caller, "invoke", request.name, request.version)
        return {"config": documents.model_config(found, self._revisions(found))}

    async def _model_statistics(self, request: Any, caller: CallHead) -> Document:
        catalog = self._invoker.catalog
        if request.name:
            asked = self._model(caller, "read", request.name, request.version)
            models = [asked] if request.version else documents.current_revisions(catalog, asked)
        else:
            self._check(caller, "read")
            models = [
                one
                for function in catalog.all()
                if function.revision.signature.kind == "tensors"
                for one in documents.current_revisions(catalog, function)
            ]
        found = await self._invoker.statistics.statistics([one.revision.key for one in models])
        return statistics.document(
            statistics.Served(served_name(one), served_version(one), numbers)
            for one, numbers in zip(models, found, strict=True)
        )

    async def _index(self, request: Any, caller: CallHead) -> Document:
        """List every version of the models that the caller may invoke."""
        self._check_caller(caller)
        catalog, delivery = self._invoker.catalog, self._invoker.delivery
        mine = (
            one
            for function in catalog.all()
            if function.revision.signature.kind == "tensors"
            and self._invoker.access.allows(caller.authorization, "invoke", function.function.name)
            for one in documents.current_revisions(catalog, function)
        )
        entries = (documents.index_entry(one, delivery.endpoints(one.revision.key)) for one in mine)
        ready = documents.READY
        return {"models": [one for one in entries if not request.ready or one["state"] == ready]}

    async def _load(self, request: Any, caller: CallHead) -> Document:
        """Answer once a replica of the model is ready, within the wait budget of a call."""
        found = self._model(caller, "deploy", request.model_name)
        repository.check_load(_encoded(request.parameters))
        if not self._invoker.gate.is_open:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        await self.waits.run(self._control().load(found, found.function.limits.wait_s))
        return {}

    async def _unload(self, request: Any, caller: CallHead) -> Document:
        """Answer at once; the replicas stop when they are idle."""
        found = self._model(caller, "deploy", request.model_name)
        repository.check_unload(_encoded(request.parameters))
        await self._control().unload(found)
        return {}

    def _control(self) -> ModelControl:
        control = self._invoker.model_control
        if control is None:
            raise NotServed("this process can neither load nor unload models")
        return control

    async def _no_regions(self, request: Any, caller: CallHead) -> Document:
        """Answer about shared memory, or unregister it: there is none, of no name."""
        self._check_caller(caller)
        if request.DESCRIPTOR.name.endswith("StatusRequest") and request.name:
            raise Unknown(f"no shared memory region {request.name[:SHOWN_MAX]!r}: there is none")
        return {}

    async def _no_registering(self, _request: Any, caller: CallHead) -> Document:
        self._check_caller(caller)
        raise NotServed("this server uses no shared memory of clients: send tensors in messages")

    async def _trace_setting(self, request: Any, caller: CallHead) -> Document:
        self._check(caller, "admin")
        if request.model_name:
            self._model(caller, "admin", request.model_name)
        # A setting without values is Triton's "as before".
        if any(one.value for one in request.settings.values()):
            raise BadRequest(_FIXED.format("FN_TRACES and FN_TRACES_SAMPLE"))
        found = trace_settings(self._invoker.settings)
        values = {k: {"value": v if isinstance(v, list) else [v]} for k, v in found.items()}
        return {"settings": values}

    async def _log_settings(self, request: Any, caller: CallHead) -> Document:
        self._check(caller, "admin")
        if any(one.WhichOneof("parameter_choice") for one in request.settings.values()):
            raise BadRequest(_FIXED.format("FN_LOG_FORMAT and FN_ACCESS_LOG"))
        return {"settings": {key: _log_value(one) for key, one in LOG_SETTINGS.items()}}


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
