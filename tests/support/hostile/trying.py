"""How an attempt is told: what was got, or by which error it was refused."""

import errno
import threading


def tried(attempt):
    """`{"got": text}`, or `{"refused": name}` with the name of the error."""
    try:
        return {"got": str(attempt())[:2000]}
    except OSError as error:
        return {"refused": errno.errorcode.get(error.errno, type(error).__name__)}
    except Exception as error:  # noqa: BLE001 - whatever a library makes of it
        return {"refused": type(error).__name__}


def all_tried(attempts):
    """Of each attempt by its name."""
    return {name: tried(attempt) for name, attempt in attempts.items()}


def waited(seconds):
    """As a handler that hangs does."""
    threading.Event().wait(seconds)
