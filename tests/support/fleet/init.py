"""First process of a stand-in host, in namespaces of its own (pid, net, mount, uts).

`python init.py ROOT NAME`. All processes, mounts and interfaces of the host end with it, and it
ends with its standard input, that is with the test run. Writes "held" when the host is set up.
"""

import os
import signal
import subprocess
import sys

# The disk is a loop device, which the kernel detaches with the mount. Files that hosts would share
# with this machine are private: users, homes, /run, and the engine's settings and identity.
# /usr/games is on the PATH of logins; a host with GPUs has a program of the driver there.
SETUP = """
root=$1
mount -o loop,noatime "$root/disk.img" "$root/disk"
mkdir -p "$root/disk/engine" "$root/disk/home/root" "$root/disk/home/worker"
chown WORKER "$root/disk/home/worker"
chmod 700 "$root/disk/home/root" "$root/disk/home/worker"
mount --bind "$root/disk/engine" "$root/data"
mount --bind "$root/disk/home" /home
for file in passwd group shadow; do mount --bind "$root/etc/$file" "/etc/$file"; done
mount -t tmpfs none /run
mkdir -p /run/containerd /run/sshd /etc/docker
ln -s "$root/docker.sock" /run/docker.sock
mount -t tmpfs none /etc/docker
if [ -e "$root/bin/nvidia-smi" ]; then
    mount -t tmpfs -o mode=755 none /usr/games
    cp "$root/bin/nvidia-smi" /usr/games/
fi
hostname "$2"
ip link set lo up
"""


def reap(_signal: int, _frame: object) -> None:
    """Reap processes whose parents have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def main() -> None:
    """Set the host up and wait."""
    root, name, worker = sys.argv[1:]
    subprocess.run(["sh", "-ec", SETUP.replace("WORKER", worker), "sh", root, name], check=True)
    signal.signal(signal.SIGCHLD, reap)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
