"""What is given up stays so, also in what is run afterwards; tried in processes of their own."""

import os
import subprocess
import sys

import pytest

from controller.privileges import CAP_DAC_OVERRIDE, CAP_SYS_NICE, held

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="has no capability to give up")

KEEP = "from controller.privileges import keep_only; keep_only({kept}); "
SHOW = "import subprocess; print(open('/proc/self/status').read())"
RUN = "import subprocess; subprocess.run(['cat', '/proc/self/status'], check=True)"


def left(kept: set[int], then: str) -> int:
    """The capabilities that a process has after it kept only these."""
    program = KEEP.format(kept=sorted(kept)) + then
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return held(done.stdout)


@pytest.mark.parametrize("then", [SHOW, RUN], ids=["itself", "what it runs"])
@pytest.mark.parametrize("kept", [set(), {CAP_DAC_OVERRIDE}, {CAP_DAC_OVERRIDE, CAP_SYS_NICE}])
def test_only_what_is_kept_is_left(kept: set[int], then: str) -> None:
    assert left(kept, then) == sum(1 << each for each in kept)


def test_what_was_not_held_is_not_gained() -> None:
    again = KEEP.format(kept=[CAP_DAC_OVERRIDE, CAP_SYS_NICE])
    assert left({CAP_DAC_OVERRIDE}, again + SHOW) == 1 << CAP_DAC_OVERRIDE
