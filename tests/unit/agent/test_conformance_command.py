"""`sitsctl conformance` over small engines: what it prints, how it ends, how it finds them."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent.sitsctl import main
from controller.conformance.suite import CHECKS
from controller.engines.client import call
from controller.serving.leases import Leases
from tests.unit.agent.recorded import RecordedView, served
from tests.unit.controller.conformance.engines import SmallEngine, serving
from tests.unit.docs.schemas import problems

QUICK = ("--only", "release", "--only", "ids")


class AlwaysReleases(Leases):
    def release(self, now_ns: int, owner: str) -> bool:
        super().release(now_ns, owner)
        return True


class Wrong(SmallEngine):
    leases_type = AlwaysReleases


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Path]:
    with serving(tmp_path) as path:
        yield path


def sitsctl(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(
        main, ["conformance", *arguments], env={"COLUMNS": "80"} | environment
    )


def test_a_right_engine_ends_with_0(engine: Path) -> None:
    result = sitsctl(str(engine), *QUICK)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == (
        "keeps the contract: 2 of 2 checks passed, 0 failed, 0 not applicable"
    )
    assert re.search(r"^  pass    ids +A response repeats the id", result.stdout, re.MULTILINE)


def test_a_fault_ends_with_1_and_says_what_was_sent_expected_and_got(tmp_path: Path) -> None:
    with serving(tmp_path, Wrong) as path:
        result = sitsctl(str(path), *QUICK)
        report = json.loads(sitsctl(str(path), *QUICK, "--json").stdout)
    assert result.exit_code == 1
    lines = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    facts = {line[0]: line[1] for line in lines if len(line) == 2}
    assert '"call":"release"' in facts["sent"]
    assert facts["expected"] == "released to be false"
    assert facts["got"].startswith('{"id": ')
    assert "docs/engine-protocol.md#calls" in result.stdout.replace("\n", "")
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert (report["conforms"], report["failed"]) == (False, 1)
    (failed,) = (each for each in report["checks"] if each["result"] == "fail")
    assert failed["expected"] == "released to be false"
    assert problems("conformance", report) == []
    assert problems("conformance", {**report, "checks": [{**failed, "result": "maybe"}]})


def test_a_held_engine_is_left_alone_and_ends_with_2(engine: Path) -> None:
    call(engine, "set", 5, owner="somebody\x1b[31m", epoch=1, lease_ms=10_000)
    result = sitsctl(str(engine))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "its lease is held by 'somebody\\x1b[31m'" in result.stderr
    assert "\x1b" not in result.stderr


def test_an_engine_that_is_not_there_ends_with_2(tmp_path: Path) -> None:
    result = sitsctl(str(tmp_path / "none"))
    assert result.exit_code == 2
    assert result.stderr == (
        f"sitsctl: could not reach engine at '{tmp_path}/none': no such file or directory\n"
    )


def test_an_engine_is_found_by_its_name_in_the_agent_s_policy(engine: Path, tmp_path: Path) -> None:
    class View(RecordedView):
        def policy(self) -> dict[str, Any]:
            answer = copy.deepcopy(super().policy())
            answer["engines"]["chat"]["admin_socket"] = str(engine)
            answer["engines"]["mute"] = {}
            return answer

    with served(View(), tmp_path / "agent.sock") as agent:
        found = sitsctl("chat", *QUICK, SITS_SOCKET=str(agent))
        unknown = sitsctl("talk", SITS_SOCKET=str(agent))
        mute = sitsctl("mute", SITS_SOCKET=str(agent))
    assert found.exit_code == 0
    # however long the path is, and so wherever its line is broken
    assert f"at{engine}" in "".join(found.stdout.split())
    assert unknown.exit_code == mute.exit_code == 2
    assert "no engine 'talk' in the agent's policy; there is chat, mute" in unknown.stderr
    assert "engine 'mute' has neither admin_socket nor adapter" in mute.stderr
    assert sitsctl("chat", SITS_SOCKET=str(tmp_path / "none")).exit_code == 3


def test_the_list_names_every_check_and_its_sentence() -> None:
    answer = json.loads(sitsctl("--list", "--json").stdout)
    assert problems("conformance", answer) == []
    listed = answer["checks"]
    assert [each["name"] for each in listed] == [check.name for check in CHECKS]
    text = sitsctl("--list").stdout
    assert all(check.name in text for check in CHECKS)
    assert max(map(len, text.splitlines())) <= 80


def test_a_restart_command_that_fails_is_named(engine: Path) -> None:
    result = sitsctl(str(engine), "--only", "restart", "--restart-command", "exit 7")
    assert result.exit_code == 2
    assert "the restart command ended with 7: exit 7" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((), "needs a TARGET, or --list"), (("x", "--only", "dance"), "no check is named 'dance'")],
)
def test_what_is_not_understood_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = sitsctl(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


DOC = Path(__file__).parents[3] / "docs" / "sitsctl.md"


def squeezed(text: str) -> str:
    """From the table on, without what differs from run to run, and where lines are broken."""
    text = re.sub(r"conformance-\d+", "conformance-N", "".join(text.split()))
    return text[text.index("RESULT") :]


def test_the_documentation_s_example_is_what_the_command_prints(tmp_path: Path) -> None:
    (example,) = re.findall(
        r"```console\n# sitsctl (conformance .*)\n((?:.*\n)*?)```", DOC.read_text()
    )
    command, output = example
    with serving(tmp_path, Wrong) as path:
        _, _, *options = command.split()
        assert squeezed(sitsctl(str(path), *options).stdout) == squeezed(output)
