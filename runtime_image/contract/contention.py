"""Whether other work had the CPUs while a trial measured a model: plain data."""

from __future__ import annotations

from typing import Literal

ContentionState = Literal["unknown", "none", "busy"]
"""`busy`: the measured runs waited for CPUs. `unknown`: not asked, as the verdict does not depend
on times; not reported by the kernel; or measured by an earlier release."""
