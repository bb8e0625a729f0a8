"""What `sitsctl gpu` shows of limits on clients of MPS daemons."""

from agent import show_gpu
from agent.cli import plain_console

NONE = {"state": "none", "text": "none", "driver": "", "devices": [], "heat": []}


def lines(mps: list[dict[str, object]]) -> list[str]:
    console = plain_console()
    with console.capture() as captured:
        console.print(show_gpu.gpu(NONE | {"mps": mps}))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_a_limit_is_shown_with_what_was_before_and_why_another_is_not_held() -> None:
    shown = lines(
        [
            {
                "name": "batch",
                "pipe_directory": "/run/mps-batch",
                "asked_percent": 30,
                "state": "ok",
                "detail": "",
                "percent": 30.0,
                "before": 100.0,
                "servers": 2,
            },
            {
                "name": "night",
                "pipe_directory": None,
                "asked_percent": None,
                "state": "hung",
                "detail": "not answered",
                "percent": None,
                "before": None,
                "servers": 0,
            },
        ]
    )
    assert shown[1:] == [
        "limits on MPS clients",
        "DAEMON PIPE DIRECTORY ASKED NOW OF ITS OWN SERVERS STATE",
        "batch /run/mps-batch 30 % 30 % 100 % 2 ok",
        "night – – no limit – – hung",
        "! night: not answered",
    ]


def test_without_such_daemons_nothing_is_said_of_them() -> None:
    assert lines([]) == ["GPUs: none"]
