"""How a process of ours ends that was told to: by itself, and by force where it does not."""

import subprocess
from typing import Any, Final

STOP_TIMEOUT_S: Final = 3.0


def end_of(process: "subprocess.Popen[Any]") -> int:
    """Its exit status, negative for a signal; killed if it does not end in `STOP_TIMEOUT_S`."""
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
