"""What an answer says of its own making: the `Server-Timing` header (W3C Server Timing)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from runtime_image.contract.control import PHASES
from runtime_image.link.meta import AnswerMeta


class Receipt(NamedTuple):
    """Where the time went; milliseconds. `phases` is empty unless a cold start was waited for."""

    revision: str
    replica: str
    device: str
    queue_ms: float
    phases: dict[str, float]
    is_first: bool
    meta: AnswerMeta

    @property
    def is_cold(self) -> bool:
        """Whether this request waited for a cold start."""
        return bool(self.phases)


def server_timing(receipt: Receipt) -> str:
    """The header's value. A cold start is marked by the metric `cold` and lists its phases."""
    revision, replica, device, queue_ms, phases, is_first, meta = receipt
    _, decode_us, batch_us, compute_us, encode_us, rows = meta
    cold = all_phases = ""
    if phases:
        cold = f'cold;desc="{revision} on {device}", '
        all_phases = "".join(f"{p};dur={phases[p]:.3f}, " for p in PHASES if p in phases)
    compute = "first_run" if is_first else "compute"
    return (
        f'{cold}replica;desc="{replica}", queue;dur={_ms(round(queue_ms * 1e3))}, {all_phases}'
        f'decode;dur={_ms(decode_us)}, batch;dur={_ms(batch_us)};desc="{rows} rows", '
        f"{compute};dur={_ms(compute_us)}, encode;dur={_ms(encode_us)}"
    )


@lru_cache(maxsize=8192)
def _ms(us: int) -> str:
    """Microseconds as the header has them; short times come again and again."""
    return f"{us / 1e3:.3f}"
