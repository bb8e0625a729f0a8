import subprocess
from collections.abc import Iterator

import pytest

from agent.annotations import Annotations, annotated, environment_of
from agent.discovery import Found, Surroundings
from controller.policy import parse_policy

POLICY = parse_policy(
    "[discovery]\nannotations = true\n[engines.chat]\nport = 1\n[neighbours.n]\nport = 2\n", "p"
)
SAYS = {"SITS_SLO_TTFT_MS": "800", "SITS_SLO_GAP_MS": "40.5", "SITS_CLASS": "slo-a", "HOME": "/"}


@pytest.fixture
def annotated_pid() -> Iterator[int]:
    # what it prints comes after the exec that gives it its environment
    command, pipe = ["/bin/sh", "-c", "echo; read _"], subprocess.PIPE
    with subprocess.Popen(command, env=SAYS, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_process_s_environment_says_what_it_owes(annotated_pid: int) -> None:
    said = environment_of([annotated_pid])
    assert said == {name: value for name, value in SAYS.items() if name != "HOME"}
    policy, problems = annotated(POLICY, {"chat": said})
    (engine,) = policy.engines
    assert (engine.slo.ttft_ms, engine.slo.gap_ms) == (800, 40.5)
    assert engine.service_class == "slo-a"
    assert problems == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SITS_SLO_GAP_MS", "fast"),
        ("SITS_SLO_GAP_MS", "nan"),
        ("SITS_SLO_TTFT_MS", "-1"),
        ("SITS_CLASS", "gold"),
    ],
)
def test_what_is_no_use_is_passed_over_and_named(name: str, value: str) -> None:
    policy, problems = annotated(POLICY, {"chat": {name: value}})
    assert policy == POLICY
    (problem,) = problems
    assert problem.startswith(f"chat: {name} in its environment is no ")


def test_a_neighbour_says_its_class_where_the_policy_asks(annotated_pid: int) -> None:
    found = Surroundings(neighbours=(Found("n", frozenset([annotated_pid])),))
    seen, said = Annotations().add(POLICY, found)
    assert seen.neighbours[0].annotated_class == "slo-a"
    assert said.policy == POLICY
    off = parse_policy("[neighbours.n]\nport = 2\n", "p")
    assert Annotations().add(off, found)[0] == found


def test_without_processes_nothing_is_said() -> None:
    assert environment_of([]) == {}
