"""The rules: right by promtool, about metrics there are, each alert with its runbook entry."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.docs.test_metrics_doc import families

from .queries import ROOT, RULES, Query, alerts, dashboards, recorded, rules, scalers

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
TARGET = {"job", "instance"}


def labels() -> dict[str, set[str]]:
    """Every series the agent exports, with its labels."""
    found: dict[str, set[str]] = {}
    for family in families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def promtool(*arguments: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ids(query: Query) -> str:
    return query.where


@pytest.mark.parametrize("query", rules() + dashboards() + scalers(), ids=ids)
def test_every_metric_of_a_query_is_exported_or_recorded(query: Query) -> None:
    assert query.names or query.expression.startswith("up{")  # Prometheus' own
    assert query.names <= labels().keys() | recorded()


@pytest.mark.parametrize("query", rules() + dashboards() + scalers(), ids=ids)
def test_every_label_a_metric_is_selected_by_is_its_own(query: Query) -> None:
    known = labels()
    assert [
        (name, label)
        for name, label in query.matchers
        if name in known and label not in known[name] | TARGET
    ] == []


def test_every_alert_has_its_entry_in_the_runbook_and_no_other() -> None:
    assert re.findall(r"(?m)^### (Sits\w+)$", RUNBOOK) == alerts()


def test_every_alert_points_to_its_entry() -> None:
    pointed = re.findall(r"runbook: docs/runbook\.md#(\w+)", RULES.read_text())
    assert pointed == [name.lower() for name in alerts()]


def test_every_entry_says_what_to_look_at_and_what_to_do() -> None:
    entries = re.split(r"(?m)^### ", RUNBOOK)[1:]
    assert [
        entry.split("\n")[0]
        for entry in entries
        if not all(f"**{part}.**" in entry for part in ("Means", "Look", "Do"))
    ] == []


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    text = (Path(__file__).parent / "sits.rules.test.yml").read_text()
    fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", text))
    assert set(alerts()) - fired == set()


@pytest.mark.slow
def test_the_rules_hold() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))


@pytest.mark.slow
def test_every_rule_records_and_fires_when_it_should_and_not_else() -> None:
    assert "SUCCESS" in promtool("test", "rules", "sits.rules.test.yml", cwd=Path(__file__).parent)


@pytest.mark.slow
def test_every_query_of_a_dashboard_is_promql(tmp_path: Path) -> None:
    lines = ["groups:", "- name: queries", "  rules:"]
    for number, query in enumerate(dashboards()):
        text = query.filled_in().replace("'", "''")
        lines += [f"  - record: query:{number}", f"    expr: '{text}'"]
    (path := tmp_path / "queries.yml").write_text("\n".join(lines) + "\n")
    assert "SUCCESS" in promtool("check", "rules", str(path))
