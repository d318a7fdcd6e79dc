"""Entry point of a replica: `python -I -m runtime_image RUN_DIR [ENTRANCE]`.

ENTRANCE is the path of its entrance, if that is not in RUN_DIR.
"""

import gc
import os
import sys
import time

FIRST_LINE_S = time.monotonic()

if __name__ == "__main__":
    # Imports create long-lived objects: a collection in between frees nothing and takes 5 % of a
    # start. The replica enables the collector after its imports.
    gc.disable()
    # One stream: a container engine reads two of them in any order, and the last line of the log
    # is taken for the reason of an exit.
    os.dup2(1, 2)
    from pathlib import Path

    from runtime_image.contract.enrolment import ENTRANCE_FILE
    from runtime_image.contract.server import ENGINE
    from runtime_image.link.record import RecordRefused, engine_of

    enrolment, begun_s = None, FIRST_LINE_S
    entrance = Path(sys.argv[2]) if sys.argv[2:] else Path(sys.argv[1]) / ENTRANCE_FILE
    if sys.argv[2:]:
        # Of an engine that sets no limits of processes: a core dump would lie on its node.
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.argv[2:] or entrance.exists():
        # Of replicas that dial in: `ssl` takes 10 ms.
        from runtime_image.replica.entrance import enrol

        try:
            enrolment, begun_s = enrol(entrance), time.monotonic()
        except RecordRefused as error:
            print(f"fngate replica: {error}", flush=True)  # noqa: T201 - the log is this
            sys.exit(error.exit_code)
    engine = enrolment.record.engine if enrolment else engine_of(Path(sys.argv[1]))
    if engine == ENGINE:
        # The sidecar installs the filter itself, once it has its namespaces and its server.
        from runtime_image.server import main as sidecar

        sys.exit(sidecar.main(sys.argv[1], begun_s, enrolment))
    from runtime_image.seccomp.install import install

    try:
        # First, while there is one thread only and no code of the model has run.
        install()
    except OSError as error:
        sys.exit(f"fngate replica: {error.strerror}")
    if engine == "agent":  # of `contract.agent`, which no replica needs
        from runtime_image.agent import main as agent

        sys.exit(agent.main(sys.argv[1]))
    from runtime_image.replica.main import main

    sys.exit(main(sys.argv[1], begun_s, enrolment))
