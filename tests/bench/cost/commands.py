"""What a command takes from its start to its end: `sitsctl status`, asked of a sitsd that runs.

As an operator has it, Python's own start and all, with modules that are compiled, as those of the
package are; beside it a Python that does nothing, and the CPU time of the command.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from tests.bench.ground import ground, private_bpffs
from tests.kernel.agent.rig import Site

from .extent import Extent
from .figures import Figure, Found, alternate
from .streaming import paced

SITSCTL: Final = Path(sys.executable).with_name("sitsctl")
GAP_MS: Final = 50
UNDERSTOOD: Final = (0, 1)
"""Exit codes of a status that was told: all is well, or there are problems."""


@dataclass(frozen=True, slots=True)
class Took:
    """One run: from its start to its end, and the CPU time of all its threads."""

    wall_ms: float
    cpu_ms: float


def measure(extent: Extent) -> Found:
    """The figure `cli.status_ms`."""
    with ground() as on, private_bpffs() as pins, TemporaryDirectory() as directory:
        site = Site(Path(directory), pins / f"sits-{uuid4().hex[:12]}")
        group = on.make_group("commands")
        status = (str(SITSCTL), "status", "--socket", str(site.admin_socket))
        variants = {"status": status, "nothing": (sys.executable, "-c", "pass")}
        compiled = Path(directory) / "compiled"
        try:
            with paced(group, GAP_MS):
                site.write(f'[engines.chat]\ncgroup = "/{group.cpu.name}"\n', "observe", 1000)
                with site.sitsd() as sitsd:
                    sitsd.engine(lambda engine: engine["found"])
                    runs = alternate(
                        1 + extent.short_rounds,
                        {
                            name: partial(took, command, compiled)
                            for name, command in variants.items()
                        },
                    )
        finally:
            site.unload()
    # the first of them compiled
    return figures({name: of[1:] for name, of in runs.items()})


def figures(runs: Mapping[str, list[Took]]) -> Found:
    """What the runs of both come to."""
    return {
        "cli.status_ms": Figure(
            tuple(run.wall_ms for run in runs["status"]),
            "Python's start, one engine, printed to a pipe",
            {
                "CPU time": Figure(tuple(run.cpu_ms for run in runs["status"])),
                "a Python that does nothing": Figure(tuple(run.wall_ms for run in runs["nothing"])),
            },
        )
    }


def took(command: Sequence[str], compiled: Path) -> Took:
    """Run a command whose output is read; `RuntimeError` with what it said if it failed.

    Python keeps in `compiled` what it compiled, whatever it was told here.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begun_ns = time.monotonic_ns()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        # `wait` would not tell what it used
        _, status, used = os.wait4(process.pid, 0)
        took_ns = time.monotonic_ns() - begun_ns
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in UNDERSTOOD:
        raise RuntimeError(f"{' '.join(command)}: {said.decode(errors='replace').strip()}")
    return Took(took_ns / 1e6, 1e3 * (used.ru_utime + used.ru_stime))
