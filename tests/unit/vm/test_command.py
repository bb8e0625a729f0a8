import time
from pathlib import Path

import pytest

from tests.vm.rig.command import RigError, run


def test_a_tool_gives_its_output() -> None:
    assert run(["sh", "-c", "echo $WORD"], timeout_s=10, env={"WORD": "said"}) == "said\n"


@pytest.mark.parametrize(
    ("script", "limit_s", "cause"),
    [
        ("echo first >&2; echo why >&2; exit 3", 10, "sh failed with status 3: first / why"),
        ("echo only output; exit 1", 10, "sh failed with status 1: only output"),
        ("exec sleep 30", 0.2, "sh did not finish"),
    ],
)
def test_a_tool_that_fails_says_why(script: str, limit_s: float, cause: str) -> None:
    with pytest.raises(RigError, match=cause):
        run(["sh", "-c", script], timeout_s=limit_s)


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(RigError, match="could not run no-such-tool: No such file"):
        run(["no-such-tool"], timeout_s=1)


def test_a_tool_that_takes_too_long_is_asked_to_stop_with_its_children(tmp_path: Path) -> None:
    script = f"trap 'touch {tmp_path}/asked; exit' TERM; sleep 300 & echo $! >{tmp_path}/pid; wait"
    with pytest.raises(RigError, match="did not finish"):
        run(["sh", "-c", script], timeout_s=1)
    assert (tmp_path / "asked").exists()
    child = Path("/proc") / (tmp_path / "pid").read_text().strip()
    until = time.monotonic() + 10
    while (child / "cmdline").exists() and (child / "cmdline").read_bytes():
        assert time.monotonic() < until
        time.sleep(0.01)
