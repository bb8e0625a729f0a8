"""What two policies differ in."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from controller.policy import parse_policy, policy_keys
from controller.policy_diff import LIVE, changed_engines, policy_changes
from controller.policy_model import Otel, Policy

BASE = """
[engines.chat]
port = 8000
slo = { gap_ms = 120 }
[neighbours.batch]
cgroup = "/batch"
"""


def policy(text: str) -> Policy:
    return parse_policy(text, "test")


def changes(old: str, new: str) -> list[str]:
    return [str(each) for each in policy_changes(policy(old), policy(new))]


def test_a_policy_does_not_differ_from_itself() -> None:
    assert changes(BASE, BASE) == []
    assert changes(BASE, BASE + "\n# a comment\n") == []


def test_a_default_written_out_is_no_difference() -> None:
    assert changes("", 'mode = "observe"\n[controller]\nlease_ms = 500') == []


def test_each_key_is_named_with_both_values() -> None:
    new = BASE.replace("120", "80").replace("[neigh", "limits.cpu_weight_max = 0\n[neigh")
    assert changes(BASE, 'mode = "shadow"\n' + new) == [
        'mode "observe" → "shadow"',
        "engines.chat.slo.gap_ms 120 → 80",
        "engines.chat.limits.cpu_weight_max 10000 → 0",
    ]


def test_what_comes_and_goes_is_told_key_by_key() -> None:
    new = BASE.replace("neighbours.batch", "neighbours.logs")
    assert changes(BASE, new) == [
        'neighbours.logs.cgroup none → "/batch"',
        "neighbours.logs.limit none → true",
        "neighbours.logs.min_cores none → 0.05",
        "neighbours.logs.weight none → 0",
        'neighbours.batch.cgroup "/batch" → none',
        "neighbours.batch.limit true → none",
        "neighbours.batch.min_cores 0.05 → none",
        "neighbours.batch.weight 0 → none",
    ]


def test_another_way_to_find_a_target_is_two_keys() -> None:
    assert changes(BASE, BASE.replace("port = 8000", 'cgroup = "/chat"')) == [
        'engines.chat.cgroup none → "/chat"',
        "engines.chat.port 8000 → none",
    ]


def test_only_an_engine_that_stays_needs_a_restart_for_its_admin_socket() -> None:
    with_socket = BASE.replace("port = 8000", 'port = 8000\nadmin_socket = "/run/x.sock"')
    (change,) = policy_changes(policy(BASE), policy(with_socket))
    assert (change.key, change.live) == ("engines.chat.admin_socket", False)
    assert all(change.live for change in policy_changes(policy(""), policy(with_socket)))


def test_only_the_agents_and_the_exporters_tables_need_a_restart() -> None:
    tables = {key.name.split(".")[0] for key in policy_keys()}
    assert tables - LIVE == {"agent", "otel"}
    new = policy("[agent]\nmax_targets = 7\n[otel]\nsample_ratio = 1\n[controller]\nlease_ms = 600")
    live = {change.key: change.live for change in policy_changes(Policy(), new)}
    assert live == {
        "agent.max_targets": False,
        "otel.sample_ratio": False,
        "controller.lease_ms": True,
    }


def test_a_changed_secret_is_seen_and_not_shown() -> None:
    old = Policy(otel=Otel(headers={"key": "one"}))
    (change,) = policy_changes(old, replace(old, otel=Otel(headers={"key": "two"})))
    assert str(change) == 'otel.headers.key "(hidden)" → "(hidden)"'
    assert "one" not in str(change.as_dict())


@given(gap_ms=st.floats(1, 60_000), ttft_ms=st.floats(1, 600_000))
def test_engines_that_are_treated_differently_are_those_with_changes(
    gap_ms: float, ttft_ms: float
) -> None:
    two = BASE + "[engines.draft]\nport = 8001\n"
    old = policy(two)
    new = policy(two.replace("gap_ms = 120", f"gap_ms = {gap_ms}, ttft_ms = {ttft_ms}"))
    named = {change.path[1] for change in policy_changes(old, new)}
    assert changed_engines(old, new) == named


def test_an_engine_that_comes_or_goes_is_not_one_that_changes() -> None:
    assert changed_engines(policy(BASE), policy("")) == frozenset()
    assert changed_engines(policy(""), policy(BASE)) == frozenset()
    moved = policy(BASE.replace("8000", "8001"))
    assert changed_engines(policy(BASE), moved) == {"chat"}


def test_a_path_is_shown_as_text() -> None:
    text = f'[agent]\nrun_dir = "{Path("/elsewhere")}"'
    assert changes("", text) == ['agent.run_dir "/run/sits" → "/elsewhere"']
