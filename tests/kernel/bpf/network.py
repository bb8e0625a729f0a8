"""A network namespace that has one server and its clients, and nothing else."""

import ctypes
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.bpf.wire import Client

CLONE_NEWNET = 0x40000000


@contextmanager
def in_network_of(pid: int) -> Iterator[None]:
    """This thread's new sockets belong to that process's network namespace meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    here, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/proc/{pid}/ns/net", 0)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "could not enter the network namespace")
        try:
            yield
        finally:
            assert libc.setns(here, CLONE_NEWNET) == 0
    finally:
        os.close(here)
        os.close(there)


class Network:
    """The network namespace of a server: loopback only."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # packets as small as on a wire, so that some of many are dropped
        self._run("ip", "link", "set", "lo", "mtu", "1500", "up")

    def _run(self, *command: str) -> None:
        subprocess.run(["nsenter", "-t", str(self._pid), "-n", *command], check=True)

    def drop_some(self) -> None:
        """A token bucket with next to no queue behind it."""
        shape = ("rate", "20mbit", "burst", "4kb", "limit", "8kb")
        self._run("tc", "qdisc", "add", "dev", "lo", "root", "tbf", *shape)

    def drop_all(self) -> None:
        """A queue without room: whoever sends is told that it could not."""
        self._run("tc", "qdisc", "add", "dev", "lo", "root", "pfifo", "limit", "0")

    def drop_none(self) -> None:
        self._run("tc", "qdisc", "del", "dev", "lo", "root")

    def connect(self, port: int, receive_buffer: int | None = None) -> Client:
        with in_network_of(self._pid):
            return Client.to(port, receive_buffer=receive_buffer)

    def counted(self, file: str, group: str, name: str) -> int:
        """A counter of /proc/net/snmp or /proc/net/netstat."""
        text = Path(f"/proc/{self._pid}/net/{file}").read_text()
        lines = [line.split() for line in text.splitlines() if line.startswith(f"{group}:")]
        return int(dict(zip(*lines, strict=True))[name])

    def retransmitted(self) -> int:
        """Segments sent again: neither those that open a connection, nor those that failed."""
        return (
            self.counted("snmp", "Tcp", "RetransSegs")
            - self.counted("netstat", "TcpExt", "TCPSynRetrans")
            - self.counted("netstat", "TcpExt", "TCPRetransFail")
        )


def some_run_is_exact(runs: Iterable[tuple[int, int]]) -> bool:
    """Whether we counted as the kernel did in one of these runs; never may we have counted more.

    Some hardened kernels run no tracing program on top of tasks of their host's: what interrupts
    such a task is then missed, and only a run without one is exact.
    """
    for ours, theirs in runs:
        assert ours <= theirs
        if ours == theirs:
            return True
    return False


def go_deaf(client: Client) -> None:
    """Drop all that comes for this client from now on, as a network does: its socket hears nothing.

    SO_ATTACH_FILTER with the one instruction `ret #0` (include/uapi/linux/filter.h).
    """
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    client.socket.setsockopt(socket.SOL_SOCKET, 26, program)


def hear_again(client: Client) -> None:
    """Undo `go_deaf` (SO_DETACH_FILTER)."""
    client.socket.setsockopt(socket.SOL_SOCKET, 27, 0)
