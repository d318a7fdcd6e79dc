"""Start of the server: `python -I -u python_runner SETTINGS`, run by the path of this folder."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100 - pathlib takes 5 ms

if __name__ == "__main__":
    # A program that is a folder finds its modules in that folder; packages are beside it.
    sys.path[0] = ROOT
    from python_runner.program import main

    # What is imported later is found through its package. The user's code finds none of ours.
    sys.path.remove(ROOT)
    sys.exit(main(sys.argv[1:]))
