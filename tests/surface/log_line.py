"""Writes a line of the server's log with an exception, as JSON, to standard error: a process of its
own, for setting the log up changes the whole process."""

import structlog

from admin.telemetry.logs import set_up

if __name__ == "__main__":
    set_up("json")
    try:
        raise ValueError
    except ValueError:
        structlog.get_logger().exception("event")
