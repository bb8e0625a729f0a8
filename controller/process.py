"""The controller process: `python -m controller.process`, started and watched by sitsd.

It inherits its end of a socket pair. What it works with comes over that as file descriptors (see
`controller.start`), and then the configuration as the first message.
"""

import argparse
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bpf.layout import parse_edge
from bpf.libbpf import Libbpf, Ring
from bpf.readers import CounterReader
from controller.actuator import Actuator
from controller.limits.cgroup import read_hierarchies
from controller.limits.limiter import Limiter
from controller.loop import Loop
from controller.policy import policy_from_json
from controller.privileges import CAP_DAC_OVERRIDE, CAP_SYS_NICE, keep_only
from controller.slices import shorten
from controller.start import take_over
from controller.wire import Channel, Message

SLICE_NS: Final = 100_000
"""The shortest there is; a tick takes a few of them."""

CONFIG_TIMEOUT_MS: Final = 10_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the controller until the agent is gone."""
    parser = argparse.ArgumentParser(prog="sits-controller", description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="our end of the socket pair")
    options = parser.parse_args(arguments)
    # The agent ends us by closing the channel, so that everything is given back first; a signal to
    # the whole group, such as Ctrl-C at a terminal, must not cut that short.
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    shorten(SLICE_NS)

    with_agent = socket.socket(fileno=options.channel)
    try:
        handles, heartbeat = take_over(with_agent)
    except EOFError:
        return  # the agent did not get so far
    channel = Channel(with_agent)
    config, *early = _first_messages(channel)
    policy = policy_from_json(config["policy"])
    rows = policy.agent.max_targets + 1  # row 0 is nobody's
    reader = CounterReader(handles.counters, handles.health, rows, handles.cpus)
    limiter = Limiter(Path(config["undo_path"]), heartbeat)
    actuator = Actuator(channel, limiter, read_hierarchies())
    loop = Loop(policy.with_mode(config["mode"]), channel, reader, actuator, os.cpu_count() or 1)
    edges = None
    if handles.edges is not None:
        edges = Ring(Libbpf(), handles.edges, lambda raw: loop.on_edge(parse_edge(raw)))
    # only now: kernels before 5.19 let nobody without CAP_BPF ask about a ring
    keep_only({CAP_DAC_OVERRIDE, CAP_SYS_NICE})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for message in early:
        loop.take(message)
    gc.freeze()
    gc.disable()  # the loop collects when it has time
    try:
        loop.run(edges)
    finally:
        if edges is not None:
            edges.close()
        reader.close()
        channel.close()


def _first_messages(channel: Channel) -> list[Message]:
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while poll.poll(CONFIG_TIMEOUT_MS):
        if messages := channel.receive():
            return messages
    raise SystemExit("sits-controller: no configuration came")


if __name__ == "__main__":
    main()
