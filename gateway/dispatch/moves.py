"""Which calls follow their function's traffic to another revision, and how they are run there.

A call follows that was addressed by plain name and has never begun to run. One that a dying replica
had begun stays with its revision: what is known of it, it is known of that model.
"""

from __future__ import annotations

from gateway.dispatch import admission
from gateway.dispatch.call import Call
from gateway.dispatch.pool import Pool


def readdress(call: Call, pool: Pool, now: float) -> Pool:
    """The pool that `call`, which belonged to `pool` so far, is to wait for; its wait budget and
    its place in line stay. A pool that lets nobody wait at present is followed by nobody."""
    if pool.successor is None or call.pinned or call.alone:
        return pool
    terms = pool.successor.terms
    target = pool.successor.pool
    while target.successor is not None:
        terms, target = target.successor.terms, target.successor.pool
    if admission.refusal(target, now) is not None:
        return pool
    call.pool, call.may_rerun, call.timeout_s = target.key, terms.may_rerun, terms.timeout_s
    return target


def follow(pool: Pool, now: float) -> None:
    """Have everybody who waits for `pool` and may follow its traffic wait there."""
    moving = [call for call in pool.waiting if readdress(call, pool, now) is not pool]
    pool.waiting.remove_all(moving)
    pool.heir.waiting.join(moving)
