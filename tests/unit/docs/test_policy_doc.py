"""The policy's documentation and the default policy file say what the code does."""

import re
from pathlib import Path

import pytest

from controller.policy import (
    Engine,
    Match,
    Neighbour,
    Policy,
    PolicyError,
    load_policy,
    parse_policy,
    policy_keys,
)

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs/policy.md").read_text()
DEFAULT = ROOT / "systemd/policy.toml"


def uncommented(text: str) -> str:
    """The file with every setting that is commented out (`#key`, not `# prose`) in force."""
    return re.sub(r"(?m)^#(?=[a-z\[])", "", text)


def expected_row(name: str, meaning: str, unit: str, default: str | None, allowed: str) -> str:
    shown = "" if default is None else f"`{default}`"
    return f"| `{name}` | {meaning} | {unit} | {shown} | {allowed} |"


def test_the_tables_hold_every_key_as_the_code_has_it() -> None:
    rows = [line for line in DOC.splitlines() if line.startswith("| `")]
    assert rows == [
        expected_row(key.name, key.meaning, key.unit, key.default, key.allowed)
        for key in policy_keys()
    ]


def test_the_documentation_s_examples_are_policies() -> None:
    examples = re.findall(r"```toml\n(.*?)```", DOC, re.DOTALL)
    assert len(examples) == 3
    policy = parse_policy("\n".join(examples), "docs/policy.md")
    assert [engine.name for engine in policy.engines] == ["chat"]
    assert [neighbour.name for neighbour in policy.neighbours] == ["batch"]
    assert [daemon.name for daemon in policy.mps] == ["batch"]


def test_the_documentation_s_problems_are_those_the_code_reports() -> None:
    text = "\n" * 10 + (
        "[engines.chat.slo]\ngap_ms = 'fast'\n[engines.chat]\nlimit = 1\nport = 1\n"
    )
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "/etc/sits/policy.toml")
    assert f"```\n{caught.value}\n```" in DOC


def test_the_default_policy_file_is_the_default_policy() -> None:
    assert load_policy(DEFAULT) == Policy()


def test_the_default_policy_file_shows_every_default_rightly() -> None:
    policy = parse_policy(uncommented(DEFAULT.read_text()), "uncommented")
    engine = Engine(
        "chat", Match("unit", "vllm.service"), admin_socket=Path("/run/vllm/admin.sock")
    )
    neighbour = Neighbour("batch", Match("cgroup", "/batch.slice/*"))
    assert policy == Policy(engines=(engine,), neighbours=(neighbour,))


def test_the_default_policy_file_names_every_key() -> None:
    text = DEFAULT.read_text()
    missing = [
        key.name
        for key in policy_keys()
        if not re.search(rf"\b{key.name.rsplit('.', 1)[-1]} = ", text)
    ]
    assert missing == []
