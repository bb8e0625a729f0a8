"""What a loaded program can return, read from the instructions that the kernel runs."""

import struct
from collections.abc import Iterator
from ctypes import addressof, byref, c_uint8, c_uint32, sizeof
from typing import Final, NamedTuple

from bpf.libbpf import Libbpf, _ProgInfo

ANYTHING: Final = "anything"
Value = int | str

# include/uapi/linux/bpf.h and bpf_common.h
_CLASS_LDX: Final = 0x01
_CLASS_JMP: Final = 0x05
_CLASS_JMP32: Final = 0x06
_CLASSES_THAT_WRITE: Final = (0x00, _CLASS_LDX, 0x04, 0x07)
_LD_IMM64: Final = 0x18
_JA: Final = 0x05
_JA_LONG: Final = 0x06
_CALL: Final = 0x85
_EXIT: Final = 0x95
_SET_TO_CONSTANT: Final = (0xB4, 0xB7)
_CLASS_STX: Final = 0x03
_ATOMIC: Final = (0xC3, 0xDB)


class Instruction(NamedTuple):
    """One instruction of the BPF machine."""

    code: int
    registers: int
    offset: int
    constant: int

    @property
    def target_register(self) -> int:
        return self.registers & 15


def main_function(lib: Libbpf, program_fd: int) -> list[Instruction]:
    """A loaded program's instructions as verified, without the functions it calls."""
    info = _read_info(lib, program_fd, _ProgInfo())
    code = (c_uint8 * info.xlated_prog_len)()
    functions = (c_uint8 * (info.nr_func_info * info.func_info_rec_size))()
    again = _ProgInfo(
        xlated_prog_len=info.xlated_prog_len,
        xlated_prog_insns=addressof(code),
        nr_func_info=info.nr_func_info,
        func_info_rec_size=info.func_info_rec_size,
        func_info=addressof(functions),
    )
    _read_info(lib, program_fd, again)
    starts = [
        struct.unpack_from("=I", functions, number * info.func_info_rec_size)[0]
        for number in range(info.nr_func_info)
    ]
    whole = [Instruction(*fields) for fields in struct.iter_unpack("=BBhi", bytes(code))]
    return whole[: min((start for start in starts if start), default=len(whole))]


def returned(program: list[Instruction]) -> set[Value]:
    """Every value that register 0 can have where the program ends."""
    found: set[Value] = set()
    at_entry: dict[int, set[Value]] = {0: {ANYTHING}}
    todo = [0]
    while todo:
        at = todo.pop()
        before = at_entry[at]
        instruction = program[at]
        if instruction.code == _EXIT:
            found |= before
            continue
        after = _after(instruction, before)
        for following in _following(instruction, at):
            known = at_entry.setdefault(following, set())
            if not after <= known:
                known |= after
                todo.append(following)
    return found


def _after(instruction: Instruction, before: set[Value]) -> set[Value]:
    if instruction.code == _CALL:
        return {ANYTHING}
    writes = instruction.code & 7 in _CLASSES_THAT_WRITE and instruction.target_register == 0
    # an atomic operation may put what was there before into a register, register 0 among them
    if instruction.code in _ATOMIC:
        return {ANYTHING}
    if not writes:
        return before
    return {instruction.constant} if instruction.code in _SET_TO_CONSTANT else {ANYTHING}


def _following(instruction: Instruction, at: int) -> Iterator[int]:
    code = instruction.code
    if code == _JA:
        yield at + 1 + instruction.offset
        return
    if code == _JA_LONG:
        yield at + 1 + instruction.constant
        return
    yield at + (2 if code == _LD_IMM64 else 1)
    if code & 7 in {_CLASS_JMP, _CLASS_JMP32} and code != _CALL:
        yield at + 1 + instruction.offset


def _read_info(lib: Libbpf, fd: int, info: _ProgInfo) -> _ProgInfo:
    lib.check(
        lib.bpf_obj_get_info_by_fd(fd, byref(info), byref(c_uint32(sizeof(info)))),
        f"read program info of fd {fd}",
    )
    return info
