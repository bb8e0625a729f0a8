"""The rules and the dashboards as tests read them: expressions, and the names in these."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[3]
RULES: Final = ROOT / "deploy" / "prometheus" / "sits.rules.yml"
DASHBOARDS: Final = sorted((ROOT / "deploy" / "grafana").glob("*.json"))

_NAME: Final = re.compile(r"\b(?:\w+:)?sits_\w+(?::\w+)?")
_SELECTOR: Final = re.compile(r"((?:\w+:)?sits_\w+(?::\w+)?)(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and where it stands."""

    where: str
    expression: str

    @property
    def names(self) -> set[str]:
        """The metrics and recorded series of sits in it."""
        return set(_NAME.findall(self.expression))

    @property
    def matchers(self) -> set[tuple[str, str]]:
        """Each metric with each label it is selected by."""
        return {
            (name, label)
            for name, braces in _SELECTOR.findall(self.expression)
            for label in _MATCHER.findall(braces)
        }

    def filled_in(self, engine: str = ".+") -> str:
        """The expression with Grafana's variables replaced."""
        text = self.expression.replace("$__rate_interval", "5m").replace("$instance", ".+")
        return text.replace("$engine", engine)


def rules() -> list[Query]:
    """The expression of every rule."""
    found = re.findall(r"- (?:record|alert): (\S+)\n\s+expr: (.+)", RULES.read_text())
    return [Query(name, expression) for name, expression in found]


def recorded() -> set[str]:
    """The names that recording rules make."""
    return set(re.findall(r"- record: (\S+)", RULES.read_text()))


def alerts() -> list[str]:
    """The names of the alerts."""
    return re.findall(r"- alert: (\S+)", RULES.read_text())


def dashboards() -> list[Query]:
    """Every query of every dashboard: of panels, annotations and variables."""
    return [
        Query(f"{path.name}: {where}", expression)
        for path in DASHBOARDS
        for where, expression in _expressions(json.loads(path.read_text()))
    ]


def scalers() -> list[Query]:
    """What the examples for autoscalers ask."""
    found = []
    for path in sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml")):
        text = path.read_text()
        found += [
            Query(path.name, each) for each in re.findall(r"(?:query|metricsQuery): (.+)", text)
        ]
    return found


def _expressions(dashboard: Any) -> Iterator[tuple[str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for note in dashboard["annotations"]["list"]:
        yield note["name"], note["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"]["query"])
            assert found is not None, variable
            yield variable["name"], found[1]
