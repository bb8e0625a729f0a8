"""The tier for kernels without BTF: bcc compiles the programs against the kernel's own headers.

A process of its own (`python -m bpf.bcc_tier`), because LLVM lives in it: it pins programs and
links beside the maps that the agent made there, and ends. No holder stays: a raw tracepoint is a
link that can be pinned since 5.8, and the ring buffer that the agent needs is no older.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bpf.libbpf import Libbpf
from bpf.pins import pin

SOURCES: Final = Path(__file__).parent
PYTHON_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
"""Where Debian's python3-bpfcc puts bcc, which is in no package index."""

PROGRAMS: Final[Mapping[str, str]] = {
    "wakeup": "sched_wakeup",
    "wakeup_new": "sched_wakeup_new",
    "switch_tasks": "sched_switch",
    "retransmit": "tcp_retransmit_skb",
    "acknowledged": "tcp_probe",
    "socket_gone": "tcp_destroy_sock",
}
"""Each program's tracepoint."""

PARTS: Final = ("layout.h", "arithmetic.h", "bcc/common.h", "bcc/sched.c", "bcc/network.c")
"""What is compiled, as one text: the kernel's headers are nearly all there is to compile, and bcc
reads them three times a text (its clang front ends in src/cc/frontends/clang/loader.cc)."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What differs from kernel to kernel, by the kernel's own headers and never by its version."""

    state_field: str
    prev_state: bool
    retransmit_error: bool


def kernel_headers(release: str) -> Path:
    """Where a kernel's headers are: $BCC_KERNEL_SOURCE, as for bcc itself, or Debian's place."""
    given = os.environ.get("BCC_KERNEL_SOURCE", "")
    return Path(given) if given else Path("/lib/modules", release, "build")


def header_facts(sched: str, sched_events: str, tcp_events: str) -> HeaderFacts:
    """What linux/sched.h, trace/events/sched.h and trace/events/tcp.h say."""
    return HeaderFacts(
        state_field="__state" if re.search(r"\b__state;", sched) else "state",
        prev_state="prev_state" in _arguments(sched_events, "sched_switch"),
        retransmit_error=_arguments(tcp_events, "tcp_retransmit_skb").count(",") >= 2,
    )


def source_text(settings: Mapping[str, str | int]) -> str:
    """The source whole: our settings, the layout, the arithmetic, what is shared, the programs.

    What it includes of the kernel's comes first, so that no name of ours meets it as a macro.
    """
    defines = "".join(f"#define {key} {value}\n" for key, value in settings.items())
    parts = [(SOURCES / path).read_text() for path in PARTS]
    include = re.compile(r"^#include .*$", re.MULTILINE)
    kernel = [line for part in parts for line in include.findall(part) if "<" in line]
    barrier = '#define barrier_var(v) asm volatile("" : "=r"(v) : "0"(v))'
    return "\n".join([*kernel, defines, barrier, *(include.sub("", part) for part in parts)])


def settings_of(
    pin_dir: Path, max_targets: int, cpus: int, cpu_on_v1: bool, facts: HeaderFacts
) -> dict[str, str | int]:
    """What the sources are compiled with."""
    return {
        "PINS": f'"{pin_dir}/maps/"',
        "MAX_TARGETS": max_targets,
        "POSSIBLE_CPUS": cpus,
        "CPU_ON_V1": int(cpu_on_v1),
        "STATE_FIELD": facts.state_field,
        "HAVE_PREV_STATE": int(facts.prev_state),
        "HAVE_RETRANSMIT_ERROR": int(facts.retransmit_error),
    }


def attach(lib: Libbpf, bcc: Any, pin_dir: Path, settings: Mapping[str, str | int]) -> None:
    """Compile, load, attach and pin every program; `LibbpfError` if the kernel refuses one."""
    built = bcc.BPF(text=source_text(settings))
    for program, tracepoint in PROGRAMS.items():
        fd = built.load_func(program, bcc.BPF.RAW_TRACEPOINT).fd
        pin(lib, fd, pin_dir / "programs" / program)
        link = lib.check(
            lib.bpf_raw_tracepoint_open(tracepoint.encode(), fd), f"attach '{program}'"
        )
        pin(lib, link, pin_dir / "links" / program)


def main(arguments: Sequence[str] | None = None) -> int:
    """Pin the tier's programs beside the maps in a directory; 1 and a sentence if that fails."""
    parser = argparse.ArgumentParser(prog="sits-bcc-tier", description=__doc__)
    parser.add_argument("--pin-dir", type=Path, required=True)
    parser.add_argument("--max-targets", type=int, required=True)
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--cpu-on-v1", action="store_true")
    options = parser.parse_args(arguments)
    try:
        headers = kernel_headers(os.uname().release)
        facts = _facts_of(headers)
        sys.path.append(str(PYTHON_PACKAGES))
        import bcc

        settings = settings_of(
            options.pin_dir, options.max_targets, options.cpus, options.cpu_on_v1, facts
        )
        attach(Libbpf(), bcc, options.pin_dir, settings)
    except Exception as error:
        # bcc raises Exception itself, after it has told more on stderr
        print(f"could not load the bcc tier: {error}", file=sys.stderr)
        return 1
    return 0


def _facts_of(headers: Path) -> HeaderFacts:
    # Debian keeps what is common to all flavours beside `build`, in `source`
    roots = (headers, headers.parent / "source")
    texts = []
    for name in ("linux/sched.h", "trace/events/sched.h", "trace/events/tcp.h"):
        found = [root / "include" / name for root in roots if (root / "include" / name).is_file()]
        if not found:
            raise FileNotFoundError(f"{headers} has no include/{name}: no kernel headers there")
        texts.append(found[0].read_text(errors="replace"))
    return header_facts(*texts)


def _arguments(text: str, event: str) -> str:
    """The arguments of a tracepoint's prototype, as a header in include/trace/events has them."""
    found = re.search(
        rf"_EVENT\((?:\w+, )?{event},\s*TP_PROTO\((.*?)\),\s*TP_ARGS", text, re.DOTALL
    )
    return found[1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
