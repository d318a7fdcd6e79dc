"""`python -I -m runtime_image RUN_DIR`: one replica."""

import sys
import time

FIRST_LINE_S = time.monotonic()

if __name__ == "__main__":
    from runtime_image.replica.main import main

    sys.exit(main(sys.argv[1], FIRST_LINE_S))
