"""What an operator injects: told while it lasts, and by whom it is known."""

import io

import pytest
from rich.console import Console

from agent.injection import Injection
from agent.show import status
from tests.unit.agent.recorded import RecordedView
from tests.unit.agent.test_top import drawn
from tests.unit.docs.schemas import problems

TOLD = Injection("backpressure", 0.8, "the gateway is full", ends_s=105.0, controller_pid=7)


def test_while_it_lasts_it_is_told_with_the_time_that_is_left() -> None:
    assert TOLD.answer(101.5, 7) == {
        "what": "backpressure",
        "value": 0.8,
        "left_s": 3.5,
        "reason": "the gateway is full",
    }


@pytest.mark.parametrize(
    ("injection", "now_s", "pid"),
    [
        (TOLD, 105.0, 7),
        (TOLD, 101.0, 8),
        (TOLD, 101.0, None),
        (Injection("backpressure", 0.0, "over", 105.0, 7), 101.0, 7),
    ],
)
def test_over_withdrawn_or_with_another_controller_it_is_not(
    injection: Injection, now_s: float, pid: int | None
) -> None:
    assert injection.answer(now_s, pid) is None


def test_status_and_top_say_it_and_the_schema_allows_it() -> None:
    view = RecordedView()
    view.state["injected"] = TOLD.answer(101.0, 7)
    assert problems("status", view.status()) == []
    said = "backpressure 0.8, for 4 s more: the gateway is full"
    assert any(said in line for line in drawn(view.status()))
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(status(view.status()))
    assert said in captured.get()
