"""A real Prometheus for tests, which scrapes one target every second and answers queries."""

import json
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .otlp_receiver import eventually

PACKAGE: Final = "prometheus"
"""Debian's, with promtool in it."""

_CONFIG: Final = """
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: sits
    static_configs: [{{targets: ["{target}"]}}]
{more}"""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that runs, and its HTTP API (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

    url: str

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """An instant query: the value of each series by its labels, but for the target's own."""
        found = {}
        for each in self._get("query", query=expression)["result"]:
            labels = {k: v for k, v in each["metric"].items() if k not in {"job", "instance"}}
            found[tuple(sorted(labels.items()))] = float(each["value"][1])
        return found

    def value(self, expression: str) -> float | None:
        """An instant query's only value; None if it has none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return next(iter(found.values()), None)

    def names(self) -> set[str]:
        """Of every series it ever took."""
        return set(self._get("label/__name__/values"))

    def target(self) -> dict[str, Any]:
        """What it says of its one target: `health`, `lastError`, …"""
        (target,) = self._get("targets", state="active")["activeTargets"]
        return dict(target)

    def own(self, name: str) -> float:
        """One of its own metrics, all series together."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        mine = [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
        assert mine, name
        return sum(float(line.rpartition(" ")[2]) for line in mine)

    def _get(self, call: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{call}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]


@contextmanager
def prometheus(target: str, more: str = "") -> Iterator[Prometheus]:
    """A server that scrapes `target`, an address and a port; nothing of it is left at the end.

    `more` are lines of its scrape configuration.
    """
    command = shutil.which("prometheus")
    assert command is not None, f"prometheus is not installed (Debian: {PACKAGE})"
    with tempfile.TemporaryDirectory() as made, socket.create_server(("127.0.0.1", 0)) as probe:
        directory, port = Path(made), probe.getsockname()[1]
        probe.close()
        config = directory / "prometheus.yml"
        config.write_text(_CONFIG.format(target=target, more=more))
        log = directory / "log"
        arguments = [
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (
            log.open("wb") as output,
            subprocess.Popen([command, *arguments], stdout=output, stderr=output) as process,
        ):
            url = f"http://127.0.0.1:{port}"

            def ready() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                        return bool(answer.status == 200)
                except (urllib.error.URLError, OSError):
                    return False

            try:
                eventually(ready)
                yield Prometheus(url)
            finally:
                process.kill()
