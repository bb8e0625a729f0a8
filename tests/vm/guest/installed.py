"""The package on the machine: dpkg, systemd, and the commands as an operator runs them."""

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent.client import AgentClient, ClientError

DEBS = Path("/payload/debs")
POLICY = Path("/etc/sits/policy.toml")
PINS = Path("/sys/fs/bpf/sits")
UNIT_CGROUP = Path("/sys/fs/cgroup/system.slice/sitsd.service")
PATIENCE_S = 400
TIMEOUTS = Path("/run/systemd/system/sitsd.service.d/timeouts.conf")
"""An emulated machine takes longer than any that the unit's own bounds are for."""

Done = subprocess.CompletedProcess[str]


def run(
    *command: str | Path,
    patience_s: float = PATIENCE_S,
    at: Path = Path("/"),
    says: str = "",
) -> Done:
    """Run a command as on any machine, without what the tests' own Python was told."""
    return subprocess.run(
        command,
        cwd=at,
        input=says,
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"},
    )


def typed(line: str, at: Path = Path("/"), patience_s: float = PATIENCE_S) -> str:
    """Run a line as an operator types it, who says yes to what is asked; what it prints."""
    done = run("sh", "-c", line, patience_s=patience_s, at=at, says="y\n")
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def install(name: str) -> None:
    """Install one of the payload's packages."""
    # it stops and starts the service, beside what else runs there
    done = run("dpkg", "-i", DEBS / f"{name}.deb", patience_s=3 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr


def properties(*names: str) -> dict[str, str]:
    """What systemd says of the service."""
    done = run("systemctl", "show", f"--property={','.join(names)}", "sitsd")
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def main_pid() -> int:
    """The agent's process, 0 without one."""
    return int(properties("MainPID")["MainPID"])


def systemctl(*arguments: str, patience_s: float = PATIENCE_S) -> None:
    """Run systemctl; fails with what the service said."""
    done = run("systemctl", *arguments, patience_s=patience_s)
    assert done.returncode == 0, done.stderr + run("journalctl", "-u", "sitsd", "-n", "40").stdout


def client() -> AgentClient:
    """A client of the installed agent."""
    return AgentClient(Path("/run/sits/admin.sock"), PATIENCE_S)


def answers(agent: AgentClient) -> bool:
    """Whether an agent and its controller are there; a socket is, a moment before it listens."""
    try:
        return bool(agent.status()["controller"]["alive"])
    except ClientError:
        return False


def wait_for_agent() -> None:
    """Return once the agent and its controller answer."""
    until = time.monotonic() + PATIENCE_S
    while not answers(client()):
        assert time.monotonic() < until, run("journalctl", "-u", "sitsd", "-n", "40").stdout
        # asking takes more of an emulated CPU than starting may do without
        time.sleep(1)


def scrape() -> str:
    """The metrics, as Prometheus reads them."""
    with urllib.request.urlopen("http://127.0.0.1:9464/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def pins() -> set[str]:
    """Everything that is pinned."""
    return {str(path.relative_to(PINS)) for path in PINS.rglob("*")} if PINS.is_dir() else set()


def traces() -> set[str]:
    """What there is of the package and of what it made, anywhere it could be."""
    places = ("/opt/sits", "/etc/sits", "/run/sits", "/var/lib/sits", "/usr/bin/sitsctl", PINS)
    found = {str(place) for place in places if Path(place).exists()}
    for folder in ("/usr/lib/systemd/system", "/usr/lib/tmpfiles.d", "/usr/lib/sysusers.d"):
        found |= {str(path) for path in Path(folder).glob("sits*")}
    found |= {str(path) for path in Path("/etc/systemd/system").rglob("sits*")}
    return found


@contextmanager
def patient_unit() -> Iterator[None]:
    """The unit's bounds as an emulated machine needs them, and as many starts as tests make."""
    TIMEOUTS.parent.mkdir(parents=True, exist_ok=True)
    service = f"[Service]\nTimeoutStopSec={PATIENCE_S}\nWatchdogSec=60\n"
    TIMEOUTS.write_text(f"{service}[Unit]\nStartLimitIntervalSec=0\n")
    try:
        yield
    finally:
        TIMEOUTS.unlink()
        TIMEOUTS.parent.rmdir()
