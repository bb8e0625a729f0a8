"""Who tries a policy, and what is said of a trial."""

from dataclasses import replace

import pytest

from agent.agent_view import ApiError
from agent.trial import Arms, Proposed, Trial, arms_of, reason_of, state_of
from bpf.histogram import EMPTY
from controller.canary import Kind, Verdict
from controller.policy import parse_policy
from controller.policy_diff import policy_changes
from controller.policy_model import Mode, Policy

ONE = 'mode = "control"\n[engines.chat]\nport = 8000\nslo.gap_ms = 120\n'
THREE = ONE + "[engines.code]\nport = 8001\n[engines.idle]\nport = 8002\n"
LOADS = {"chat": 5.0, "code": 1.0, "idle": 0.0}


def policy(text: str) -> Policy:
    return parse_policy(text, "test")


def proposed(old: str, new: str) -> Proposed:
    return Proposed(policy(new), new, "new.toml", policy_changes(policy(old), policy(new)))


def arms(old: str, new: str, mode: Mode = "control", engine: str | None = None) -> Arms:
    return arms_of(policy(old), proposed(old, new), mode, engine, LOADS.__getitem__)


def refusal(old: str, new: str, mode: Mode = "control", engine: str | None = None) -> str:
    with pytest.raises(ApiError) as caught:
        arms(old, new, mode, engine)
    assert caught.value.status == 409
    return caught.value.message


def test_with_one_engine_all_of_the_policy_is_tried_on_it() -> None:
    new = ONE.replace("120", "80")
    found = arms(ONE, new)
    assert found == Arms(("chat",), policy(ONE), policy(new), "control", None)


EVERYWHERE = THREE.replace("port", "slo.ttft_ms = 99\nport")


def test_with_several_it_is_tried_on_the_least_loaded_that_has_traffic() -> None:
    found = arms(THREE, EVERYWHERE)
    assert found.tried == ("code",)
    slos = {engine.name: engine.slo.ttft_ms for engine in found.new.engines}
    assert slos == {"chat": 2000, "code": 99, "idle": 2000}
    assert replace(found.new, engines=()) == replace(policy(THREE), engines=())


def test_only_an_engine_that_it_changes_can_try_it() -> None:
    new = THREE.replace("120", "80")
    assert arms(THREE, new).tried == ("chat",)
    assert "changes nothing for code: there is nothing to try; it changes chat" in refusal(
        THREE, new, engine="code"
    )


def test_the_engine_that_is_named_tries_it() -> None:
    found = arms(THREE, EVERYWHERE, engine="idle")
    assert found.tried == ("idle",)
    assert [engine.slo.ttft_ms for engine in found.new.engines] == [2000, 2000, 99]


def test_what_is_every_engine_s_is_tried_on_all() -> None:
    new = THREE + "[controller]\nlease_ms = 600\n"
    found = arms(THREE, new)
    assert (found.tried, found.new) == (("chat", "code", "idle"), policy(new))
    assert "controller.lease_ms is every engine's" in refusal(THREE, new, engine="chat")


def test_a_mode_is_tried_and_the_one_in_force_comes_back() -> None:
    found = arms(ONE.replace("control", "observe"), ONE, mode="shadow")
    assert (found.old_mode, found.new_mode) == ("shadow", "control")


@pytest.mark.parametrize("mode", ["observe", "shadow"])
def test_where_nothing_acts_there_is_nothing_to_try(mode: Mode) -> None:
    assert f"in mode {mode} a policy changes nothing" in refusal(
        ONE, ONE.replace("120", "80"), mode
    )


def test_a_policy_that_changes_nothing_is_not_tried() -> None:
    assert "changes nothing" in refusal(ONE, ONE + "# a comment\n")


def test_a_policy_without_engines_is_not_tried() -> None:
    assert "no engine to try it on" in refusal('mode = "control"\n', 'mode = "shadow"\n')


@pytest.mark.parametrize(
    "new",
    [
        ONE + "[engines.more]\nport = 1\n",
        ONE + '[neighbours.more]\ncgroup = "/x"\n',
        ONE.replace("port = 8000", "port = 8001"),
    ],
)
def test_other_targets_can_t_be_tried_in_turns(new: str) -> None:
    assert "other engines or neighbours, or finds them otherwise" in refusal(ONE, new)


def test_a_trial_tells_how_it_stands() -> None:
    new = ONE.replace("120", "80")
    trial = Trial(proposed(ONE, new), arms(ONE, new), 180, lambda _: EMPTY)
    status = trial.status()
    assert (status["state"], status["source"], status["engines"]) == (
        "running",
        "new.toml",
        ["chat"],
    )
    assert (status["planned_s"], status["longest_s"]) == (180, 540)
    assert status["turn"] in {"old", "new"}
    assert status["reason"] == "0 of 9 pairs of slices"
    nothing = {
        "streams": 0,
        "bad_share": None,
        "error_share": None,
        "ttft_p95_ms": None,
        "gap_p95_ms": None,
    }
    assert status["figures"] == {"chat": {"pairs": 0, "old": nothing, "new": nothing}}
    trial.end("aborted", "an operator wished it")
    status = trial.status()
    assert (status["state"], status["turn"]) == ("aborted", None)
    assert status["reason"] == "an operator wished it"
    assert trial.elapsed_s == trial.elapsed_s


@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [
        (Kind.BETTER, "adopted", "better: why"),
        (Kind.NO_WORSE, "adopted", "no worse: why"),
        (Kind.WORSE, "rolled_back", "worse: why"),
        (Kind.UNCLEAR, "rolled_back", "unclear: why"),
        (Kind.TOO_LITTLE, "rolled_back", "too little traffic to tell: why"),
    ],
)
def test_only_what_does_no_harm_is_adopted(kind: Kind, state: str, text: str) -> None:
    verdict = Verdict(kind, "why")
    assert (state_of(verdict), reason_of(verdict)) == (state, text)
