"""Section of the surface: values in answers, events and records (states, roles, scopes)."""

from __future__ import annotations

from typing import get_args

from pool_manager.core.pool import Pool
from pool_manager.core.state import PoolSpec, Replica, Role, State
from pool_manager.reports import DeviceState
from registry.model.keys import Need
from runtime_image.contract.control import SessionName
from tests.surface import source

KEY = "default/f@1"


def states() -> list[str]:
    """List each value after the name of its kind."""
    return [
        *(f"device state {one}" for one in get_args(DeviceState)),
        *(f"pool state {one}" for one in pool_states()),
        *(f"replica role {one}" for one in get_args(Role)),
        *(f"replica session {one}" for one in get_args(SessionName)),
        *(f"replica state {one.value}" for one in State),
        *(f"scope {one}" for one in get_args(Need)),
        *(f"status {one}" for one in source.values_of("status")),
    ]


def pool_states() -> set[str]:
    """Return the states of a pool with no replica or one in any state, called or not, failing or
    not."""
    found = set()
    for failures, state in ((n, one) for n in (0, 1000) for one in (None, *State)):
        pool = Pool(PoolSpec(KEY), failures=failures, retry_at_s=10.0 * failures)
        if state is not None:
            pool.replicas["r"] = Replica("r", KEY, ("cpu:0",), "serve", 0.0, state)
        found |= {pool.describe(held, 1.0)[0] for held in (0, 1)}
    return found
