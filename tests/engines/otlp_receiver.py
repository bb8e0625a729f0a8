"""A real OTLP receiver for tests: rotel, which prints every field of what it takes."""

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

PATIENCE_S: Final = 20.0
"""How long a test waits for what must come; no result depends on how soon it does."""

T = TypeVar("T")
Protocol = Literal["grpc", "http"]
Value = str | int | float | bool | tuple[Any, ...]

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_VALUE: Final = re.compile(r"(Str|Int|Double|Bool|Slice)\((.*)\)", re.DOTALL)
_FIELD: Final = re.compile(r"\s*([A-Za-z ]+?)\s*: (.*)")


@dataclass(slots=True)
class Received:
    """A span as the receiver printed it; ids in hex, times in ns."""

    fields: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    links: list[tuple[str, str]] = field(default_factory=list)
    resource: dict[str, Value] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.fields["Name"]

    @property
    def trace_id(self) -> str:
        return self.fields["Trace ID"]

    @property
    def span_id(self) -> str:
        return self.fields["ID"]

    @property
    def parent_id(self) -> str:
        return self.fields["Parent ID"]

    @property
    def start_ns(self) -> int:
        return int(self.fields["Start time"])

    @property
    def end_ns(self) -> int:
        return int(self.fields["End time"])


class Receiver:
    """Where a receiver listens; it may start and stop there any number of times."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._output = directory / "rotel.txt"
        self._output.touch()
        self._ports: dict[Protocol, int] = {"grpc": _free_port(), "http": _free_port()}

    def endpoint(self, protocol: Protocol) -> str:
        return f"http://127.0.0.1:{self._ports[protocol]}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """A receiver that answers on both ports; gone at the end."""
        package = find_spec("rotel")
        assert package is not None
        assert package.origin is not None
        command = [
            *(
                str(Path(package.origin).with_name("rotel-agent")),
                "start",
                "--exporter",
                "blackhole",
            ),
            *("--otlp-grpc-endpoint", f"127.0.0.1:{self._ports['grpc']}"),
            *("--otlp-http-endpoint", f"127.0.0.1:{self._ports['http']}"),
            *("--debug-log", "traces", "--debug-log-verbosity", "detailed"),
        ]
        environment = os.environ | {
            "ROTEL_LOG_FILE": str(self._directory / "rotel.log"),
            "ROTEL_PID_FILE": str(self._directory / "rotel.pid"),
        }
        with (
            self._output.open("ab") as output,
            subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
        ):
            try:
                for port in self._ports.values():
                    eventually(partial(_listens, port))
                yield
            finally:
                process.kill()

    def spans(self) -> list[Received]:
        """All it ever took, in order."""
        return _parse(self._output.read_text())

    def wait_for(self, count: int, name: str = "") -> list[Received]:
        """The spans so far, once there are `count` whose name begins with `name`."""

        def enough() -> list[Received] | None:
            found = [span for span in self.spans() if span.name.startswith(name)]
            return found if len(found) >= count else None

        found = eventually(enough)
        assert found is not None
        return found


def eventually(condition: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """What `condition` returns once that is true; fails when it stays false."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"still {value!r} after {patience_s:g} s"
        time.sleep(0.02)
    return value


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A receiver that does not run yet."""
    with tempfile.TemporaryDirectory() as directory:
        yield Receiver(Path(directory))


def _parse(text: str) -> list[Received]:
    """Spans out of rotel's detailed debug log, as far as it is whole."""
    spans: list[Received] = []
    resource: dict[str, Value] = {}
    part, event = "", ""
    for line in _ANSI.sub("", text[: text.rfind("\n") + 1]).splitlines():
        if line.startswith("Resource attributes"):
            resource, part = {}, "resource"
        elif re.fullmatch(r"Span #\d+", line):
            spans.append(Received(resource=resource))
            part = "span"
        elif re.fullmatch(r"Attributes:", line):
            part = "attributes"
        elif re.match(r"SpanEvent #\d+", line):
            part = "event"
        elif re.match(r"SpanLink #\d+", line):
            part = "link"
        elif (attribute := re.match(r" +-> (.*?): (.*)", line)) is not None:
            name, value = attribute.groups()
            if part == "resource":
                resource[name] = _value(value)
            elif part == "attributes":
                spans[-1].attributes[name] = _value(value)
            elif part == "event" and name == "Name":
                event = value
            elif part == "event" and name == "Timestamp":
                spans[-1].events[event] = int(value)
            elif part == "link" and name == "Trace ID":
                spans[-1].links.append((value, ""))
            elif part == "link" and name == "ID":
                spans[-1].links[-1] = spans[-1].links[-1][0], value
        elif part == "span" and (found := _FIELD.fullmatch(line)) is not None:
            spans[-1].fields[found[1]] = found[2]
    # of the last one the rest may be on its way
    return [span for span in spans if "Status message" in span.fields and "End time" in span.fields]


def _value(text: str) -> Value:
    found = _VALUE.fullmatch(text)
    assert found is not None, text
    kind, content = found.groups()
    match kind:
        case "Int":
            return int(content)
        case "Double":
            return float(content)
        case "Bool":
            return content == "true"
        case "Slice":
            return tuple(re.findall(r"Str\((.*?)\)(?:, |$)", content))
    return content


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
