"""Container escapes, and what a container can read, write or change of its surroundings."""

import ctypes
import os
import signal
import stat
from pathlib import Path

from trying import all_tried

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, CLONE_NEWNS = 0x1000_0000, 0x0002_0000
MS_REMOUNT, MS_BIND = 32, 4096
PTRACE_ATTACH = 16
# System call numbers of x86-64 (asm/unistd_64.h).
CALLS = {
    "init_module": 175,
    "kexec_load": 246,
    "keyctl": 250,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "bpf": 321,
    "userfaultfd": 323,
}


def succeeded(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def written(path, text="0"):
    with Path(path).open("r+") as file:
        file.write(text)
        file.flush()
    return "written"


def looked(path):
    with Path(path).open("rb") as file:
        return file.read(20).hex()


def mounted(flags, target="/tmp"):
    return succeeded(LIBC.mount(b"none", target.encode(), b"tmpfs", flags, None))


def escapes(order):
    """Try operations that need further privileges. `secret`: a file of the host."""
    attempts = {
        "a host's file": lambda: looked(order["secret"]),
        "a host's file through PID 1": lambda: looked(f"/proc/1/root{order['secret']}"),
        "passwords": lambda: looked("/etc/shadow"),
        "memory": lambda: looked("/dev/mem"),
        "kernel memory": lambda: looked("/proc/kcore"),
        "kernel messages": lambda: looked("/dev/kmsg"),
        "core pattern": lambda: written("/proc/sys/kernel/core_pattern", "|/tmp/x"),
        "sysrq": lambda: written("/proc/sysrq-trigger", "h"),
        "own cgroup": lambda: written("/sys/fs/cgroup/memory/memory.limit_in_bytes", "-1"),
        "own group, v2": lambda: written("/sys/fs/cgroup/memory.max", "max"),
        "hotplug": lambda: written("/sys/kernel/uevent_helper", "/tmp/x"),
        "device": lambda: os.mknod("/tmp/sda", stat.S_IFBLK | 0o600, os.makedev(8, 0)),
        "mount": lambda: mounted(0),
        "remount": lambda: mounted(MS_REMOUNT | MS_BIND, "/"),
        "chroot": lambda: os.chroot("/tmp"),
        "user namespace": lambda: succeeded(LIBC.unshare(CLONE_NEWUSER)),
        "mount namespace": lambda: succeeded(LIBC.unshare(CLONE_NEWNS)),
        "root": lambda: os.setuid(0),
        "host name": lambda: succeeded(LIBC.sethostname(b"x", 1)),
        "nicer": lambda: os.setpriority(os.PRIO_PROCESS, 0, -5),
        "less likely out of memory": lambda: written("/proc/self/oom_score_adj", "-1000"),
    }
    for name, number in CALLS.items():
        attempts[name] = lambda number=number: succeeded(LIBC.syscall(number, 0, 0, 0, 0, 0, 0))
    return all_tried(attempts)


def processes(_order):
    """Return every visible process with its user and command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        found[folder.name] = [folder.stat().st_uid, words]
    return found


def standing(_order):
    """Return this process's privileges as the kernel reports them."""
    wanted = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Groups")
    pairs = [line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()]
    status = {name: value.strip() for name, value in pairs if name in wanted}
    ids = [*os.getresuid(), *os.getresgid()]
    mounts = [line.split()[1:4] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {"status": status, "ids": ids, "mounts": mounts, "limits": limits(), "name": user_name()}


def limits():
    import resource

    # Python has no names for the last two (asm-generic/resource.h).
    numbers = {"core": resource.RLIMIT_CORE, "nofile": resource.RLIMIT_NOFILE}
    numbers |= {"sigpending": 11, "msgqueue": 12}
    return {name: list(resource.getrlimit(number)) for name, number in numbers.items()}


def user_name():
    import getpass

    return getpass.getuser()


def writable(_order):
    """Return every writable file and folder, except those of /proc/PID."""
    found = []
    for folder, folders, names in os.walk("/"):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdecimal() and "self" not in name]
        paths = [Path(folder), *(Path(folder, name) for name in names)]
        found += [str(p) for p in paths if not p.is_symlink() and os.access(p, os.W_OK)]
    return found


def tamper(order):
    """Tamper with the given files. `model` and `run` are the replica's folders."""
    model, run = Path(order["model"]), Path(order["run"])
    file = model / "handler.py"
    return all_tried(
        {
            "write": lambda: written(file),
            "chmod": lambda: file.chmod(0o777),
            "rename": lambda: file.rename(model / "x.py"),
            "delete": file.unlink,
            "create": lambda: (model / "new").write_text("x"),
            "link": lambda: os.link(file, "/tmp/linked"),
            "times": lambda: os.utime(file),
            "write its record": lambda: written(run / "replica.json"),
            "delete its record": (run / "replica.json").unlink,
            "delete its socket": (run / "data.sock").unlink,
            "own its socket": lambda: os.chown(run / "data.sock", os.getuid(), os.getgid()),
            "create in run": lambda: (run / "new").write_text("x"),
        }
    )


def signals(_order):
    """Signal the container's first process and the own parent; both are the same process."""
    return all_tried(
        {
            "ptrace": lambda: succeeded(LIBC.ptrace(PTRACE_ATTACH, 1, 0, 0)),
            "HUP": lambda: os.kill(1, signal.SIGHUP),
            "KILL": lambda: os.kill(1, signal.SIGKILL),
        }
    )


def files(order):
    """Return the entries of these folders and the contents of these files."""
    listings = {path: sorted(os.listdir(path)) for path in order.get("folders", ())}
    return {**listings, **all_tried({p: Path(p).read_text for p in order.get("paths", ())})}


ATTACKS = {
    "escapes": escapes,
    "files": files,
    "processes": processes,
    "signals": signals,
    "standing": standing,
    "tamper": tamper,
    "writable": writable,
}
