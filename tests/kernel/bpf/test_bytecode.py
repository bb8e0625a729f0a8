"""A program on an engine's cgroup drops packets when it returns 0: show that it never can."""

import pytest

from tests.kernel.bpf.bytecode import ANYTHING, Instruction, main_function, returned
from tests.kernel.bpf.watched import Watched

pytestmark = pytest.mark.kernel

SET_R0_TO_1 = Instruction(0xB7, 0, 0, 1)
SET_R0_TO_0 = Instruction(0xB7, 0, 0, 0)
COPY_R1_TO_R0 = Instruction(0xBF, 0x10, 0, 0)
SKIP_NEXT_IF_R1_IS_0 = Instruction(0x15, 0x01, 1, 0)
CALL = Instruction(0x85, 0, 0, 5)
EXIT = Instruction(0x95, 0, 0, 0)


@pytest.mark.parametrize("name", ["stream_in", "stream_out"])
def test_a_program_on_a_cgroup_can_only_let_a_packet_pass(watched: Watched, name: str) -> None:
    if not watched.programs.follows_streams:
        pytest.skip("this kernel can't follow streams")
    program = main_function(watched.programs.lib, watched.programs.programs[name])
    assert returned(program) == {1}


@pytest.mark.parametrize("name", ["switch_tasks", "retransmit"])
def test_the_same_reading_finds_the_zero_that_other_programs_return(
    watched: Watched, name: str
) -> None:
    program = main_function(watched.programs.lib, watched.programs.programs[name])
    assert returned(program) == {0}


@pytest.mark.parametrize(
    ("program", "values"),
    [
        ([SET_R0_TO_1, EXIT], {1}),
        ([SET_R0_TO_1, SKIP_NEXT_IF_R1_IS_0, SET_R0_TO_0, EXIT], {0, 1}),
        ([SET_R0_TO_1, CALL, EXIT], {ANYTHING}),
        ([SET_R0_TO_1, COPY_R1_TO_R0, EXIT], {ANYTHING}),
        ([SKIP_NEXT_IF_R1_IS_0, SET_R0_TO_1, EXIT], {1, ANYTHING}),
        ([SET_R0_TO_0, SKIP_NEXT_IF_R1_IS_0, EXIT, SET_R0_TO_1, EXIT], {0, 1}),
    ],
)
def test_the_reading_itself_follows_every_path(
    program: list[Instruction], values: set[int | str]
) -> None:
    assert returned(program) == values
