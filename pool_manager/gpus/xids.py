"""What the numbers mean by which the NVIDIA driver reports errors.

Source: NVIDIA, "Xid Errors", chapter "Analyzing Xid Errors with the Xid Catalog"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Immediate Action": here
RESTART_BM means gone, RESET_GPU needs a reset. 48 and 74 have workflows of their own, whose
descriptions ask for a reset or reboot, and 151 asks for a restart of the machine. All others
(RESTART_APP, IGNORE, and what the catalogue gives no action for) leave the GPU usable.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """What an error means for whoever wants to use the GPU."""

    GONE = "gone"
    NEEDS_RESET = "needs a reset"
    APPLICATION = "concerns one application"


GONE: Final = {79: "has fallen off the bus"}
NEEDS_RESET: Final = {
    46: "stopped processing",
    48: "double-bit ECC error",
    62: "halt of an internal controller",
    64: "memory rows could not be remapped",
    74: "NVLink error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "its system processor (GSP) does not answer",
    120: "error of its system processor (GSP)",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "initialisation error",
    151: "key rotation error",
    155: "NVLink error defined by software",
    156: "memory was retired",
    158: "fatal timeout",
}
APPLICATION: Final = {
    13: "graphics engine exception",
    31: "memory page fault",
    43: "stopped processing for one application",
    45: "an application was cleaned up",
    63: "memory rows are remapped at the next reset",
    94: "contained memory error",
}
"""Those seen most often, for the log; not all."""


def severity(xid: int) -> Severity:
    """How bad error `xid` is."""
    if xid in GONE:
        return Severity.GONE
    return Severity.NEEDS_RESET if xid in NEEDS_RESET else Severity.APPLICATION


def meaning(xid: int) -> str:
    """An error in words: "XID 79: has fallen off the bus"."""
    text = GONE.get(xid) or NEEDS_RESET.get(xid) or APPLICATION.get(xid)
    return f"XID {xid}: {text}" if text else f"XID {xid}"
