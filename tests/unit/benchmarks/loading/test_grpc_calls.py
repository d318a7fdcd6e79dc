"""The message that the load of gRPC repeats."""

from __future__ import annotations

from benchmarks.loading.grpc_calls import METHOD, infer_request
from gateway.grpc.messages import METHODS, SERVICE, message, parse


def test_its_bytes_are_the_protocols_message() -> None:
    """Every field of a request, short or long, is where the protocol has it."""
    data = infer_request("m" * 200, "x", (300, 1, 8), "FP32", bytes(9600))

    request = parse(message("ModelInferRequest"), data)

    assert request.model_name == "m" * 200
    [tensor] = request.inputs
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("x", "FP32", [300, 1, 8])
    assert list(request.raw_input_contents) == [bytes(9600)]
    assert request.SerializeToString() == data


def test_the_method_is_one_of_the_service() -> None:
    """The load calls a method that the service has."""
    service, _, method = METHOD.strip("/").partition("/")

    assert service == SERVICE
    assert method in METHODS
