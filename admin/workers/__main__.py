"""Entry point of a gateway process: `python -m admin.workers DOOR COUNTERS REVISIONS`."""

import gc
import sys

if __name__ == "__main__":
    # Imports, and functions by the thousand, are long-lived objects: a collection in between frees
    # nothing and takes a fifth of a start. The worker enables the collector before it is ready.
    gc.disable()
    from admin.workers.worker import main

    sys.exit(main())
