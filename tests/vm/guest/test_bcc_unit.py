"""The confined unit where the kernel has no BTF: bcc compiles inside its sandbox, with bcc.conf.

bcc and the headers lie where Debian's packages put them, and the unit does not see the BTF.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vm.guest import brought
from tests.vm.guest.conftest import Burn, MakeCgroup, wait_until
from tests.vm.guest.installed import (
    PATIENCE_S,
    POLICY,
    TIMEOUTS,
    install,
    patient_unit,
    pins,
    run,
    scrape,
    traces,
    typed,
    wait_for_agent,
)

COMPILE_S = 900
MODULES = Path("/lib/modules", os.uname().release)
KEPT = Path("/run/modules")
PACKAGE = Path("/usr/lib/python3/dist-packages/bcc")
LINKER = Path("/etc/ld.so.conf.d/bcc.conf")
SHARED = Path("/opt/sits/share/bcc.conf")
DROP_IN = Path("/etc/systemd/system/sitsd.service.d/bcc.conf")
HIDDEN = TIMEOUTS.with_name("hidden.conf")
WAITS = re.compile(
    r'^sits_run_queue_wait_seconds_total\{engine="chat",holder="self"\} (\S+)$', re.MULTILINE
)
TEXT = """
[engines.chat]
cgroup = "/tests/engine"
slo = { gap_ms = 70 }
"""


@pytest.fixture(scope="module")
def debians_bcc() -> Iterator[None]:
    """bcc, its libraries and the headers where the unit looks for them."""
    if not brought.is_there():
        pytest.skip(brought.MISSING)
    KEPT.mkdir()
    subprocess.run(["mount", "--bind", MODULES, KEPT], check=True)
    # the modules' own disk can't be written: their directory is made anew, with the headers in it
    subprocess.run(["mount", "-t", "tmpfs", "none", MODULES], check=True)
    try:
        for each in KEPT.iterdir():
            (MODULES / each.name).symlink_to(each)
        (MODULES / "build").symlink_to(brought.HEADERS)
        PACKAGE.parent.mkdir(parents=True, exist_ok=True)
        PACKAGE.symlink_to(brought.PACKAGES / "bcc")
        LINKER.write_text(f"{brought.LIBRARIES}\n")
        subprocess.run(["ldconfig"], check=True)
        yield
    finally:
        LINKER.unlink(missing_ok=True)
        subprocess.run(["ldconfig"], check=True)
        PACKAGE.unlink(missing_ok=True)
        subprocess.run(["umount", MODULES], check=True)
        subprocess.run(["umount", KEPT], check=True)
        KEPT.rmdir()


@pytest.fixture(scope="module")
def unit(debians_bcc: None) -> Iterator[None]:
    """The package with bcc.conf as its text says, running on a kernel whose BTF it does not see."""
    assert traces() == set()
    with patient_unit():
        try:
            install("sits")
            POLICY.write_text(TEXT)
            HIDDEN.write_text(
                f"[Service]\nInaccessiblePaths=/sys/kernel/btf\nTimeoutStartSec={COMPILE_S}\n"
            )
            for line in re.findall(r"^#   (.*)$", SHARED.read_text(), re.MULTILINE):
                typed(line, patience_s=COMPILE_S)
            assert DROP_IN.exists()
            wait_for_agent()
            yield
        finally:
            run("dpkg", "--purge", "sits")
            HIDDEN.unlink(missing_ok=True)
            DROP_IN.unlink(missing_ok=True)
            if DROP_IN.parent.is_dir():
                DROP_IN.parent.rmdir()
            run("systemctl", "daemon-reload")
    assert traces() == set()


def waited_s() -> float:
    """For how long the engine's tasks waited for each other."""
    found = WAITS.search(scrape())
    return float(found[1]) if found else 0.0


def test_bcc_compiles_in_the_units_sandbox_and_its_process_ends(unit: None) -> None:
    said = run("journalctl", "-u", "sitsd", "-n", "40").stdout
    assert 'sits_kernel_tier{tier="bcc"} 1.0' in scrape(), said
    assert {"links/switch_tasks", "links/retransmit", "links/acknowledged"} <= pins()
    assert "bpf.bcc_tier" not in run("ps", "-eo", "args").stdout
    doctor = run("sitsctl", "doctor", "--json").stdout
    assert "bcc: programs compiled against this kernel's headers" in doctor


def test_waits_of_an_engine_are_in_the_metrics(
    unit: None, make_cgroup: MakeCgroup, burn: Burn
) -> None:
    group = make_cgroup("engine")
    burn(group)
    burn(group)
    wait_until(lambda: waited_s() > 1, "a second of waiting", PATIENCE_S)
