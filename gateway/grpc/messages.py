"""Messages of the Open Inference Protocol, from the compiled `inference.proto` beside this module.

They are in a descriptor pool of their own: a process that also loads Triton's or KServe's client
has messages of the same names in protobuf's default pool.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from registry.errors import BadRequest

SERVICE: Final = "inference.GRPCInferenceService"
PACKAGE: Final = "inference"


def _load() -> Any:
    found = descriptor_pb2.FileDescriptorSet.FromString(
        files(__package__).joinpath("inference.binpb").read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for one in found.file:
        pool.Add(one)
    return pool


POOL: Final = _load()
METHODS: Final[dict[str, Any]] = {
    method.name: method for method in POOL.FindServiceByName(SERVICE).methods
}
"""Descriptors of the service's methods."""


def message(name: str) -> Any:
    """Return the class of the message `name` of the protocol."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def parse(cls: Any, data: bytes) -> Any:
    """Return the parsed message of class `cls`. Raises BadRequest if `data` is no such message."""
    try:
        return cls.FromString(data)
    except DecodeError:
        name = cls.DESCRIPTOR.name
        raise BadRequest(
            f"expected a message {name}, got {len(data)} bytes of something else"
        ) from None
