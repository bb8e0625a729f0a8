"""What a guest's test run came to, from pytest's JUnit file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
    return _report(_cases(text))


def _cases(text: str) -> dict[str, ElementTree.Element]:
    try:
        cases = ElementTree.fromstring(text).iter("testcase")
    except ElementTree.ParseError as error:
        raise ValueError(f"not a JUnit file: {error}") from error
    return {f"{case.get('classname')}::{case.get('name')}": case for case in cases}


def _report(cases: Mapping[str, ElementTree.Element]) -> Report:
    passed = failed = skipped = 0
    remarks: list[str] = []
    for name, case in cases.items():
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

    A test that was run again counts by what it came to then; how it failed before is a remark. A
    status that the tests themselves do not explain (a time-out, no test found, a crash of the
    test run) counts as one more failure.
    """
    first = _read(results / "junit.xml")
    once, report = _report(first), _report(first | _read(results / "junit-again.xml"))
    before = (f"AT FIRST {remark}" for remark in once.remarks if remark not in report.remarks)
    report = replace(report, remarks=(*report.remarks, *before))
    explained = status == 0 or (status == 1 and report.failed > 0)
    if explained and report.passed + report.failed + report.skipped > 0:
        return report
    cause = "ran past its time" if status == 124 else f"ended with status {status}"
    return total([report, failure(f"the test run {cause}, see {results / 'output.txt'}")])


def _read(junit: Path) -> dict[str, ElementTree.Element]:
    try:
        return _cases(junit.read_text())
    except (OSError, ValueError):
        return {}


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
