"""`python -I -m runtime_image RUN_DIR`: one replica."""

import gc
import sys
import time

FIRST_LINE_S = time.monotonic()

if __name__ == "__main__":
    # Imports make objects that stay: collecting in between finds nothing and takes 5 % of a start.
    # The replica enables the collector once it has imported what it needs.
    gc.disable()
    from runtime_image.seccomp.install import install

    try:
        # First, while there is no other thread and nothing of the model.
        install()
    except OSError as error:
        sys.exit(f"fngate replica: {error.strerror}")
    from runtime_image.replica.main import main

    sys.exit(main(sys.argv[1], FIRST_LINE_S))
