"""What is logged: one line each for people, datagrams of journald's protocol where it reads us."""

import io
import logging
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.log_output import (
    JournalHandler,
    LineFormatter,
    datagram,
    priority,
    reads_stderr,
)

HOSTILE = st.text(
    st.sampled_from("\n\r\x1b\0\u202e\u2066\"\\'={}#\udc80\ud800[]<é") | st.characters(),
    max_size=60,
)


def fields(packet: bytes) -> dict[str, bytes]:
    """A datagram taken apart, by the protocol's description; a name twice fails."""
    found: dict[str, bytes] = {}
    while packet:
        line, _, rest = packet.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + size], rest[8 + size + 1 :]
        assert name.decode() not in found
        found[name.decode()] = value
        packet = rest
    return found


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket such as journald listens at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.settimeout(10)
        yield sock


@pytest.fixture
def logger(tmp_path: Path, journald: socket.socket) -> Iterator[logging.Logger]:
    made, handler = logging.Logger("sits.test"), JournalHandler("sitsd", tmp_path / "socket")
    made.addHandler(handler)
    yield made
    handler.close()


def received(journald: socket.socket) -> dict[str, bytes]:
    return fields(journald.recv(1 << 20))


def test_a_message_comes_with_its_priority_its_logger_and_its_place(
    logger: logging.Logger, journald: socket.socket
) -> None:
    logger.warning("lost %s", "it")
    got = received(journald)
    assert got["MESSAGE"] == b"lost it"
    assert (got["PRIORITY"], got["LOGGER"]) == (b"4", b"sits.test")
    assert got["SYSLOG_IDENTIFIER"] == b"sitsd"
    assert got["CODE_FILE"].endswith(b"test_log_output.py")
    assert got["CODE_FUNC"] == b"test_a_message_comes_with_its_priority_its_logger_and_its_place"


@pytest.mark.parametrize(
    ("level", "number"), [("critical", 2), ("error", 3), ("warning", 4), ("info", 6), ("debug", 7)]
)
def test_each_level_has_the_priority_of_syslog(level: str, number: int) -> None:
    assert priority(getattr(logging, level.upper())) == number


def test_more_fields_are_given_by_the_call(logger: logging.Logger, journald: socket.socket) -> None:
    logger.info("x", extra={"fields": {"SITS_ENGINE": "chat", "SITS_UID": 7, "not one": "x"}})
    got = received(journald)
    assert (got["SITS_ENGINE"], got["SITS_UID"]) == (b"chat", b"7")
    assert not any("not" in name for name in got)


def test_a_traceback_is_a_field_of_its_own(logger: logging.Logger, journald: socket.socket) -> None:
    try:
        raise ValueError("a\nPRIORITY=0")
    except ValueError:
        logger.exception("it failed")
    got = received(journald)
    assert (got["MESSAGE"], got["PRIORITY"]) == (b"it failed", b"3")
    assert b"ValueError: a" in got["EXCEPTION_TEXT"]


@given(message=HOSTILE, value=HOSTILE)
def test_nothing_that_is_quoted_adds_or_changes_a_field(message: str, value: str) -> None:
    packet = datagram({"MESSAGE": message, "PRIORITY": "6", "SITS_ENGINE": value})
    got = fields(packet)
    assert set(got) == {"MESSAGE", "PRIORITY", "SITS_ENGINE"}
    assert got["PRIORITY"] == b"6"
    assert got["MESSAGE"] == message.encode(errors="backslashreplace")


@given(name=st.text(max_size=70))
def test_a_name_that_is_none_is_left_out(name: str) -> None:
    got = fields(datagram({name: "x", "MESSAGE": "m"}))
    assert set(got) - {name} == {"MESSAGE"} - {name}
    assert all(each.isascii() and "=" not in each and "\n" not in each for each in got)


@given(message=HOSTILE, value=HOSTILE, trace=HOSTILE)
def test_a_record_is_one_printable_line_and_its_traceback_indented_ones(
    message: str, value: str, trace: str
) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter())
    logger = logging.Logger("sits.test")
    logger.addHandler(handler)
    try:
        raise ValueError(trace)
    except ValueError:
        logger.exception("%s and %s", message, value)
    first, *rest = stream.getvalue().removesuffix("\n").split("\n")
    assert first.startswith("ERROR sits.test: ")
    assert first.isprintable()
    assert all(line.isprintable() and line.startswith("  ") for line in rest)
    assert any("ValueError" in line for line in rest)


def test_a_message_that_is_too_long_for_a_datagram_is_cut_and_comes(
    logger: logging.Logger, journald: socket.socket
) -> None:
    logger.error("x" * 1_000_000, extra={"fields": {"SITS_ENGINE": "y" * 1_000_000}})
    got = received(journald)
    assert set(got["MESSAGE"]) == {ord("x")}
    assert got["PRIORITY"] == b"3"


def test_a_journald_that_does_not_read_is_not_waited_for_and_the_loss_is_counted(
    logger: logging.Logger,
) -> None:
    (handler,) = logger.handlers
    assert isinstance(handler, JournalHandler)
    for _ in range(5000):
        logger.info("x" * 1000)
    assert 0 < handler.lost < 5000


def test_without_journald_the_line_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger, handler = logging.Logger("sits.test"), JournalHandler("sitsd", tmp_path / "none")
    logger.addHandler(handler)
    logger.error("alone\nhere")
    handler.close()
    assert capsys.readouterr().err == "ERROR sits.test: alone\\nhere\n"


@pytest.mark.parametrize(("spoil", "reads"), [(0, True), (1, False)])
def test_journald_is_known_to_read_stderr_by_device_and_inode(
    tmp_path: Path, spoil: int, reads: bool
) -> None:
    with (tmp_path / "stderr").open("w") as stream:
        found = os.fstat(stream.fileno())
        assert reads_stderr(stream, f"{found.st_dev}:{found.st_ino + spoil}") is reads
        assert not reads_stderr(stream, "")
    assert not reads_stderr(io.StringIO(), "1:2")


SCRIPT = """
import logging
from controller.log_output import set_log_level, set_up_logging
set_up_logging("x")
logging.getLogger("sits").info("first")
set_log_level("error")
logging.getLogger("sits").warning("second")
logging.getLogger("sits").error("third")
"""


def test_a_process_tells_what_is_of_its_level_or_above_and_no_more(tmp_path: Path) -> None:
    run: Any = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert run.stderr == "INFO sits: first\nERROR sits: third\n"
