"""The command, in process and as a process, against the real API over a recorded view."""

import copy
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

import click
import pytest
from click.testing import CliRunner, Result

from agent import sitsctl_policy
from agent.agent_view import ApiError, JsonObject
from agent.api import LONGEST_S, SHORTEST_S
from agent.cli import DEFAULT_PIN_DIR, DEFAULT_SOCKET, agent_setting
from agent.http import answer_json, unix_server
from agent.sitsctl import main
from agent.sockets import EngineSockets
from agent.stages_answer import stages_answer
from bpf.features import findings, open_libbpf, probe
from controller.policy import Agent, parse_policy
from tests.unit.agent.recorded import (
    CANARY,
    CGROUP,
    DECISIONS,
    EVENTS,
    EXPLAIN,
    FINDINGS,
    LIMITS,
    PROGRAMS,
    STAGES,
    STREAMS,
    UNSEEN,
    RecordedView,
    served,
    stream,
)
from tests.unit.docs.schemas import problems

HOSTILE = "\x1b[31mred\x07\nnext\u202e[bold]b[/bold]:smile:"
ASKING = [
    ["status"], ["engines"], ["streams"], ["explain"], ["stages"], ["journal"], ["mode"],
    ["doctor"], ["gpu"], ["neighbours"], ["policy", "show"], ["top"], ["reload"],
    ["policy", "diff", "systemd/policy.toml"], ["policy", "apply", "systemd/policy.toml"],
    ["policy", "status"],
]  # fmt: skip


