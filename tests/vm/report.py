"""What a guest's test run came to, from pytest's JUnit file."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass(frozen=True, slots=True)
class Report:
    """Counts of tests, and a line for each one that failed or was skipped, with the reason."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def counts(self) -> str:
        """The counts as one line."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def from_junit(text: str) -> Report:
    """Read a JUnit file. An error outside a test's own code counts as a failure of that test.

    Raises ValueError when the text is not such a file.
    """
    try:
        cases = ElementTree.fromstring(text).iter("testcase")
    except ElementTree.ParseError as error:
        raise ValueError(f"not a JUnit file: {error}") from error
    passed = failed = skipped = 0
    remarks: list[str] = []
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        verdicts = {child.tag: child for child in case}
        bad = verdicts.get("failure", verdicts.get("error"))
        skip = verdicts.get("skipped")
        if bad is not None:
            failed += 1
            remarks.append(f"FAILED {name}: {_first_line(bad)}")
        elif skip is not None:
            skipped += 1
            remarks.append(f"SKIPPED {name}: {_first_line(skip)}")
        else:
            passed += 1
    return Report(passed, failed, skipped, tuple(remarks))


def _first_line(verdict: ElementTree.Element) -> str:
    return next(iter((verdict.get("message") or "").splitlines()), "no message")


def of_payload(status: int, results: Path) -> Report:
    """Return the report of a finished payload.

    A status that the tests themselves do not explain (a time-out, no test found, a crash of the
    test run) counts as one more failure.
    """
    try:
        report = from_junit((results / "junit.xml").read_text())
    except (OSError, ValueError):
        report = Report()
    explained = status == 0 or (status == 1 and report.failed > 0)
    if explained and report.passed + report.failed + report.skipped > 0:
        return report
    cause = "ran past its time" if status == 124 else f"ended with status {status}"
    return total([report, failure(f"the test run {cause}, see {results / 'output.txt'}")])


def failure(cause: str) -> Report:
    """Return the report of a kernel that was not tested at all, or not to the end."""
    return Report(failed=1, remarks=(f"FAILED {cause}",))


def total(reports: Iterable[Report]) -> Report:
    """Return the sum of reports."""
    whole = list(reports)
    return Report(
        sum(report.passed for report in whole),
        sum(report.failed for report in whole),
        sum(report.skipped for report in whole),
        tuple(remark for report in whole for remark in report.remarks),
    )
