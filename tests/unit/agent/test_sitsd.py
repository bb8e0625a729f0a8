"""What `sitsd` needs for what it is asked to do."""

import subprocess
import sys
from pathlib import Path


def test_undoing_loads_nothing_that_only_serving_needs(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[agent]\nrun_dir = "{tmp_path}"\n')
    program = """
import sys
from agent.sitsd import main
try:
    main()
finally:
    print(*sorted({"agent.daemon", "prometheus_client", "sqlite3"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "--policy", policy, "--undo"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
