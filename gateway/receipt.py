"""What an answer says of its own making: the `Server-Timing` header (W3C Server Timing)."""

from __future__ import annotations

from dataclasses import dataclass

from runtime_image.contract.control import PHASES
from runtime_image.link.meta import AnswerMeta


@dataclass(frozen=True, slots=True)
class Receipt:
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
    meta = receipt.meta
    parts = []
    if receipt.is_cold:
        parts.append(f'cold;desc="{receipt.revision} on {receipt.device}"')
    parts.append(f'replica;desc="{receipt.replica}"')
    parts.append(f"queue;dur={receipt.queue_ms:.3f}")
    parts += [f"{p};dur={receipt.phases[p]:.3f}" for p in PHASES if p in receipt.phases]
    compute = "first_run" if receipt.is_first else "compute"
    parts.append(f"decode;dur={meta.decode_us / 1e3:.3f}")
    parts.append(f'batch;dur={meta.batch_us / 1e3:.3f};desc="{meta.rows} rows"')
    parts.append(f"{compute};dur={meta.compute_us / 1e3:.3f}")
    parts.append(f"encode;dur={meta.encode_us / 1e3:.3f}")
    return ", ".join(parts)
