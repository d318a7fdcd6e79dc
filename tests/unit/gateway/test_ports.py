"""Tests that implementations of the gateway's ports match them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from admin.history import ServerHistory
from admin.workers.node import ServerClient
from gateway import ports
from pool_manager.manager import Manager
from tests.support.peers import KnownModels, KnownPast, ListeningManager


@pytest.mark.parametrize(
    ("port", "plug"),
    [
        (ports.Pools, Manager),
        (ports.Pools, ListeningManager),
        (ports.CallHistory, ServerHistory),
        (ports.CallHistory, KnownPast),
        (ports.Pools, ServerClient),
        (ports.CallHistory, ServerClient),
        (ports.ModelControl, ServerClient),
        (ports.ModelStatistics, ServerClient),
        (ports.ModelControl, KnownModels),
    ],
)
def test_every_method_of_a_port_is_there(port: type[Any], plug: type[Any]) -> None:
    """Each method of a port exists with the same parameters in the product and in its test
    double."""
    methods = {name: value for name, value in vars(port).items() if inspect.isfunction(value)}
    wanted = {name: list(inspect.signature(value).parameters) for name, value in methods.items()}
    wanted.pop("__init__", None)
    wanted.pop("__subclasshook__", None)

    found = {name: list(inspect.signature(getattr(plug, name)).parameters) for name in wanted}

    assert wanted
    assert found == wanted
