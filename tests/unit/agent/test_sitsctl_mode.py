"""pause, resume and inject, against the real API over a recorded view."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.sitsctl import main

from .recorded import RecordedView, served


class Setting:
    def __init__(self, view: RecordedView, path: Path) -> None:
        self.view, self._path = view, path

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--socket", str(self._path)])


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    view = RecordedView()
    with served(view, tmp_path / "admin.sock") as path:
        yield Setting(view, path)


def test_pause_is_mode_observe(setting: Setting) -> None:
    assert setting.run("pause", "--reason", "a drill").exit_code == 0
    assert setting.view.asked == [("set_mode", "observe", "a drill")]


def test_resume_takes_the_mode_of_the_policy(setting: Setting) -> None:
    setting.view.state["mode"] = "observe"
    result = setting.run("resume")
    assert result.output == "mode is now control, as the policy says\n"
    assert setting.view.asked[-1] == ("set_mode", "control", "resumed by an operator")


def test_inject_tells_the_agent(setting: Setting) -> None:
    result = setting.run("inject", "backpressure", "0.8", "--for", "2m", "--reason", "full")
    assert result.output == "backpressure 0.8 for 120 s\n"
    assert setting.view.asked == [("inject", 0.8, 120.0, "full")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["inject", "backpressure", "1.1", "--reason", "x"],
        ["inject", "backpressure", "0.5"],
        ["inject", "backpressure", "0.5", "--for", "11m", "--reason", "x"],
        ["inject", "backpressure", "0.5", "--for", "soon", "--reason", "x"],
        ["inject", "latency", "0.5", "--reason", "x"],
    ],
)
def test_what_can_t_be_injected_is_not_understood(setting: Setting, arguments: list[str]) -> None:
    assert setting.run(*arguments).exit_code == 2
    assert setting.view.asked == []


def test_the_slowest_streams_are_the_worst_last(setting: Setting) -> None:
    found = CliRunner().invoke(
        main, ["streams", "--slowest", "-n", "2", "--socket", str(setting._path)]
    )
    assert found.exit_code == 0
    assert setting.view.asked[-1] == ("streams", None, None, 1000)
    assert setting.run("streams", "--slowest", "--after", "1").exit_code == 2
