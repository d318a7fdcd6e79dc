"""Entry point of a replica: `python -I -m runtime_image RUN_DIR`."""

import gc
import sys
import time

FIRST_LINE_S = time.monotonic()

if __name__ == "__main__":
    # Imports create long-lived objects: a collection in between frees nothing and takes 5 % of a
    # start. The replica enables the collector after its imports.
    gc.disable()
    from runtime_image.seccomp.install import install

    try:
        # First, while there is one thread only and no code of the model has run.
        install()
    except OSError as error:
        sys.exit(f"fngate replica: {error.strerror}")
    from runtime_image.replica.main import main

    sys.exit(main(sys.argv[1], FIRST_LINE_S))
