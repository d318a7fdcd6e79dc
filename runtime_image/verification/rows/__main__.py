"""`python -m runtime_image.verification.rows MODEL`: the verdict on a model, as one line of JSON.

The file may be hostile, and a parser may be wrong: the process caps itself before it opens it.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

MEMORY_BYTES: Final = 2**30
CPU_S: Final = 30
VERDICT_BYTES: Final = 2**20


def main(path: str) -> None:
    """Print the verdict."""
    # RLIMIT_DATA counts what is written to; RLIMIT_AS would count the mapped model, too.
    _cap(resource.RLIMIT_DATA, MEMORY_BYTES)
    _cap(resource.RLIMIT_CPU, CPU_S)
    _cap(resource.RLIMIT_CORE, 0)
    _cap(resource.RLIMIT_FSIZE, VERDICT_BYTES)
    from runtime_image.verification.rows.analysis import analyse_file

    sys.stdout.write(json.dumps(asdict(analyse_file(Path(path)))))


def _cap(limit: int, most: int) -> None:
    """Lower a limit; one that is lower already stays."""
    soft, hard = resource.getrlimit(limit)
    known = [number for number in (soft, hard, most) if number != resource.RLIM_INFINITY]
    resource.setrlimit(limit, (min(known), min(known)))


if __name__ == "__main__":
    main(sys.argv[1])
