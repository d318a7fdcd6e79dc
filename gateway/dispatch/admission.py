"""Whether a call may be held, and if not, the answer it gets."""

from __future__ import annotations

from gateway.dispatch.call import Call
from gateway.dispatch.pool import Pool
from registry.errors import (
    FnError,
    FunctionFailing,
    QueueFull,
    ShuttingDown,
    UnknownFunction,
    WaitBudgetOver,
)

TAKEOVER_S = 2.0
"""After how long a client should try again that a process without its supervisor turned away."""


def check(call: Call, pool: Pool, now: float, held_bytes: int, bytes_max: int) -> None:
    """Raises UnknownFunction, FunctionFailing or QueueFull where `call` must be turned away."""
    error = refusal(pool, now)
    if error is not None:
        raise error
    waiting = len(pool.waiting)
    if waiting >= call.queue_max:
        text = f"{waiting} requests wait already, at most {call.queue_max} may"
    elif held_bytes + len(call.body) > bytes_max:
        text = f"the requests held have {held_bytes} bytes, at most {bytes_max} are allowed"
    else:
        return
    raise QueueFull(text, retry_after_s=pool.retry_after_s(now))


def foresee(call: Call, pool: Pool, now: float) -> None:
    """Raises WaitBudgetOver where `call` would wait for a cold start in vain. It goes on: the pool
    is wanted as if the call waited."""
    budget_s = call.wait_until_s - call.arrived_s
    if pool.is_served or not pool.pace.is_too_long(pool.waking_s(now), budget_s):
        return
    pool.want(now)
    pool.watch(now)
    text = (
        f"the function is started, which takes about {pool.pace.expected.p50_s:.3g} s;"
        f" this request may wait {budget_s:.3g} s"
    )
    raise WaitBudgetOver(text, retry_after_s=pool.retry_after_s(now))


def refusal(pool: Pool, now: float) -> FnError | None:
    """Why nobody may wait for this pool at present, if so."""
    if pool.shown.state == "gone":
        return UnknownFunction("the function was removed")
    if not pool.has_manager and not pool.is_open:
        text = "nothing can be started: the server is gone, and the next one has to take over"
        return ShuttingDown(text, retry_after_s=TAKEOVER_S)
    if pool.shown.state != "failing" or now >= pool.retry_at_s:
        return None
    return FunctionFailing(
        f"the function fails to load: {pool.shown.reason}",
        retry_after_s=pool.retry_at_s - now,
        admin_detail={"log_tail": list(pool.shown.log_tail)},
    )
