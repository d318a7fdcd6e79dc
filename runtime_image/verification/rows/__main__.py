"""`python -m runtime_image.verification.rows MODEL`: print the verdict on a model as a line of
JSON.

The file may be hostile and the parser may have bugs: the process limits itself before it opens it.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from runtime_image.verification.limits import lower_limit

MEMORY_BYTES: Final = 2**30
CPU_S: Final = 30
VERDICT_BYTES: Final = 2**20


def main(path: str) -> None:
    """Limit this process, analyse the model file and print the verdict."""
    # RLIMIT_DATA counts private writable memory; RLIMIT_AS would also count the mapped model.
    lower_limit(resource.RLIMIT_DATA, MEMORY_BYTES)
    lower_limit(resource.RLIMIT_CPU, CPU_S)
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, VERDICT_BYTES)
    from runtime_image.verification.rows.analysis import analyse_file

    sys.stdout.write(json.dumps(asdict(analyse_file(Path(path)))))


if __name__ == "__main__":
    main(sys.argv[1])
