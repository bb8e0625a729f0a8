"""The commands that need no agent: replay of a journal, and simulation."""

import json
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from agent.sitsctl import main
from controller.actions import Proposal, changes_of
from controller.engines.page import Step
from controller.journal import Decision, Journal
from controller.journal_store import MIGRATIONS, migrate
from controller.policy_model import Controller, Engine, Match, Slo
from controller.recording import Inputs, some_of
from controller.simulate.controls import Ours, Seen
from controller.simulate.simulation import simulate
from controller.simulate.virtual_engine import EngineSpec, StepTimes
from controller.simulate.workload import poisson
from tests.unit.docs.schemas import problems

SLO: Final = Slo(ttft_ms=1000, gap_ms=40)
SPEC: Final = EngineSpec(StepTimes(4.0, 0.04, 0.2, 1e-5, noise=0.05), kv_tokens=50_000)
CHAT: Final = Engine("chat", Match("port", 1), slo=SLO)
START_NS: Final = 1_000_000_000_000
"""When simulated runs begin."""


class Recorder:
    """The controller against a simulated engine, with a journal kept as the agent keeps it."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.ours = Ours(CHAT, Controller(), SPEC.knobs(), heard=self.heard)
        self.steps: tuple[Step, ...] = ()
        self.began_ns = time.monotonic_ns()
        self.sampled_ns = 0

    def tick(self, seen: Seen) -> Any:
        self.steps = tuple(seen.steps)
        return self.ours.tick(seen)

    def period_ns(self) -> int:
        return self.ours.period_ns()

    def heard(self, inputs: Inputs, proposal: Proposal | None) -> None:
        mono_ns = self.began_ns + inputs.signals.now_ns - START_NS
        if proposal is not None:
            changes = tuple(changes_of(proposal, "chat"))
            decision = Decision(mono_ns, "chat", inputs.mode, str(inputs.cause), changes)
            self.journal.set_inputs(self.journal.add_decision(decision), inputs.as_dict())
        elif mono_ns - self.sampled_ns >= 250_000_000:
            self.sampled_ns = mono_ns
            fields = inputs.as_dict() | {"steps": [list(step) for step in some_of(self.steps)]}
            self.journal.add_sample(mono_ns, "chat", fields)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    opened = Journal(path)
    recorder = Recorder(opened)
    simulate(poisson(lambda _: 8.0, 20, 900, 60, seed=2), SPEC, SLO, recorder)
    opened.close()
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    lines = [
        f"{each.arrival_s},{each.prompt_tokens},{each.answer_tokens}"
        for each in poisson(lambda _: 6.0, 8, 900, 40, seed=5)
    ]
    path.write_text("\n".join(["arrival_s,prompt_tokens,answer_tokens", *lines]))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def answer(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def policy_of(directory: Path, name: str = "chat", gap_ms: int = 20) -> Path:
    path = directory / "other.toml"
    path.write_text(f"[engines.{name}]\nport = 1\nslo = {{ ttft_ms = 1000, gap_ms = {gap_ms} }}\n")
    return path


def test_a_replay_of_the_same_settings_is_the_same(journal: Path) -> None:
    replayed = answer("replay", journal)
    summary = replayed["summary"]
    assert summary["decisions"] > 3
    assert summary["ticks"] == summary["equal"] > summary["decisions"]
    assert replayed["rows"] == []
    assert replayed["label"] == "replayed: inputs recorded, effects not simulated"


def test_what_is_printed_as_json_holds_by_its_schema(
    journal: Path, trace: Path, tmp_path: Path
) -> None:
    other = ("--policy", policy_of(tmp_path))
    assert problems("replay", answer("replay", "--all", journal)) == []
    assert problems("replay", answer("replay", *other, journal)) == []
    assert problems("simulate", answer("simulate", "--trace", trace, *MODEL)) == []
    few = answer("simulate", "--trace", trace, "--journal", journal, "--controls", "default")
    assert problems("simulate", few) == []
    assert problems("simulate", {**few, "outcomes": None})
    assert problems("replay", {**few, "journal": None})


def test_another_policy_decides_otherwise_and_rows_show_both(journal: Path, tmp_path: Path) -> None:
    replayed = answer("replay", "--policy", policy_of(tmp_path), "-n", "3", journal)
    assert replayed["summary"]["different"] > 3
    assert len(replayed["rows"]) == 3
    assert not any(row["equal"] for row in replayed["rows"])
    times = [row["wall_ns"] for row in replayed["rows"]]
    assert times == sorted(times)


def test_a_replay_for_people_says_first_what_it_is(journal: Path, tmp_path: Path) -> None:
    lines = run("replay", "--policy", policy_of(tmp_path), journal).stdout.splitlines()
    assert lines[0] == "replayed: inputs recorded, effects not simulated"
    text = " ".join(" ".join(lines).split())
    assert re.search(r"decided \d+ times in \d+ recorded ticks: \d+ the same, \d+ different", text)
    assert re.search(r"max_batched_tokens then \d+ to \d+, now \d+ to \d+", text)
    assert re.search(r"then (batch|none|queue): .* now (batch|none|queue): ", text)


def test_all_rows_are_shown_if_asked_for(journal: Path) -> None:
    replayed = answer("replay", "--all", "-n", "100000", journal)
    assert len(replayed["rows"]) == replayed["summary"]["ticks"]


def test_only_what_came_since_is_replayed(journal: Path) -> None:
    everything = answer("replay", journal)["summary"]["ticks"]
    assert answer("replay", "--since", "1d", journal)["summary"]["ticks"] == everything
    result = run("replay", "--since", "2999-01-01", journal)
    assert result.exit_code == 2
    assert "has nothing to replay since then" in result.stderr


@pytest.mark.parametrize("when", ["soon", "10", "-5m", "10m2", "2026-13-01"])
def test_a_moment_that_is_none_is_refused(journal: Path, when: str) -> None:
    result = run("replay", f"--since={when}", journal)
    assert result.exit_code == 2
    assert "neither like 10m" in result.stderr


def test_what_can_t_be_replayed_is_said(journal: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    Journal(empty).close()
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old, isolation_level=None)) as db:
        migrate(db, old, MIGRATIONS[:1])
    bad = tmp_path / "bad.toml"
    bad.write_text("mode = 5")
    refused: Sequence[tuple[Sequence[str | Path], str]] = (
        ([tmp_path / "none.db"], "no such file"),
        ([old], "starting the agent once will migrate it"),
        ([empty], "has nothing to replay: no inputs were recorded"),
        (["--engine", "chot", journal], "has no engine 'chot': there is chat"),
        (["--policy", policy_of(tmp_path, "draft"), journal], "names none of the engines"),
        (["--policy", bad, journal], "bad.toml:1: mode"),
    )
    for arguments, why in refused:
        result = run("replay", *arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("sitsctl: ")
        assert why in result.stderr


def test_the_journal_of_the_policy_s_agent_is_replayed_if_none_is_named() -> None:
    result = run("replay")
    assert "/journal.db" in result.stdout + result.stderr


MODEL: Final = ("--model", "4,0.04,0.2,0.00001", "--ttft-ms", "1000", "--gap-ms", "40")


def test_a_simulation_compares_all_controls_and_is_labelled(trace: Path) -> None:
    simulated = answer("simulate", "--trace", trace, *MODEL)
    assert simulated["label"] == "simulated"
    assert {each["label"] for each in simulated["outcomes"]} == {"simulated"}
    controls = {each["control"] for each in simulated["outcomes"]}
    assert {"default", "static", "static-relegation", "aimd", "sits", "sits-fcfs"} == controls
    assert simulated["goodput_ratio_vs_best_static"] > 0
    assert simulated["goodput_ratio_vs_best_static_relegation"] > 0
    assert simulated["setting"]["slo"]["gap_ms"] == 40


def test_a_simulation_for_people_shows_the_best_static_point_only(trace: Path) -> None:
    lines = run("simulate", "--trace", trace, *MODEL).stdout.splitlines()
    assert lines[0] == "simulated"
    assert sum(line.strip().startswith("static ") for line in lines) == 1
    assert re.fullmatch(r"simulated goodput of sits: [\d.]+ × the best static point", lines[-2])
    every = run("simulate", "--trace", trace, *MODEL, "--all", "--controls", "static").stdout
    assert len(re.findall(r"^  static ", every, re.MULTILINE)) == 16


def test_an_engine_is_fitted_to_what_a_journal_recorded(journal: Path, trace: Path) -> None:
    simulated = answer(
        "simulate", "--trace", trace, "--journal", journal, "--controls", "default,sits"
    )
    setting = simulated["setting"]
    assert setting["times"]["base_ms"] == pytest.approx(4.0, rel=0.15)
    assert setting["times"]["prefill_ms"] == pytest.approx(0.04, rel=0.1)
    assert setting["times"]["noise"] == pytest.approx(0.05, rel=0.5)
    assert (setting["kv_tokens"], setting["max_batched_tokens"]) == (50_000, 2048)
    assert (setting["slo"]["ttft_ms"], setting["slo"]["gap_ms"]) == (1000, 40)


def test_a_policy_gives_the_slo_and_the_controller_s_settings(trace: Path, tmp_path: Path) -> None:
    simulated = answer(
        "simulate", "--trace", trace, *MODEL[:2], "--policy", policy_of(tmp_path, gap_ms=33),
        "--controls", "default",
    )  # fmt: skip
    assert simulated["setting"]["slo"]["gap_ms"] == 33


def test_what_can_t_be_simulated_is_said(trace: Path, journal: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    Journal(empty).close()
    refused: Sequence[tuple[Sequence[str | Path], str]] = (
        (["--trace", tmp_path / "none", *MODEL], "no such file"),
        (["--trace", trace], "needs one of --model and --journal"),
        (["--trace", trace, *MODEL, "--journal", journal], "needs one of"),
        (["--trace", trace, "--model", "1,2"], "is not four numbers"),
        (["--trace", trace, "--model", "0,0,0,1"], "above zero"),
        (["--trace", trace, *MODEL, "--controls", "magic"], "'magic' is none of default,"),
        (["--trace", trace, "--journal", empty], "nothing to replay"),
        (["--trace", trace, *MODEL, "--policy", policy_of(tmp_path), "--engine", "x"], "chat"),
    )
    for arguments, why in refused:
        result = run("simulate", *arguments)
        assert result.exit_code == 2, result.output
        assert why in result.stderr
