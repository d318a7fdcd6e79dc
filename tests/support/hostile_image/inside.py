"""Attacks from inside a server's container: on its sidecar, its neighbours and the host."""

import ctypes
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from trying import all_tried, waited

LIBC = ctypes.CDLL(None, use_errno=True)
SERVER = []
"""The HTTP server of this process."""
KEPT = []
SUID = "/suid"
AF_VSOCK, HYPERVISOR, OWN_HOST = 40, 2, 1
SOCK_DIAG, SOCK_DESTROY = 4, 21
NEW_LINK, NEW_ADDRESS, NEW_ROUTE = 16, 20, 24
REQUEST_AND_ACK = 5
TCP_REPAIR = 19
CLONE_NEWNET = 0x4000_0000
CALLS = {
    "setns": (308, -1, CLONE_NEWNET),
    "pivot_root": (155, b"/tmp", b"/tmp"),
    "umount": (166, b"/proc/keys", 0),
    "reboot": (169, 0, 0),
    "swapoff": (168, b"/dev/null", 0),
    "settimeofday": (164, b"\0" * 16, 0),
    "adjtimex": (159, b"\x01" + b"\0" * 300, 0),
    "iopl": (172, 3, 0),
    "fsopen": (430, b"tmpfs", 0),
    "open_tree": (428, -100, b"/"),
    "pidfd_getfd": (438, 0, 0),
    "quotactl": (179, 0, 0),
    "syslog": (103, 3, 0),
    "domain name": (171, b"x", 1),
    "add_key": (248, b"user", b"k"),
    "fanotify": (300, 0, 0),
    "vhangup": (153, 0, 0),
    "acct": (163, b"/tmp/x", 0),
}


def call(number, *words):
    result = LIBC.syscall(ctypes.c_long(number), *words, 0, 0, 0, 0)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def into(path):
    """Write to a file of the system, or create it."""
    with Path(path).open("r+b" if Path(path).exists() else "wb", buffering=0) as file:
        return file.write(b"0")


def asked(kind, protocol=0, body=b""):
    """Send a request to the kernel over netlink(7); raise the error that it answers."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as sock:
        sock.settimeout(1)
        sock.bind((0, 0))
        sock.send(struct.pack("=IHHII", 16 + len(body), kind, REQUEST_AND_ACK, 1, 0) + body)
        answer = sock.recv(4096)
    code = struct.unpack_from("=i", answer, 16)[0]
    if code:
        raise OSError(-code, "refused")
    return "done"


def vsock(cid):
    with socket.socket(AF_VSOCK) as sock:
        sock.settimeout(0.2)
        sock.connect((cid, 1024))
        return "connected"


def real_time():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def repaired():
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)


def privileged(_order):
    """Try what needs a capability, beyond `host.escapes`."""
    attempts = {
        "names of hosts": lambda: into("/etc/hosts"),
        "resolvers": lambda: into("/etc/resolv.conf"),
        "the init": lambda: into("/sbin/docker-init"),
        "its own program": lambda: into("/attack/serve.py"),
        "another program": lambda: into("/usr/local/bin/sh"),
        "network of the init": lambda: os.open("/proc/1/ns/net", os.O_RDONLY) and call(308, 0, 0),
        "settings of the network": lambda: into("/proc/sys/net/ipv4/ip_local_port_range"),
        "settings of all networks": lambda: into("/proc/sys/net/ipv4/tcp_mem"),
        "randomness": lambda: into("/proc/sys/kernel/randomize_va_space"),
        "system-wide files": lambda: into("/proc/sys/fs/file-max"),
        "devices of the host": lambda: into("/sys/class/net/lo/mtu"),
        "power": lambda: into("/sys/power/state"),
        "memory of the group": lambda: into("/sys/fs/cgroup/memory/cgroup.procs"),
        "release agent": lambda: into("/sys/fs/cgroup/release_agent"),
        "root by chown": lambda: os.chown("/tmp", 0, 0),
        "real time": real_time,
        "interface down": lambda: asked(NEW_LINK, 0, struct.pack("=BxHiII", 0, 0, 1, 0, 1)),
        "another address": lambda: asked(
            NEW_ADDRESS, 0, struct.pack("=BBBBi", 2, 8, 0, 0, 1) + b"\x08\0\x02\0\x0a\0\0\x01"
        ),
        "a route": lambda: asked(
            NEW_ROUTE, 0, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0)
        ),
        "end of other sockets": lambda: asked(
            SOCK_DESTROY, SOCK_DIAG, struct.pack("=BBBxI", 2, 6, 0, -1 & 0xFFFF_FFFF) + b"\0" * 48
        ),
        "repair of connections": repaired,
        "the hypervisor": lambda: vsock(HYPERVISOR),
        "the host's own sockets": lambda: vsock(OWN_HOST),
    }
    for name, (number, *words) in CALLS.items():
        attempts[name] = lambda number=number, words=words: call(number, *words)
    return all_tried(attempts)


def around(order):
    """Return what shows of the surroundings: listeners, Unix sockets, mounts, processes,
    variables."""
    return {
        "listeners": [line for name in ("tcp", "tcp6") for line in listening(name)],
        "unix": Path("/proc/net/unix").read_text(),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "group": Path("/proc/self/cgroup").read_text(),
        "processes": sorted(
            (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
            for folder in Path("/proc").glob("[0-9]*")
        ),
        "variables": dict(os.environ),
        "exists": [path for path in order.get("paths", ()) if os.path.lexists(path)],
        "reserved": Path("/proc/sys/net/ipv4/ip_local_reserved_ports").read_text().strip(),
    }


def listening(name):
    lines = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return [int(one[1].rpartition(":")[2], 16) for one in fields if one[3] == "0A"]


def knock(order):
    """Connect to these addresses over TCP and UDP."""

    def tcp(host, port):
        with socket.create_connection((host, port), 0.5):
            return "connected"

    def udp(host, port):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            return sock.sendto(b"x", (host, port))

    attempts = {}
    for host, port in order["addresses"]:
        attempts[f"{host}:{port}"] = lambda host=host, port=port: tcp(host, port)
        if not host.startswith("127."):
            attempts[f"{host}:{port}/udp"] = lambda host=host, port=port: udp(host, port)
    return all_tried(attempts)


def setuid(_order):
    """Run the image's program of root that takes on its user."""
    code = "import os; print(os.geteuid(), os.getegid())"
    run = subprocess.run([SUID, "-I", "-c", code], capture_output=True, text=True, check=False)
    return run.stdout.split()


