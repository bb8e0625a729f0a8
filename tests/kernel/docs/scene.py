"""Where documented commands are typed: a sitsd whose engine had some traffic, and a folder."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.journal import JournalReader
from tests.documented import ROOT
from tests.engines.reference_process import Client, Running
from tests.kernel.agent.rig import Site, Sitsd
from tests.kernel.agent.traffic import at_start, engine_in, load
from tests.kernel.agent.waiting import becomes
from tests.kernel.conftest import TwinGroup

TRACE: Final = "4bf92f3577b34da6a3ce929d0e0e4736"
"""The trace that docs/sitsctl.md looks for."""

LONGEST_S: Final = 60
PASSWORD: Final = "correct horse\n"
_POLICIES: Final = ("FILE", "new.toml", "other.toml", "tighter.toml", "systemd/policy.toml")
_BARE: Final = "set|inject|policy apply|conformance|replay|simulate|metrics-user"

_REPLACED: Final = (
    # procps' and fish's own part is not ours to try
    (r"^watch -n1 -c ", ""),
    (r" \| source$", ""),
    # a command that is only named, without what it needs
    (rf"^sitsctl ({_BARE})$", r"sitsctl \1 --help"),
    (r"^sitsctl … ", "sitsctl status "),
    (r"=…", "=8"),
    (r"…", "why"),
    (r"\bENGINE\b", "chat"),
    (r" --engine a --engine b", " --engine chat"),
    (r"/run/(?:my-engine|chat)/admin\.sock", "{admin}"),
    # the whole of it is tests/engines/test_conformance.py
    (r"(sitsctl conformance (?!--)\S+)$", r"\1 --only ids"),
    (r"(sitsctl replay --policy \S+)( -n 2)?( journal\.db)?$", r"\1\2 {journal}"),
    (r"--requests 300", "--requests 20"),
    (r"^sitsd ", "sitsd --policy {idle} "),
    (r"/etc/systemd/system/", "{folder}/units/"),
    (r"/(etc|opt)/sits/", r"{folder}/\1/"),
    (r"/run/sits/", "{folder}/run/"),
)
"""What documents say, and what it is here. Of these, {…} is filled in at last."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A sitsd, its engine, and the folder in which commands are typed."""

    sitsd: Sitsd
    engine: Running
    folder: Path
    policy: str

    def type(self, line: str) -> "subprocess.CompletedProcess[str]":
        """Run a line of a document in a shell, with its names replaced by those of this scene."""
        programs = Path(sys.executable).parent
        return subprocess.run(
            ["/bin/bash", "-o", "pipefail", "-c", self.here(line)],
            cwd=self.folder,
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "SITS_SOCKET": str(self.sitsd.site.admin_socket),
            },
            input=PASSWORD,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )

    def here(self, line: str) -> str:
        """What a line of a document is in this scene."""
        for pattern, replacement in _REPLACED:
            line = re.sub(pattern, replacement, line)
        return line.format_map(
            {
                "admin": self.engine.admin,
                "journal": _journal(self.sitsd.site),
                "idle": self.folder / "idle.toml",
                "folder": self.folder,
            }
        )

    def calm(self) -> None:
        """As at the beginning, whatever the command before changed."""
        api = self.sitsd.api
        if (canary := api.policy_status()["canary"]) and canary["state"] == "running":
            api.policy_abort()
        if api.policy_diff(self.policy, "at the beginning")["changes"]:
            api.policy_apply(self.policy, "at the beginning")
        self.mode("observe")
        api.release()
        self.sitsd.following()
        becomes(lambda: at_start(self.engine))

    def mode(self, mode: str) -> None:
        """Change the mode, and see that it is in force."""
        self.sitsd.api.set_mode(mode)
        self.sitsd.status(lambda status: status["mode"] == mode)


@contextmanager
def scene(group: TwinGroup, folder: Path, pins: Path) -> Iterator[Scene]:
    """A sitsd over an engine that has answered some requests, one of them in `TRACE`."""
    site = Site(folder / "site", pins)
    site.directory.mkdir()
    with engine_in(group, folder) as engine:
        site.write(
            f'[engines.chat]\ncgroup = "/{group.cpu.name}"\nadmin_socket = "{engine.admin}"\n'
            "slo = { ttft_ms = 60000, gap_ms = 30000 }\n",
            mode="control",
        )
        policy = site.policy.read_text()
        _lay_out(folder, policy, pins)
        try:
            with site.sitsd() as sitsd:
                sitsd.following()
                with load(engine, clients=1) as traffic:
                    traffic.grows_to(3)
                _ask_in_trace(engine)
                becomes(lambda: any(each["trace_id"] for each in sitsd.api.streams()["streams"]))
                becomes(lambda: _is_recorded(site))
                yield Scene(sitsd, engine, folder, policy)
        finally:
            site.unload()


def _lay_out(folder: Path, policy: str, pins: Path) -> None:
    """The files that documents name."""
    for name in ("systemd", "etc", "opt/share", "units", "run"):
        (folder / name).mkdir(parents=True)
    for name in _POLICIES:
        (folder / name).write_text(policy.replace("30000", "20000"))
    # of a sitsd that does not run
    idle = policy.replace(str(folder / "site"), str(folder / "idle"))
    (folder / "idle.toml").write_text(idle.replace(str(pins), f"{pins}-idle"))
    shutil.copy(ROOT / "demo" / "trace" / "azure_code_excerpt.csv", folder / "code.csv")
    shutil.copy(ROOT / "systemd" / "network.conf", folder / "opt" / "share")


def _ask_in_trace(engine: Running) -> None:
    body = b'{"prompt": "hello", "max_tokens": 4, "stream": true, "ignore_eos": true}'
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: here\r\n"
        f"traceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with Client(engine) as client:
        client.sock.sendall(head.encode() + body)
        client.read_head()
        while client.read_chunk():
            pass


def _journal(site: Site) -> Path:
    return site.directory / "state" / "journal.db"


def _is_recorded(site: Site) -> bool:
    """Whether there is something to replay."""
    with closing(JournalReader(_journal(site))) as reader:
        return any(True for _ in reader.recorded())
