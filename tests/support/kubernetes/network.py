"""The network of the double's Pods: one bridge of this machine, one namespace for each Pod."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.dial_in.places import HOLD

SUBNETS: Final = 65_536
"""Ranges of 128 addresses each, of 10.128.0.0/9; no other test network uses them."""
PODS_MAX: Final = 120
"""Pods of a network; its addresses are reused in a round, as by CNI's host-local."""
FORWARDING, DISABLED = 3, 0
"""States of a port of a bridge (linux/if_bridge.h)."""
_BRIDGE = re.compile(r"fnk(\d+)-\d+")
_numbers = itertools.count()


class Network:
    """A bridge. `address` is this machine's, as Pods dial it."""

    def __init__(self) -> None:
        _sweep()
        number = next(_numbers)
        self.name = f"fnk{os.getpid()}-{number}"
        self._base = (10 << 24) + (128 << 16) + (os.getpid() * 4 + number) % SUBNETS * 128
        self.address = _shown(self._base + 1)
        self._next = itertools.cycle(range(2, 2 + PODS_MAX))
        self._used: set[int] = set()
        # A bridge without an address of its own takes the lowest one of its ports, anew with each.
        hardware = _hardware(self.address)
        _run("ip", "link", "add", self.name, "address", hardware, "type", "bridge")
        _run("ip", "address", "add", f"{self.address}/25", "dev", self.name)
        _run("ip", "link", "set", self.name, "up")

    def pod(self, sysctls: Mapping[str, str]) -> PodNetwork:
        """Make the network of a Pod, with these settings of the kernel (`net.` ones)."""
        number = next(one for one in self._next if one not in self._used)
        self._used.add(number)
        try:
            return PodNetwork(self, number, _shown(self._base + number), sysctls)
        except BaseException:
            self._used.discard(number)
            raise

    def give_back(self, number: int) -> None:
        """Let another Pod have the address."""
        self._used.discard(number)

    def close(self) -> None:
        """Remove the bridge."""
        _run("ip", "link", "delete", self.name)


class PodNetwork:
    """A network namespace with an address, held by a process as by the pause container. Neighbours
    are set by hand, so that packets of a node that is cut off vanish without an error."""

    def __init__(
        self, network: Network, number: int, address: str, sysctls: Mapping[str, str]
    ) -> None:
        self.address = address
        self._network, self._number = network, number
        self._device = f"{network.name.replace('fnk', 'fnp')}.{number}"[-15:]
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-ec", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"held\n", "no network namespace"
        self.pid = self._holder.pid
        hardware, bridge = _hardware(address), _hardware(network.address)
        _batch(
            f"link add {self._device} type veth peer name eth0 netns {self.pid}",
            f"link set {self._device} master {network.name} up",
            f"neighbour replace {address} lladdr {hardware} dev {network.name} nud permanent",
        )
        _batch(
            f"link set eth0 address {hardware}",
            f"address add {address}/25 dev eth0",
            "link set eth0 up",
            f"route add default via {network.address}",
            f"neighbour replace {network.address} lladdr {bridge} dev eth0 nud permanent",
            inside=self.pid,
        )

        for name, value in sysctls.items():
            path = f"/proc/sys/{name.replace('.', '/')}"
            enter = ["nsenter", f"--target={self.pid}", "--net"]
            _run(*enter, "sh", "-c", 'printf %s "$1" > "$2"', "sh", value, path)

    def cut(self, *, is_cut: bool) -> None:
        """Drop all packets from and to it, or none."""
        state = DISABLED if is_cut else FORWARDING
        _run("bridge", "link", "set", "dev", self._device, "state", str(state))

    def close(self) -> None:
        """End it."""
        _run("ip", "link", "delete", self._device)
        forget = ["ip", "neighbour", "delete", self.address, "dev", self._network.name]
        subprocess.run(forget, stderr=subprocess.DEVNULL, check=False)
        self._holder.communicate()
        self._network.give_back(self._number)


def _sweep() -> None:
    """Remove the bridges of processes that have ended."""
    for device in Path("/sys/class/net").iterdir():
        found = _BRIDGE.fullmatch(device.name)
        if found and not Path("/proc", found[1]).exists():
            subprocess.run(
                ["ip", "link", "delete", device.name], stderr=subprocess.DEVNULL, check=False
            )


def _batch(*lines: str, inside: int = 0) -> None:
    enter = ["nsenter", f"--target={inside}", "--net"] if inside else []
    words = [*enter, "ip", "-batch", "-"]
    subprocess.run(words, input="\n".join(lines).encode(), check=True, capture_output=True)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _hardware(address: str) -> str:
    """Return the hardware address of an interface, as CNI derives it from the other one."""
    return "0a:58:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def _shown(address: int) -> str:
    return ".".join(map(str, address.to_bytes(4, "big")))