def ports(order):
    """Listen on other ports: below 1024, the own one again, and for `seconds` on every port that
    connections are made from."""
    taken = []
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())

    def listen(host, port):
        sock = socket.socket()
        sock.bind((host, port))
        sock.listen()
        taken.append(sock)
        return "listens"

    said = all_tried(
        {
            "below 1024": lambda: listen("127.0.0.1", 80),
            "its own again": lambda: listen("127.0.0.1", int(os.environ["PORT"])),
        }
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for port in range(first, min(last + 1, first + soft - 200)):
        sock = socket.socket()
        try:
            sock.bind(("0.0.0.0", port))
            taken.append(sock)
        except OSError:
            sock.close()

    def release():
        waited(order["seconds"])
        for one in taken:
            one.close()

    threading.Thread(target=release).start()
    return {**said, "taken": len(taken)}


def serve():
    """Serve in the background."""
    threading.Thread(target=SERVER[0].serve_forever, args=(0.02,), daemon=True).start()


def deafen(order):
    """Close the listener for `seconds`."""
    server = SERVER[0]
    address = server.server_address
    server.shutdown()
    server.socket.close()

    def again():
        waited(order["seconds"])
        server.socket = socket.socket()
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.socket.bind(address)
        server.socket.listen(1024)
        serve()

    threading.Thread(target=again).start()
    return "deaf"


def files(_order):
    """Open files until refused; return how many."""
    opened = []
    try:
        while True:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        code = error.errno
    for one in opened:
        os.close(one)
    return {"opened": len(opened), "refused": code}


THREADS = """
import os, threading
ended, started = threading.Event(), 0
threading.stack_size(65536)
try:
    while started < {most}:
        threading.Thread(target=ended.wait, daemon=True).start()
        started += 1
except RuntimeError:
    pass
os.write(1, b"%d" % started)
os._exit(0)
"""


def threads(order):
    """Start threads until refused; return how many. They are a process of their own, which ends
    with all of them."""
    code = THREADS.format(most=order["most"])
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, check=True)
    return int(run.stdout)


def zombies(order):
    """Leave orphans that end at once, for somebody else to reap; return how many stay."""
    code = f"import os\nfor _ in range({order['count']}):\n if not os.fork(): os._exit(0)"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        states = [line for line in map(state, Path("/proc").glob("[0-9]*")) if line == "Z"]
        if not states:
            return 0
        waited(0.02)
    return len(states)


def state(folder):
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def survive(order):
    """Start a process in a session of its own that ignores TERM and clears its environment."""
    code = (
        f"import signal,time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600) # {order['mark']}"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", code], env={}, start_new_session=True, stdin=subprocess.DEVNULL
    )
    KEPT.append(process)
    return process.pid


def unread(order):
    """Fill connections to itself that nobody reads; return the KiB of each on average."""
    pairs, sent = [], 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for _ in range(order["connections"]):
            pairs.append(socket.create_connection(listener.getsockname()))
            pairs.append(listener.accept()[0])
    for one in pairs:
        one.setblocking(False)
        try:
            while True:
                sent += one.send(b"x" * 65536)
        except BlockingIOError:
            pass
    for one in pairs:
        one.close()
    return sent / order["connections"] / 1024


def shared_memory(order):
    """Take System V shared memory until refused or killed; return the MiB."""
    taken = 0
    while taken < order["mib"]:
        id = LIBC.shmget(0, 1 << 20, 0o1600)
        if id < 0:
            break
        LIBC.shmat.restype = ctypes.c_void_p
        place = LIBC.shmat(id, None, 0)
        ctypes.memset(place, 1, 1 << 20)
        LIBC.shmctl(id, 0, None)
        taken += 1
    return taken


def lines(order):
    """Write lines that look like somebody else's, and escape sequences; then end with a code."""
    text = "".join(f"{line}\n" for line in order["lines"])
    os.write(1, text.encode())
    os.write(2, text.encode())
    if order.get("code") is not None:
        waited(0.2)
        os._exit(order["code"])
    return "written"


def hold_all(_order):
    """Stop itself. This thread may run on for a moment."""
    os.kill(os.getpid(), signal.SIGSTOP)
    waited(60)


ATTACKS = {
    "around": around,
    "deafen": deafen,
    "hold_all": hold_all,
    "knock": knock,
    "lines": lines,
    "open": files,
    "ports": ports,
    "privileged": privileged,
    "setuid": setuid,
    "shared_memory": shared_memory,
    "survive": survive,
    "threads": threads,
    "unread": unread,
    "zombies": zombies,
}
