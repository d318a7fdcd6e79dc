"""Minimal shell with job control: runs one command in the foreground of its terminal.

Run as a program. It prints on the terminal how the command ended or that it stopped, and whether
the terminal settings were restored. While the command is stopped, any input line continues it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios


def run(command: list[str]) -> int:
    """Run `command`; return its exit code, negative for a signal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # Ignored because a shell takes the terminal back while in the background.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    before = termios.tcgetattr(0)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(command[0], command)
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        is_same = termios.tcgetattr(0) == before
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            say(f"[ended {code} {'same' if is_same else 'changed'}]")
            return code
        say(f"[stopped {'same' if is_same else 'changed'}]")
        sys.stdin.readline()
        os.tcsetpgrp(0, child)
        os.killpg(child, signal.SIGCONT)


def say(text: str) -> None:
    """Write a line to the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]) & 0xFF)
