"""Whether a call may be held, and if not, the answer it gets."""

from __future__ import annotations

from gateway.dispatch.call import Call
from gateway.dispatch.pool import Pool
from registry.errors import FnError, FunctionFailing, QueueFull, UnknownFunction


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
    waited_s = max(0.0, now - pool.waiting.oldest_s())
    raise QueueFull(text, retry_after_s=pool.pace.retry_after_s(waiting, waited_s, now))


def refusal(pool: Pool, now: float) -> FnError | None:
    """Why nobody may wait for this pool at present, if so."""
    if pool.shown.state == "gone":
        return UnknownFunction("the function was removed")
    if pool.shown.state != "failing" or now >= pool.retry_at_s:
        return None
    return FunctionFailing(
        f"the function fails to load: {pool.shown.reason}",
        retry_after_s=pool.retry_at_s - now,
        admin_detail={"log_tail": list(pool.shown.log_tail)},
    )
