import pytest

from tests.vm.run import parse


def test_every_kernel_is_tested_unless_told_otherwise() -> None:
    assert parse([]).kernels == ["5.10", "6.1", "6.12", "newest"]


def test_kernels_are_tested_in_the_order_given() -> None:
    assert parse(["--kernels", "newest,5.10"]).kernels == ["newest", "5.10"]


@pytest.mark.parametrize("text", ["4.19", "6.1,", ""])
def test_an_unknown_kernel_is_refused_with_what_there_is(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--kernels", text])
    assert "there are 5.10, 6.1, 6.12, newest" in capsys.readouterr().err


def test_arguments_after_the_dashes_are_pytests() -> None:
    assert parse(["--kernels", "6.1", "--", "-k", "weight"]).pytest == ["-k", "weight"]
