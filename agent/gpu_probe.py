"""The process that looks at the GPUs: a line of JSON on standard output for each look.

It ends when its standard input does, so with the agent, and when there is nothing to look at; the
agent starts another later. Nothing but this process waits when the driver hangs.
"""

import json
import select
import sys

from agent.gpu_model import Look
from agent.gpu_reader import GpuReader, load


def main() -> None:
    """`python -m agent.gpu_probe SECONDS`: look that often."""
    every_s = float(sys.argv[1])
    nvml, trouble = load()
    if trouble is not None:
        _say(trouble)
        return
    reader = GpuReader(nvml)
    while True:
        _say(reader.look())
        if select.select([sys.stdin], [], [], every_s)[0]:
            return


def _say(look: Look) -> None:
    print(json.dumps(look.as_dict()), flush=True)


if __name__ == "__main__":
    main()
