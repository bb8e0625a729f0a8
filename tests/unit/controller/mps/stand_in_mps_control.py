"""Stands in for nvidia-cuda-mps-control where there is no GPU: a program for `python -S`.

It speaks as NVIDIA documents: commands on standard input, a value a line on standard output, the
daemon named by CUDA_MPS_PIPE_DIRECTORY. The daemon is a JSON file there, `stand_in.json`: its
`default`, its `servers` (percent by process id), and what a test wants of it: `hangs` (commands
that are never answered), `refuses` (words for commands that end with status 1), `ignores` (commands
that are taken and change nothing). What was asked is added to `stand_in.log`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

DIRECTORY = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
STATE = DIRECTORY / "stand_in.json"


def answer(state: dict[str, Any], command: str, *words: str) -> str | None:
    """What is printed; the new state is in `state`."""
    servers: dict[str, float] = state["servers"]
    if command == "get_default_active_thread_percentage":
        return f"{state['default']:.1f}"
    if command == "set_default_active_thread_percentage":
        state["default"] = float(words[0])
        return None
    if command == "get_server_list":
        return "\n".join(servers) or None
    if words and words[0] not in servers:
        sys.exit(f"Server {words[0]} not found")
    if command == "get_active_thread_percentage":
        return f"{servers[words[0]]:.1f}"
    if command == "set_active_thread_percentage":
        servers[words[0]] = float(words[1])
        return None
    sys.exit(f"Unknown command {command}")


def main() -> None:
    """Answer each line of standard input."""
    for line in sys.stdin:
        command, *words = line.split()
        with (DIRECTORY / "stand_in.log").open("a") as log:
            log.write(line)
        if not STATE.exists():
            sys.exit("Cannot find MPS control daemon process")
        state = json.loads(STATE.read_text())
        if command in state["hangs"]:
            time.sleep(3600)
        if command in state["refuses"]:
            sys.exit(state["refuses"][command])
        before = json.dumps(state)
        said = answer(state, command, *words)
        if command not in state["ignores"] and json.dumps(state) != before:
            fresh = DIRECTORY / "stand_in.new"
            fresh.write_text(json.dumps(state))
            fresh.replace(STATE)
        if said is not None:
            print(said, flush=True)


main()
