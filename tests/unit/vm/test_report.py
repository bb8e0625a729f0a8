from pathlib import Path

import pytest

from tests.vm.report import Report, failure, from_junit, of_payload, total

JUNIT = """<?xml version="1.0"?><testsuites><testsuite tests="4">
<testcase classname="guest.test_a" name="test_good"/>
<testcase classname="guest.test_a" name="test_bad"><failure message="assert 1 == 2&#10;more"/>
</testcase>
<testcase classname="guest.test_b" name="test_broken"><error message="fixture gone"/></testcase>
<testcase classname="guest.test_b" name="test_left"><skipped message="no netem here"/></testcase>
</testsuite></testsuites>"""
GOOD = '<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>'


def test_each_verdict_is_counted_with_its_reason() -> None:
    assert from_junit(JUNIT) == Report(
        passed=1,
        failed=2,
        skipped=1,
        remarks=(
            "FAILED guest.test_a::test_bad: assert 1 == 2",
            "FAILED guest.test_b::test_broken: fixture gone",
            "SKIPPED guest.test_b::test_left: no netem here",
        ),
    )


@pytest.mark.parametrize("text", ["", "not xml", "<testsuites>"])
def test_what_is_no_junit_file_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a JUnit file"):
        from_junit(text)


def test_a_test_that_fails_and_then_errs_is_counted_once() -> None:
    twice = '<t><testcase classname="a" name="b"><failure/><error/></testcase></t>'
    assert from_junit(twice).failed == 1


@pytest.mark.parametrize(
    ("status", "junit", "passed", "failed"),
    [(0, GOOD, 1, 0), (1, JUNIT, 1, 2), (1, GOOD, 1, 1), (124, GOOD, 1, 1), (0, None, 0, 1)],
    ids=["good", "failures", "unexplained", "timeout", "no result"],
)
def test_a_status_that_no_test_explains_is_a_failure(
    tmp_path: Path, status: int, junit: str | None, passed: int, failed: int
) -> None:
    if junit is not None:
        (tmp_path / "junit.xml").write_text(junit)
    report = of_payload(status, tmp_path)
    assert (report.passed, report.failed) == (passed, failed)


def test_what_is_run_again_counts_as_it_came_to_then_and_what_it_was_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "junit.xml").write_text(JUNIT)
    again = '<t><testcase classname="guest.test_a" name="test_bad"/></t>'
    (tmp_path / "junit-again.xml").write_text(again)
    report = of_payload(1, tmp_path)
    assert report.counts == "2 passed, 1 failed, 1 skipped"
    assert "AT FIRST FAILED guest.test_a::test_bad: assert 1 == 2" in report.remarks
    assert "FAILED guest.test_b::test_broken: fixture gone" in report.remarks


def test_a_time_out_is_told_as_such(tmp_path: Path) -> None:
    assert "ran past its time" in of_payload(124, tmp_path).remarks[-1]


def test_a_total_is_the_sum() -> None:
    whole = total([from_junit(JUNIT), failure("kernel 6.1"), from_junit(GOOD)])
    assert whole.counts == "2 passed, 3 failed, 1 skipped"
    assert "FAILED kernel 6.1" in whole.remarks
