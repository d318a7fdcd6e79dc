"""`python -m runtime_image.verification.precision ORDER`: do the `Order` in a file, and print the
figures as a line of JSON.

The model may be hostile and the tools may have bugs: the process limits itself before it opens it.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from runtime_image.contract.errors import LoadError
from runtime_image.verification.limits import lower_limit
from runtime_image.verification.precision.order import (
    Figures,
    NotConverted,
    Order,
    from_json,
    limit,
)

TEXT_MAX: Final = 500


def main(path: str) -> None:
    """Limit this process, do the work and print its result."""
    order = from_json(json.loads(Path(path).read_text()))
    # In a container, files in /tmp count as memory, too: the kernel should end this process and
    # not the trial (proc(5)).
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    lower_limit(resource.RLIMIT_CORE, 0)
    if order.cap_mib and order.device_kind == "cpu":  # a GPU's driver maps more than it uses
        lower_limit(resource.RLIMIT_DATA, order.cap_mib * 2**20)
    if order.limit_s:
        lower_limit(resource.RLIMIT_CPU, int(order.limit_s * max(2, order.threads)) + 1)
    if order.bytes_max:
        lower_limit(resource.RLIMIT_FSIZE, order.bytes_max)
    tempfile.tempdir = order.scratch
    logging.disable(logging.CRITICAL)
    sys.stdout.write(json.dumps(_figures(order)))


def _figures(order: Order) -> Figures:
    try:
        if order.task == "make":
            from runtime_image.verification.precision.conversion import make

            figures: Figures = {"why_not": make(order)}
        elif order.task == "time":
            from runtime_image.verification.precision.timing import time_all

            figures = {"why_not": "", "rounds_ms": time_all(order)}
        else:
            from runtime_image.verification.precision.judging import explore, judge

            figures = explore(order) if order.task == "explore" else judge(order)
    except NotConverted as error:
        figures = {"why_not": str(error)}
    except LoadError as error:
        figures = {"why_not": f"{error}{limit(order)}"}
    except Exception as error:  # noqa: BLE001 - converters and models raise anything
        # Without memory, the tools raise anything, too: EncodeError, std::bad_alloc.
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
        figures = {"why_not": f"{text}{limit(order)}"}
    if "refused" in figures:
        figures["refused"] = _short(figures["refused"], order)
    return {**figures, "why_not": _short(figures["why_not"], order)}


def _short(text: str, order: Order) -> str:
    """Return a text without this replica's folders, as one line."""
    for folder in (order.scratch, order.folder):
        text = text.replace(f"{folder}/", "")
    return " ".join(text.split())[:TEXT_MAX]


if __name__ == "__main__":
    main(sys.argv[1])