@dataclass(slots=True)
class Setting:
    """A view, and the API over it at a socket."""

    view: RecordedView
    path: Path

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(
            main, arguments, env={"SITS_SOCKET": str(self.path)}, prog_name="sitsctl"
        )

    def lines(self, *arguments: str) -> list[str]:
        result = self.run(*arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.stdout.splitlines()


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    view = RecordedView()
    with served(view, tmp_path / "admin.sock") as path:
        yield Setting(view, path)


def process(
    *arguments: str, socket_path: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`sitsctl` as it is installed."""
    given = {} if socket_path is None else {"SITS_SOCKET": str(socket_path)}
    return subprocess.run(
        [Path(sys.executable).with_name("sitsctl"), *arguments],
        env={"PATH": os.environ["PATH"]} | given | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def imported_by(*arguments: str, socket_path: Path) -> set[str]:
    """The top-level packages that a run of sitsctl imports."""
    script = (
        "import sys\nfrom agent.sitsctl import main\n"
        "try:\n    main()\n"
        "finally:\n    print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={"PATH": os.environ["PATH"], "SITS_SOCKET": str(socket_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["status"], lambda view: view.status()),
        (["engines"], lambda view: view.engines()),
        (["streams", "-n", "2"], lambda view: view.streams(None, None, 2)),
        (["streams", "chat", "--after", "1"], lambda view: view.streams("chat", 1, 20)),
        (["explain", "--seconds", "5"], lambda view: view.explain("chat", 5.0)),
        (["stages"], lambda view: view.stages("chat", 30.0, 1.5, None)),
        (["journal"], lambda view: view.journal(20, None, None, "newest")),
        (["journal", "--events"], lambda view: view.journal(20, None, None, "newest")),
        (
            ["journal", "chat", "--before", "12"],
            lambda view: view.journal(20, "chat", 12, "newest"),
        ),
        (["journal", "--worst"], lambda view: view.journal(20, None, None, "worst")),
        (["journal", "chat", "--worst", "3"], lambda view: view.journal(3, "chat", None, "worst")),
        (["policy", "show"], lambda view: view.policy()),
        (["doctor"], lambda view: view.doctor()),
        (["gpu"], lambda view: view.gpu()),
        (["neighbours"], lambda view: view.neighbours()),
        (["top"], lambda view: view.status()),
        (["mode", "shadow"], lambda _: {"mode": "shadow"}),
        (["mode"], lambda _: {"mode": "control"}),
    ],
)
def test_json_is_the_api_s_answer_unchanged(
    setting: Setting, arguments: list[str], answer: Callable[[RecordedView], Any]
) -> None:
    result = setting.run(*arguments, "--json")
    assert json.loads(result.stdout) == answer(setting.view)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


@pytest.mark.parametrize("arguments", ASKING)
def test_every_command_fits_80_columns_without_escapes_when_piped(
    setting: Setting, arguments: list[str]
) -> None:
    setting.view.state["engines"].append(UNSEEN)
    extra = ["chat"] if arguments in (["explain"], ["stages"]) else []
    done = process(*arguments, *extra, socket_path=setting.path)
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert not re.search("[─│┌┐└┘┏┓┗┛━┃]", done.stdout)


def test_status_says_what_matters(setting: Setting) -> None:
    text = "\n".join(setting.lines("status"))
    for fact in (
        "mode control", "up 2 h 4 min", "6.1.0-28-amd64", "pid 4121", "tick 17/17.6 ms",
        "97.1%", "212/742 ≤ 800", "21/183 > 120", "neighbour_cpu", "1.52 of 1.50 cores",
        "no problems",
    ):  # fmt: skip
        assert fact in text


def test_status_with_problems_lists_them_and_ends_with_1(setting: Setting) -> None:
    setting.view.state["problems"] = ["first thing", "second thing"]
    result = setting.run("status")
    assert result.exit_code == 1
    assert "! first thing\n  ! second thing\n" in result.stdout
    assert setting.run("status", "--json").exit_code == 1


def test_status_of_an_agent_in_trouble_says_so(setting: Setting) -> None:
    setting.view.state |= {
        "controller": {"alive": False, "pid": None, "restarts": 1},
        "loop": None,
        "journal": {"dropped": 12, "error": "disk is full"},
    }
    setting.view.state["health"]["event_drops"] = 7
    text = "\n".join(setting.lines("status"))
    for fact in ("dead, 1 restart\n", "not running", "event_drops 7, journal rows 12, disk is"):
        assert fact in text


def test_status_of_an_empty_agent_is_short(setting: Setting) -> None:
    setting.view.state |= {"engines": [], "neighbours": []}
    lines = setting.lines("status")
    assert not any("engines" in line or "neighbours" in line for line in lines)


def test_engines_tells_how_many_wait_behind_others(setting: Setting) -> None:
    text = " ".join("\n".join(setting.lines("engines")).split())
    assert "12 running, 3 waiting, KV 61%" in text
    setting.view.state["engines"][0] |= {"deferred": 2}
    text = " ".join("\n".join(setting.lines("engines")).split())
    assert "12 running, 3 waiting (2 of them deferred), KV 61%" in text


def test_engines_shows_knobs_against_their_start(setting: Setting) -> None:
    text = " ".join("\n".join(setting.lines("engines")).split())
    assert "max_batched_tokens 412 tokens (start 2048), max_running 16 requests" in text
    assert "CPU weight 1024 (base 100)" in text
    assert "gap p50 21.3 ms, p99 183 ms, SLO 120 ms" in text
    assert "0.42 (queue 0.20, cpu 0.42)" in text


def test_an_engine_not_found_says_why(setting: Setting) -> None:
    setting.view.state["engines"] = [UNSEEN]
    assert setting.lines("engines") == ["draft: not found: no unit draft.service"]
    assert "not found: no unit draft.service" in "\n".join(setting.lines("status"))


def test_an_engine_without_traffic_has_no_figures_and_no_nan(setting: Setting) -> None:
    setting.view.state["engines"] = [UNSEEN | {"found": True, "detail": ""}]
    text = "\n".join(setting.lines("engines") + setting.lines("status"))
    assert "p50 –, p99 –" in text
    assert "–/– ≤ 800" in text
    assert "nan" not in text.lower()
    assert "None" not in text


def test_streams_says_which_were_good_and_what_was_wrong_with_the_rest(setting: Setting) -> None:
    _, good, slow, cut = setting.lines("streams")
    assert "good" in good
    assert "neighbour_cpu" in slow
    assert "311" in slow
    assert "client_reset" in cut


def test_streams_have_a_column_for_versions_where_there_are_any(setting: Setting) -> None:
    assert "VERSION" not in setting.lines("streams")[0]
    setting.view.ended[1]["version"] = "v2"
    head, without, with_one, _ = setting.lines("streams")
    assert "VERSION" in head
    assert re.search(r"good +– +/", without)
    assert re.search(r"neighbour_cpu +v2 +/", with_one)


def test_explain_starts_with_the_verdict(setting: Setting) -> None:
    lines = setting.lines("explain")
    assert lines[0].startswith("chat: 9 of 41 streams that ended missed their SLO; for 6.2 s")
    text = "\n".join(lines)
    for fact in (
        "82%", "neighbour_pressure 0.41", "stress-ng", "512 ms in 1204 waits",
        "max_batched_tokens 2048 → 412", "neighbours held the CPU for 41%",
    ):  # fmt: skip
        assert fact in text


def test_stages_name_the_one_that_holds_requests_up(setting: Setting) -> None:
    lines = setting.lines("stages", "--seconds", "30")
    assert lines[0].startswith("chat holds requests up before it starts them: 9.")
    order = ["accept", "receive", "waiting", "running", "send", "wire"]
    begins = [line.split()[0] for line in lines if line.split()[:1] and line.startswith("  ")]
    assert [name for name in begins if name in order][:6] == order
    text = "\n".join(lines)
    for fact in ("3 connections (1 not followed yet)", "9 more vary too little"):
        assert fact in text
    setting.run("stages", "--factor", "2", "--floor", "100")
    assert setting.view.asked[-1] == ("stages", "chat", 30.0, 2.0, 100.0)


def test_stages_of_an_engine_not_sampled_yet_are_one_line(setting: Setting) -> None:
    setting.view.staged = stages_answer("chat", [], EngineSockets(), 1.5, None)
    assert setting.lines("stages") == ["nothing is known of the stages of chat yet"]


def test_explain_with_nothing_to_say_is_its_verdict(setting: Setting) -> None:
    setting.view.explained |= {
        "verdict": "chat kept its SLO.", "causes": [], "evidence": {}, "culprits": [],
        "threads": [], "slow_streams": [], "decisions": [],
    }  # fmt: skip
    assert setting.lines("explain") == ["chat kept its SLO."]


def test_explain_names_the_engines_if_there_are_several(setting: Setting) -> None:
    setting.view.state["engines"].append(UNSEEN)
    result = setting.run("explain")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "chat, draft" in result.stderr


def test_the_journal_is_in_words_with_the_newest_at_the_end(setting: Setting) -> None:
    lines = [line.strip() for line in setting.lines("journal")]
    assert lines[1:3] == [f"{CGROUP} cpu_weight 100 → 1024", "/batch.slice cpu_quota none → 1.5"]
    assert re.search(r"chat +control +batch +applied 212 µs$", lines[3])
    assert lines[4] == "max_batched_tokens 2048 → 412"


def test_the_journal_tells_reasons_and_events_if_asked(setting: Setting) -> None:
    text = " ".join("\n".join(setting.lines("journal", "--reasons")).split())
    assert "neighbours held the CPU for 41% of the time the engine wanted it" in text
    assert re.search(
        r"engine_seen +chat +pids \[812, 833\]", setting.lines("journal", "--events")[1]
    )


def test_the_journal_tells_what_came_of_a_decision(setting: Setting) -> None:
    (line,) = (
        " ".join(line.split()) for line in ["".join(setting.lines("journal", "--worst")[2:])]
    )
    for words in ("better: gaps late 13.8%", "0.8%", "starts late 20%", "(the load changed)"):
        assert words in line


def test_the_worst_are_asked_for_alone(setting: Setting) -> None:
    assert setting.run("journal", "--worst", "--events").exit_code == 2
    assert setting.run("journal", "--worst", "5", "--before", "7").exit_code == 2
    assert setting.view.asked == []


def test_an_empty_journal_says_so(setting: Setting) -> None:
    setting.view.decisions, setting.view.events = [], []
    assert setting.lines("journal") == ["no decisions"]
    assert setting.lines("journal", "--worst") == ["no decision has an outcome yet"]
    assert setting.lines("journal", "--events") == ["no events"]


def test_mode_changes_the_mode_and_passes_the_reason_on(setting: Setting) -> None:
    assert setting.lines("mode", "observe", "--reason", "a test") == ["mode is now observe"]
    assert setting.view.asked[-1] == ("set_mode", "observe", "a test")
    assert setting.lines("mode") == ["mode is observe"]


def test_an_unknown_mode_is_not_sent(setting: Setting) -> None:
    result = setting.run("mode", "contrl")
    assert (result.exit_code, setting.view.asked) == (2, [])
    assert "observe" in result.stderr


def test_what_the_agent_refuses_ends_with_2_and_what_fails_in_it_with_1(setting: Setting) -> None:
    setting.view.raises = ApiError(409, "not now")
    result = setting.run("status")
    assert (result.exit_code, result.stderr) == (2, "sitsctl: sitsd: not now\n")
    setting.view.raises = RuntimeError()
    assert setting.run("status").exit_code == 1


@pytest.mark.parametrize("arguments", [*ASKING, ["mode", "shadow"]])
def test_without_an_agent_every_command_but_doctor_ends_with_3(
    tmp_path: Path, arguments: list[str]
) -> None:
    if arguments == ["doctor"]:
        return
    missing = tmp_path / "no.sock"
    for extra in ([], ["--json"]):
        result = CliRunner().invoke(main, [*arguments, *extra, "--socket", str(missing)])
        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr == (
            f"sitsctl: could not reach sitsd at '{missing}': no such socket; is it running?"
            " `systemctl status sitsd`\n"
        )


def test_the_socket_may_stand_before_or_after_and_wins_over_the_environment(
    setting: Setting, tmp_path: Path
) -> None:
    environment = {"SITS_SOCKET": str(tmp_path / "none.sock")}
    given = ["--socket", str(setting.path)]
    for arguments in ([*given, "mode"], ["mode", *given], [*given, "policy", "show"]):
        assert CliRunner().invoke(main, arguments, env=environment).exit_code == 0
    assert CliRunner().invoke(main, ["mode"], env=environment).exit_code == 3


def test_doctor_lists_what_is_missing_and_what_that_costs(setting: Setting) -> None:
    result = setting.run("doctor")
    assert result.exit_code == 1
    ok, missing, cost, agent, *_ = result.stdout.splitlines()
    assert ok.startswith("ok libbpf")
    assert missing.startswith("-- bpffs")
    assert cost.strip() == "so: counters start from zero when the agent does"
    assert agent.startswith("ok sitsd")


def test_doctor_shows_every_limit_and_what_each_program_took(setting: Setting) -> None:
    lines = setting.lines("doctor")
    begin = lines.index("limits, and how often each was hit")
    end = lines.index("programs, counted for 58 s")
    limits = " ".join(lines[begin:end])
    assert all(f"{name} {count}" in limits for name, count in LIMITS.items())
    header, *programs = [line.split() for line in lines[end + 1 :]]
    assert header == ["PROGRAM", "RUNS/s", "EACH", "ns", "OF", "A", "CORE", "MISSED"]
    assert programs == [
        ["switch_tasks", "14000", "250", "0.35%", "0"],
        ["stream_out", "698", "1800", "0.13%", "0"],
        ["socket_gone", "0", "–", "0%", "1"],
    ]


def test_doctor_ends_with_0_where_nothing_is_missing(setting: Setting) -> None:
    del setting.view.findings[1]
    assert setting.run("doctor").exit_code == 0


def test_doctor_without_an_agent_looks_for_itself(tmp_path: Path) -> None:
    missing = tmp_path / "no.sock"
    result = CliRunner().invoke(main, ["doctor", "--json", "--socket", str(missing)])
    *own, agent = json.loads(result.stdout)["findings"]
    pin_dir = agent_setting("pin_dir", DEFAULT_PIN_DIR)
    expected = list(findings(probe(open_libbpf()), pin_dir))
    assert [(item["name"], item["ok"]) for item in own] == [
        (item.name, item.ok) for item in expected
    ]
    assert (agent["name"], agent["ok"]) == ("sitsd", False)
    assert str(missing) in agent["detail"]
    assert result.exit_code == (3 if all(item.ok for item in expected) else 1)


def test_policy_show_is_a_policy(setting: Setting) -> None:
    shown = parse_policy("\n".join(setting.lines("policy", "show")), "shown").as_dict()
    answer = setting.view.policy()
    assert shown == {name: answer[name] for name in answer if name != "source"}


def test_policy_apply_says_what_changed_and_where_it_is(setting: Setting, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    file.write_text('\ufeffmode = "shadow" # ä\n')
    lines = setting.lines("policy", "apply", str(file))
    assert setting.view.asked[-1] == ("apply", 'mode = "shadow" # ä\n', str(file), False)
    assert lines[0].startswith(str(file)[:40])
    assert "  engines.chat.slo.gap_ms 120 → 80" in lines
    text = " ".join(lines)
    assert "policy.toml says it now, and /etc/sits/policy.toml.previous what it" in text


def test_policy_apply_says_that_what_is_temporary_ends_with_the_agent(
    setting: Setting, tmp_path: Path
) -> None:
    file = tmp_path / "new.toml"
    file.write_text("")
    assert (
        setting.lines("policy", "apply", str(file), "--temporary")[-1]
        == "until sitsd ends; /etc/sits/policy.toml says what it said"
    )
    assert setting.view.asked[-1] == ("apply", "", str(file), True)


@pytest.mark.parametrize(
    ("given", "seconds"), [("180s", 180), ("3m", 180), ("36s", 36), ("1h", 3600), ("1.5m", 90)]
)
def test_a_canary_is_asked_for_with_its_length(
    setting: Setting, given: str, seconds: float
) -> None:
    file = str(ROOT / "systemd/policy.toml")
    lines = setting.lines("policy", "apply", file, "--canary", given)
    assert setting.view.asked[-1][2:] == (file, seconds, None)
    text = " ".join(lines)
    assert "is on trial: 2 keys would change" in text
    assert "on chat, in turns with the old one, for 3 min 0 s" in text
    setting.run("policy", "apply", file, "--canary", given, "--engine", "chat")
    assert setting.view.asked[-1][2:] == (file, seconds, "chat")


@pytest.mark.parametrize(
    "options",
    [
        ["--canary", "35s"], ["--canary", "2h"], ["--canary", "180"], ["--canary", "-3m"],
        ["--engine", "chat"], ["--canary", "3m", "--temporary"],
    ],
)  # fmt: skip
def test_a_canary_that_can_t_be_is_not_asked_for(setting: Setting, options: list[str]) -> None:
    result = setting.run("policy", "apply", str(ROOT / "systemd/policy.toml"), *options)
    assert (result.exit_code, setting.view.asked) == (2, [])


def test_the_canary_s_bounds_are_the_api_s() -> None:
    assert (sitsctl_policy.SHORTEST_S, sitsctl_policy.LONGEST_S) == (SHORTEST_S, LONGEST_S)


def test_policy_status_shows_both_policies(setting: Setting) -> None:
    assert setting.lines("policy", "status") == [
        "/etc/sits/policy.toml is in force", "no policy is on trial",
    ]  # fmt: skip
    setting.view.policies.canary = copy.deepcopy(CANARY)
    text = "\n".join(setting.lines("policy", "status"))
    for fact in (
        "new.toml: on trial for 1 min 24 s of 3 min 0 s", "the new policy's",
        "4 of 9 pairs of slices", "engines.chat.slo.gap_ms 120 → 80",
    ):  # fmt: skip
        assert fact in text
    assert re.search(r"old +141 +1\.4% +0% +410 +34\.1\n", text)
    assert re.search(r"new +138 +2\.2% +0% +434 +30\.7$", text)


def test_policy_abort_ends_the_canary(setting: Setting) -> None:
    text = "\n".join(setting.lines("policy", "abort", "--reason", "enough"))
    assert setting.view.asked[-1] == ("abort", "enough")
    assert "new.toml: aborted after 1 min 24 s" in text
    assert re.search(r"why +enough", text)


def test_status_tells_of_a_canary_and_of_a_policy_that_is_not_in_the_file(
    setting: Setting,
) -> None:
    policy = setting.view.state["policy"]
    assert not any("policy" in line for line in setting.lines("status"))
    policy |= {"in_file": False, "source": "x.toml"}
    text = " ".join(" ".join(setting.lines("status")).split())
    assert "policy x.toml, until sitsd ends; /etc/sits/policy.toml says another" in text
    policy["canary"] = CANARY
    text = " ".join(setting.lines("status"))
    assert "new.toml: on trial for 1 min 24 s of 3 min 0 s" in text


def test_policy_diff_says_what_needs_a_restart(setting: Setting) -> None:
    setting.view.policies.changes = [
        {"key": "agent.max_targets", "from": 64, "to": 7, "live": False}
    ]
    assert setting.lines("policy", "diff", str(ROOT / "systemd/policy.toml"))[1:] == [
        "  agent.max_targets 64 → 7, needs a restart"
    ]


def test_a_policy_without_a_difference_changes_no_key(setting: Setting) -> None:
    setting.view.policies.changes = []
    setting.view.policies.previous = None
    file = str(ROOT / "systemd/policy.toml")
    assert " ".join(setting.lines("policy", "diff", file)).endswith(": no keys would change")
    *_, last = setting.lines("policy", "apply", file)
    assert last == "/etc/sits/policy.toml says the same"
    assert setting.lines("reload") == ["/etc/sits/policy.toml is in force: no keys changed"]


def test_a_policy_that_does_not_hold_ends_with_1_and_one_that_can_t_be_now_with_2(
    setting: Setting,
) -> None:
    file = str(ROOT / "systemd/policy.toml")
    for status, code in ((422, 1), (409, 2)):
        setting.view.raises = ApiError(status, "x.toml:1: mode: no\nx.toml:2: mode: no")
        for arguments in (["policy", "apply", file], ["policy", "diff", file], ["reload"]):
            result = setting.run(*arguments)
            assert (result.exit_code, result.stdout) == (code, "")
            assert result.stderr == (
                "sitsctl: sitsd: x.toml:1: mode: no\nsitsctl: x.toml:2: mode: no\n"
            )


def test_a_policy_file_that_can_t_be_read_is_not_sent(setting: Setting, tmp_path: Path) -> None:
    result = setting.run("policy", "apply", str(tmp_path / "none.toml"))
    assert (result.exit_code, setting.view.asked) == (1, [])
    assert "no such file" in result.stderr


def test_policy_check_says_what_a_policy_holds(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("[engines.chat]\nport = 8000\n")
    result = CliRunner().invoke(main, ["policy", "check", str(file)])
    assert (result.exit_code, result.stdout) == (
        0,
        f"{file}: holds: mode observe, 1 engine, 0 neighbours\n",
    )


def test_policy_check_names_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("mode = 'x'\n[engines.chat]\nport = 0\n")
    result = CliRunner().invoke(main, ["policy", "check", str(file)])
    assert (result.exit_code, result.stdout) == (1, "")
    first, second = result.stderr.splitlines()
    assert first.startswith(f"sitsctl: {file}:1: mode: ")
    assert second.startswith(f"sitsctl: {file}:3: engines.chat.port: ")
    result = CliRunner().invoke(main, ["policy", "check", str(file), "--json"])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["ok"], len(answer["problems"])) == (1, False, 2)
    assert problems("policy-check", answer) == []


def test_policy_check_of_a_missing_file_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["policy", "check", str(tmp_path / "none.toml")])
    assert (result.exit_code, "no such file" in result.stderr) == (1, True)


def test_the_default_socket_and_pin_directory_are_the_policy_s() -> None:
    assert (Agent().admin_socket, Agent().pin_dir) == (DEFAULT_SOCKET, DEFAULT_PIN_DIR)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[agent]\nadmin_socket = "/x/y"\n', "/x/y"),
        ('mode = 7\n[agent]\nadmin_socket = "/x/y"\nnope = 1\n', "/x/y"),
        ("[agent]\nadmin_socket = 7\n", "/default"),
        ("agent = 7\n", "/default"),
        ("", "/default"),
        ("[agent", "/default"),
        ("\0", "/default"),
    ],
)
def test_the_socket_is_read_from_a_policy_that_says_it(
    tmp_path: Path, text: str, expected: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    assert agent_setting("admin_socket", Path("/default"), file) == Path(expected)
    assert agent_setting("admin_socket", Path("/d"), tmp_path / "none") == Path("/d")


@pytest.mark.parametrize("arguments", ASKING)
@pytest.mark.parametrize("force_color", [False, True])
def test_hostile_text_is_escaped(setting: Setting, arguments: list[str], force_color: bool) -> None:
    view = setting.view
    engine, neighbour = view.state["engines"][0], view.state["neighbours"][0]
    engine |= {"detail": HOSTILE, "cgroup": HOSTILE, "cause": HOSTILE, "cause_meaning": HOSTILE}
    engine["engine"] = {"name": HOSTILE, "version": HOSTILE, "instance": HOSTILE}
    engine["evidence"] = {HOSTILE: 1.0}
    engine["knobs"] = {HOSTILE: {"value": 1, "start": 2, "unit": HOSTILE, "held": True}}
    neighbour |= {"name": HOSTILE, "cgroup": HOSTILE}
    view.beside["neighbours"][0] |= {"name": HOSTILE, "class": HOSTILE, "protected": HOSTILE}
    view.beside["candidates"][0] |= {"cgroup": HOSTILE, "command": HOSTILE, "engine": HOSTILE}
    view.state |= {"problems": [HOSTILE], "mode": HOSTILE}
    view.state["kernel"]["detail"] = HOSTILE
    view.ended = [stream(1, path=HOSTILE, cause=HOSTILE, reason=HOSTILE, remote=HOSTILE)]
    view.explained["verdict"] = view.staged["verdict"] = HOSTILE
    view.explained["culprits"][0] |= {"command": HOSTILE, "cgroup": HOSTILE}
    view.policies.canary = CANARY | {"source": HOSTILE, "reason": HOSTILE, "figures": {}}
    view.policies.changes[0] |= {"key": HOSTILE, "to": HOSTILE}
    view.findings[0]["detail"] = view.findings[1]["cost"] = HOSTILE
    view.seen["devices"][0] |= {"model": HOSTILE, "lost": HOSTILE}
    view.seen["devices"][0]["processes"][0] |= {"command": HOSTILE, "target": HOSTILE}
    for decision in view.decisions:
        decision |= {"engine": HOSTILE, "cause": HOSTILE, "reason": HOSTILE, "ack": HOSTILE}
        decision["action"][0] |= {"target": HOSTILE, "knob": HOSTILE, "to": HOSTILE}
    environment = {"SITS_SOCKET": str(setting.path)}
    if force_color:
        environment |= {"FORCE_COLOR": "1", "TERM": "xterm"}
    done = CliRunner().invoke(main, arguments, env=environment, color=True)
    assert done.stderr == ""
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
    assert (text != done.stdout) is (
        force_color and arguments not in (["mode"], ["policy", "show"])
    )
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
    if arguments != ["policy", "show"]:
        joined = re.sub(r"\s", "", text)
        assert r"\x1b[31mred" in joined or r"\x1b[3" in joined  # cut where there is no room
        assert "😄" not in text
    if force_color:
        assert "\x1b[31mred" not in done.stdout


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"FORCE_COLOR": "1", "TERM": "xterm"}, True),
        ({"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm"}, False),
    ],
)
def test_colour_is_for_those_who_want_it(
    setting: Setting, environment: dict[str, str], coloured: bool
) -> None:
    done = process("status", socket_path=setting.path, **environment)
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]m", done.stdout)) is coloured


@pytest.mark.parametrize("arguments", [["status"], ["explain"], ["top"]])
def test_output_to_an_ascii_terminal_does_not_fail(setting: Setting, arguments: list[str]) -> None:
    done = process(*arguments, socket_path=setting.path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", ASKING)
@pytest.mark.parametrize(
    "answer",
    [{}, {"engines": 7, "problems": []}, {"streams": [1], "decisions": [1], "findings": [1]}],
)
def test_an_answer_that_makes_no_sense_is_no_traceback(
    tmp_path: Path, arguments: list[str], answer: JsonObject
) -> None:
    def odd(_: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return answer_json(start_response, 200, answer)

    path = tmp_path / "odd.sock"
    with unix_server(path, odd):
        result = CliRunner().invoke(main, [*arguments, "--socket", str(path)])
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 1
    assert result.stderr.startswith("sitsctl: could not read the agent's answer: ")


def names() -> list[str]:
    """Those of all commands."""
    assert isinstance(main, click.Group)
    return main.list_commands(click.Context(main))


def test_help_names_commands_and_exit_codes() -> None:
    done = process("--help")
    assert done.returncode == 0
    for name in names():
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE)
    words = " ".join(done.stdout.split())
    for code in ("0 all is well", "1 something is wrong", "2 the command", "3 the agent"):
        assert code in words


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--json"], ["journal", "--json"]])
def test_what_is_not_needed_is_not_imported(setting: Setting, arguments: list[str]) -> None:
    imported = imported_by(*arguments, socket_path=setting.path)
    assert "click" in imported
    assert imported.isdisjoint({"rich", "psutil", "prometheus_client", "numpy", "tomllib"})


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"]])
def test_what_takes_long_to_import_is_not_needed_for_a_status(
    setting: Setting, arguments: list[str]
) -> None:
    imported = imported_by(*arguments, socket_path=setting.path)
    assert imported.isdisjoint({"ssl", "email", "http", "tarfile", "sqlite3", "asyncio", "ctypes"})
    assert imported.isdisjoint({"bpf", "numpy", "prometheus_client", "psutil", "tomllib"})


def test_rich_is_imported_where_people_read(setting: Setting) -> None:
    assert "rich" in imported_by("status", socket_path=setting.path)


def test_a_change_by_hand_goes_to_the_agent_as_it_was_typed(setting: Setting) -> None:
    arguments = ["set", "max_running=8", "kv_cache_ratio=0.5", "--engine", "chat"]
    result = setting.run(*arguments, "--lease", "2m", "--reason", "why")
    assert result.exit_code == 0
    assert setting.run("release", "--reason", "enough").exit_code == 0
    assert setting.view.asked == [
        ("set", ["chat"], {"max_running": 8.0, "kv_cache_ratio": 0.5}, 120.0, "why"),
        ("release", [], "enough"),
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"engines": {"chat": {"standing": "refused", "detail": "held by 'other'"}}},
            "chat  left behind: refused: held by 'other'",
        ),
        (
            {"state": "aborted", "why": "1 of 3 could prepare it, 2 had to"},
            "max_running 8: nothing was changed: 1 of 3 could prepare it, 2 had to",
        ),
        ({"state": "under way"}, "max_running 8: not decided yet"),
    ],
)
def test_a_change_that_was_not_made_everywhere_is_told_and_is_an_error(
    setting: Setting, answer: JsonObject, said: str
) -> None:
    setting.view.changes.answer |= answer
    result = setting.run("set", "max_running=8", "--reason", "why")
    assert result.exit_code == 1
    assert said in result.stdout


def test_engines_has_a_line_for_each_rank_and_says_what_was_set_by_hand(setting: Setting) -> None:
    engine = setting.view.state["engines"][0]
    (socket,) = engine["admin_sockets"]
    hand = {"id": 1, "values": {"max_running": 8}, "reason": "why", "state": "in force"}
    engine["admin_sockets"] = [
        socket | {"key": "chat/admin.sock", "by_hand": hand | {"left_s": 42.0}},
        socket
        | {"key": "chat/admin-1.sock", "state": "held", "detail": "the lease is held by 'other'"}
        | {"lease": {"owner": "other", "ours": False, "left_s": 3.0}},
    ]
    lines = [" ".join(line.split()) for line in setting.lines("engines")]
    assert "by hand max_running 8 (in force, 42 s left): why" in lines
    assert any(line.startswith("admin.sock connected") for line in lines)
    assert any("admin-1.sock held: the lease" in line for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["max_running=8"],
        ["--reason", "why"],
        ["max_running", "--reason", "why"],
        ["max_running=many", "--reason", "why"],
        ["max_running=1", "max_running=2", "--reason", "why"],
        ["max_running=1", "--reason", "why", "--lease", "forever"],
    ],
)
def test_a_change_that_makes_no_sense_is_not_sent(setting: Setting, arguments: list[str]) -> None:
    assert setting.run("set", *arguments).exit_code == 2
    assert setting.view.asked == []


ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs/sitsctl.md").read_text()


def without_clock(text: str) -> str:
    """`text` without the time of day at the end of a line, which `top` shows."""
    return re.sub(r"\d\d:\d\d:\d\d$", "HH:MM:SS", text, flags=re.MULTILINE)


def test_the_documentation_s_examples_are_what_the_command_prints(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    examples = re.findall(r"```console\n\$ sitsctl (.*)\n((?:.*\n)*?)```", DOC)
    assert len(examples) == 25
    for command, output in examples:
        done = process(*shlex.split(command), socket_path=setting.path, TZ="UTC")
        assert without_clock(done.stdout + done.stderr) == without_clock(output), command


def test_the_documentation_names_every_command_and_exit_code() -> None:
    assert set(names()) <= set(re.findall(r"^## (.*)$", DOC, re.MULTILINE))
    assert {"0", "1", "2", "3"} == set(re.findall(r"^\| (\d) \|", DOC, re.MULTILINE))


def test_the_documentation_names_every_field_of_every_answer() -> None:
    view = RecordedView()
    by_name = {"figures", "stream_causes", "knobs", "evidence", "signals"}
    names: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, dict):
            for name, item in value.items():
                names.add(name)
                if name == "knobs":
                    collect(list(item.values()))
                elif name not in by_name:
                    collect(item)

    collect(
        [view.status(), CANARY, CANARY["figures"]["chat"], STREAMS, EXPLAIN, STAGES]
        + [FINDINGS, PROGRAMS]
        + [item | {"detail": None} for item in EVENTS]
        + DECISIONS
    )
    assert {
        name for name in names if not re.search(rf"`{name}`|\b{name} and\b|and {name}", DOC)
    } == set()


def test_neighbours_say_their_class_what_they_got_and_who_is_not_named(setting: Setting) -> None:
    text = "\n".join(setting.lines("neighbours"))
    for fact in (
        "slo-b", "quota", "62 s", "71.3 CPU s", "21.9 CPU s", "unit logs.service is not running",
        "800 ms", "200 ms", "70%", "/system.slice/backup.servi", "zstd", "34%",
    ):  # fmt: skip
        assert fact in text


def test_the_status_names_who_took_the_cpu_and_is_not_named(setting: Setting) -> None:
    setting.view.state["candidates"] = setting.view.beside["candidates"]
    assert "/system.slice/backup.service (zstd)" in "\n".join(setting.lines("status"))
