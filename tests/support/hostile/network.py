"""Network attacks: ways out of the container, and connections to local services."""

import socket
from pathlib import Path

from trying import all_tried

PATIENCE_S = 1.0


def connected(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(address)
        return sock.getpeername()


def opened(*kind):
    with socket.socket(*kind):
        return "open"


def sent_udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return sock.sendto(b"x", ("1.1.1.1", 53))


def interfaces(_order):
    """Return the network interfaces that the kernel lists."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    unix = Path("/proc/net/unix").read_text().splitlines()[1:]
    abstract = [line.split()[-1] for line in unix if line.split()[-1].startswith("@")]
    names = [line.partition(":")[0].strip() for line in lines]
    return {"interfaces": names, "routes": routes, "abstract": abstract}


def ways_out(order):
    """Try to reach the internet, the host's own ports and the engine. `port`: the server's."""
    inet, unix = socket.AF_INET, socket.AF_UNIX
    return all_tried(
        {
            "world": lambda: connected(inet, ("1.1.1.1", 443)),
            "world, IPv6": lambda: connected(socket.AF_INET6, ("2606:4700:4700::1111", 443)),
            "UDP": sent_udp,
            "names": lambda: socket.getaddrinfo("example.com", 443),
            "the server": lambda: connected(inet, ("127.0.0.1", order["port"])),
            "the host": lambda: connected(inet, ("172.17.0.1", order["port"])),
            "the cloud's metadata": lambda: connected(inet, ("169.254.169.254", 80)),
            "raw": lambda: opened(inet, socket.SOCK_RAW, socket.IPPROTO_ICMP),
            "packets": lambda: opened(socket.AF_PACKET, socket.SOCK_RAW),
            "abstract": lambda: connected(unix, "\0" + order["abstract"]),
            "the engine": lambda: connected(unix, "/var/run/docker.sock"),
            "the engine, by its path": lambda: connected(unix, order["engine"]),
        }
    )


ATTACKS = {"interfaces": interfaces, "ways_out": ways_out}
