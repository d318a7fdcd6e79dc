"""Tests of the protocol's documents about the server and its models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.oip.documents import (
    EXTENSIONS,
    all_served,
    current_revisions,
    index_entry,
    max_batch_size,
    model_config,
    model_metadata,
    server_metadata,
    versions_of,
)
from registry.catalog import Catalog, Deployed
from registry.exchange import PoolEndpoints
from registry.model.functions import Scaling
from registry.model.revisions import Batching, DeviceNeed
from runtime_image.contract import dtypes
from runtime_image.contract.signature import Signature, TensorSpec
from tests.support import nouns


def made(name: str = "digits", **changes: Any) -> Deployed:
    """Return a deployed revision with these changes; it is batched by its profile."""
    function = nouns.function(name, oip_name=changes.pop("oip_name", ""))
    return Deployed(function, nouns.revision(name, **changes), nouns.profile())


def test_the_server_says_what_it_serves() -> None:
    """Name, version and extensions, each extension once."""
    said = server_metadata("1.2.3")

    assert (said["name"], said["version"]) == ("fngate", "1.2.3")
    assert said["extensions"] == sorted(set(EXTENSIONS))
    assert not {"sequence", "trace", "logging", "system_shared_memory"} & set(EXTENSIONS)


def test_metadata_is_the_signature() -> None:
    """Tensors have their names, types and whole shapes; the model its own name here."""
    one = made(oip_name="Digits.v2")
    other = made(number=2, oip_name="Digits.v2")

    assert model_metadata(one, [one, other]) == {
        "name": "Digits.v2",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }


def test_the_configuration_of_a_batched_model() -> None:
    """Where rows are joined, `dims` lacks them, as Triton's clients expect."""
    one = made(batching=Batching(wait_ms=2.5), device=DeviceNeed("cuda"))
    one = replace(one, function=replace(one.function, scaling=Scaling(max=3)))

    assert model_config(one, [one]) == {
        "name": "digits",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"specific": {"versions": [1]}},
        "max_batch_size": 32,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
        "instance_group": [{"name": "digits", "kind": "KIND_GPU", "count": 3}],
        "default_model_filename": "model.onnx",
        "model_transaction_policy": {"decoupled": False},
        "dynamic_batching": {
            "max_queue_delay_microseconds": 2500,
            "priority_levels": 3,
            "default_priority_level": 2,
        },
    }


@pytest.mark.parametrize(
    "changes",
    [{"profile": None}, {"profile": nouns.profile(batch_max=1)}, {"mode": "off"}],
    ids=["unprofiled", "one row", "off"],
)
def test_the_configuration_of_a_model_that_runs_one_by_one(changes: dict[str, Any]) -> None:
    """`max_batch_size` 0 leaves the dims whole, and there is no batcher."""
    one = made(batching=Batching(changes.pop("mode", "auto")))
    one = replace(one, **changes)
    config = model_config(one, [one])

    assert (max_batch_size(one), config["max_batch_size"]) == (0, 0)
    assert config["input"][0]["dims"] == [-1, 4]
    assert "dynamic_batching" not in config


def test_only_rows_are_left_out_of_dims() -> None:
    """A tensor whose first axis is fixed keeps it, and one of rows alone has no dims left."""
    tensors = (TensorSpec("a", "INT64", (-1,)), TensorSpec("b", "INT64", (2, 3)))
    one = made(signature=Signature("tensors", tensors, tensors))

    assert [each["dims"] for each in model_config(one, [one])["input"]] == [[], [2, 3]]


def test_an_unknown_rank_is_one_dynamic_axis() -> None:
    """The protocol has no word for it, and an empty list is a scalar."""
    tensors = (TensorSpec("a", "INT64", None), TensorSpec("b", "INT64", ()))
    one = made(signature=Signature("tensors", tensors, tensors))

    assert [each["shape"] for each in model_metadata(one, [one])["inputs"]] == [[-1], []]
    assert [each["dims"] for each in model_config(one, [one])["output"]] == [[-1], []]


def test_every_datatype_has_a_name_in_the_configuration() -> None:
    """Names are those of Triton's `DataType`; only BYTES is called otherwise."""
    tensors = tuple(TensorSpec(dtype, dtype, (1,)) for dtype in sorted(dtypes.ALL))
    one = made(signature=Signature("tensors", tensors, tensors))
    found = {each["name"]: each["data_type"] for each in model_config(one, [one])["input"]}

    assert found.pop("BYTES") == "TYPE_STRING"
    assert all(data_type == f"TYPE_{dtype}" for dtype, data_type in found.items())


def test_a_handler_is_a_python_model() -> None:
    """Platform and backend are Triton's names of it; the file is without its folders."""
    one = made(engine="python", model="", handler="code/handler.py")
    config = model_config(one, [one])

    assert (config["platform"], config["backend"]) == ("python", "python")
    assert config["default_model_filename"] == "handler.py"


def test_each_version_has_one_revision() -> None:
    """Versions are in the order of their numbers; the newest revision of several answers."""
    catalog = Catalog()
    for number, version in ((1, "10"), (2, "9"), (3, "10"), (4, "")):
        one = made(number=number, oip_version=version)
        catalog.put(replace(one, function=replace(one.function, revision=4)))
    (current,) = catalog.all()

    assert versions_of(catalog.revisions("digits")) == ["4", "9", "10"]
    found = [one.revision.number for one in current_revisions(catalog, current)]
    assert found == [4, 2, 3]


def test_only_tensors_are_served() -> None:
    """Functions of other kinds are no models, nor is a revision of another kind."""
    catalog = Catalog()
    words = Signature("json", (), ())
    for one in (made(), made(number=2, signature=words), made("words", signature=words)):
        catalog.put(one)

    assert [one.revision.ref for one in all_served(catalog)] == ["digits@1"]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("warm", ("READY", "")),
        ("cold", ("READY", "cold")),
        ("waking", ("READY", "waking")),
        ("draining", ("READY", "draining")),
        ("failing", ("UNAVAILABLE", "no such file")),
    ],
)
def test_a_model_that_a_call_wakes_is_ready(state: str, said: tuple[str, str]) -> None:
    """Only a model that fails to load is not available; the reason says why."""
    entry = index_entry(made(oip_name="Digits"), PoolEndpoints([], state, "no such file"))

    assert (entry["name"], entry["version"]) == ("Digits", "1")
    assert (entry["state"], entry["reason"]) == said
