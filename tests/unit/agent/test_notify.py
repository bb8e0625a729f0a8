import socket
from pathlib import Path

import pytest

from agent.notify import notify


@pytest.mark.parametrize("kind", ["a file", "an abstract name"])
def test_the_service_manager_gets_the_state_as_one_datagram(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path if kind == "a file" else "\0" + path)
        monkeypatch.setenv("NOTIFY_SOCKET", path if kind == "a file" else "@" + path)
        manager.settimeout(5)
        notify("READY=1")
        assert manager.recv(64) == b"READY=1"


def test_a_manager_that_is_gone_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
