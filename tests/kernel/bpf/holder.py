"""What the agent does with the kernel: loads with pins, sets its target, attaches, holds on.

Run as `holder.py PIN_DIR GROUP_V2 STREAM_ID PORT…`. Writes "ready", waits for a line, loads, writes
how it loaded, and waits for its end.
"""

import sys
from pathlib import Path

from bpf.features import probe
from bpf.layout import TargetKind
from bpf.libbpf import Libbpf
from bpf.loader import Plan, load
from bpf.targets import Target, TargetTable

MAX_TARGETS = 4


def main() -> None:
    pin_dir, group, stream_id, *ports = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    lib = Libbpf()
    programs = load(lib, Plan(probe(lib), MAX_TARGETS, Path(pin_dir)))
    target = Target(
        "engine",
        TargetKind.ENGINE,
        stream_cgroups=frozenset([int(stream_id)]),
        ports=frozenset(map(int, ports)),
    )
    TargetTable(programs).apply([target])
    programs.attach(Path(group), int(stream_id))
    print(programs.how, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
