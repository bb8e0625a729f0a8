"""Tries what sitsd needs capabilities for, with those that this process has; prints what works.

`python -m tests.vm.guest.capability_probe PID SOCKET CGROUP`: a process of another user that
listens on a TCP port, that user's own Unix socket, and a cgroup.
"""

import json
import socket
import sys
from contextlib import suppress
from pathlib import Path

from agent.listening import listening_ports
from bpf.features import probe
from bpf.libbpf import Libbpf, LibbpfError
from bpf.loader import Plan, load


def loads(cgroup: Path) -> tuple[bool, bool]:
    """Whether programs can be loaded and traced with, and put on a cgroup."""
    lib = Libbpf()
    features = probe(lib)
    try:
        programs = load(lib, Plan(features, 4, None))
    except LibbpfError:
        return False, False
    try:
        if not features.can_stream:
            return features.can_trace, not features.missing_capabilities
        programs.attach(cgroup, cgroup.stat().st_ino)
    except LibbpfError:
        return True, False
    finally:
        programs.close()
    return True, True


def reaches(path: str) -> bool:
    """Whether a Unix socket can be connected to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, suppress(PermissionError):
        sock.connect(path)
        return True
    return False


if __name__ == "__main__":
    pid, path, group = sys.argv[1:]
    traces, attaches = loads(Path(group))
    found = {
        "traces": traces,
        "attaches": attaches,
        "finds ports": listening_ports(int(pid)) != frozenset(),
        "reaches engines": reaches(path),
    }
    print(json.dumps(found))
