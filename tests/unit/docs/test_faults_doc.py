import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FAULTS = (
    "idle task counted as waiting",
    "filter on the waker",
    "a stamp that outlives its task",
    "a reused cgroup id",
    "overflow clamped into the last finite bucket",
    "duplicate series after a cgroup is recreated",
    "possible against online CPUs",
    "boot against wall clock",
    "retransmits that failed",
    "`state` renamed",
    "a child span that starts before its parent",
    "an exporter retry storm",
    "admission stuck at the cap (vllm-project/vllm#53130)",
    "a cap below what runs",
    "a token budget below what runs",
)


def rows() -> dict[str, str]:
    """Each fault of the document, and where its test is."""
    text = (ROOT / "docs/faults.md").read_text()
    found = re.findall(r"^\| (.*?) \| .*? \| `(.*?)`.*\|$", text, re.MULTILINE)
    return {name: test for name, test in found if name != "fault"}


def test_every_fault_has_its_test() -> None:
    assert tuple(rows()) == FAULTS


def test_every_test_that_is_named_exists() -> None:
    for test in rows().values():
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, test
