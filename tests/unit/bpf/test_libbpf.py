"""The binding against the real library and our real objects; nothing here needs privileges."""

import errno
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.libbpf import Libbpf, LibbpfError, Object
from bpf.loader import OBJECT_DIR


@pytest.fixture(scope="module")
def lib() -> Libbpf:
    return Libbpf()


@pytest.fixture
def stream(lib: Libbpf) -> Iterator[Object]:
    opened = Object(lib, OBJECT_DIR / "stream.bpf.o")
    yield opened
    opened.close()


def test_a_missing_library_says_what_to_install() -> None:
    with pytest.raises(LibbpfError, match=r"^could not load libbpf\.so\.none \(Debian: libbpf1\)"):
        Libbpf("libbpf.so.none")


def test_only_declared_functions_can_be_called(lib: Libbpf) -> None:
    with pytest.raises(AttributeError, match="bpf_object__unknown"):
        lib.bpf_object__unknown()


def test_a_missing_object_names_its_file_and_how_to_build_it(lib: Libbpf, tmp_path: Path) -> None:
    path = tmp_path / "sched.bpf.o"
    with pytest.raises(LibbpfError) as raised:
        Object(lib, path)
    assert raised.value.errno == errno.ENOENT
    assert str(raised.value).startswith(f"could not open BPF object {path}: not built")


def test_a_file_that_is_no_object_gives_libbpfs_own_words(lib: Libbpf, tmp_path: Path) -> None:
    path = tmp_path / "sched.bpf.o"
    path.write_bytes(b"not an ELF file")
    with pytest.raises(LibbpfError) as raised:
        Object(lib, path)
    first, *words = str(raised.value).splitlines()
    assert first.startswith(f"could not open BPF object {path}")
    assert any("libbpf" in line for line in words)


def test_words_of_one_failure_are_not_told_again_with_the_next(lib: Libbpf, tmp_path: Path) -> None:
    path = tmp_path / "sched.bpf.o"
    path.write_bytes(b"not an ELF file")
    with pytest.raises(LibbpfError, match="libbpf"):
        Object(lib, path)
    with pytest.raises(LibbpfError) as raised:
        lib.check(-errno.EACCES, "do the next thing")
    assert str(raised.value) == "could not do the next thing: Permission denied"


def test_words_are_told_though_another_user_of_libbpf_came_and_went(
    lib: Libbpf, tmp_path: Path
) -> None:
    Libbpf()
    gc.collect()
    path = tmp_path / "sched.bpf.o"
    path.write_bytes(b"not an ELF file")
    with pytest.raises(LibbpfError) as raised:
        Object(lib, path)
    assert "libbpf: " in str(raised.value)


@pytest.mark.parametrize("result", [0, 1, 4096])
def test_a_result_that_is_no_error_is_returned(lib: Libbpf, result: int) -> None:
    assert lib.check(result, "never raised") == result


def test_an_object_knows_its_programs_and_maps(stream: Object) -> None:
    assert stream.programs().keys() == {
        "stream_in",
        "stream_out",
        "socket_state",
        "socket_gone",
    }
    assert {"connections", "stream_cgroups", "ports", "events", "counters"} <= stream.maps().keys()


def test_libbpfs_own_maps_are_not_listed(stream: Object) -> None:
    assert not [name for name in stream.maps() if "rodata" in name]


def test_constants_are_found_with_their_sizes(lib: Libbpf) -> None:
    sched = Object(lib, OBJECT_DIR / "sched.bpf.o")
    sizes = {name: size for name, (_, size) in sched.constants().items()}
    sched.close()
    assert sizes["possible_cpus"] == sizes["max_targets"] == 4
    assert sizes["have_task_storage"] == sizes["cpu_on_v1"] == 1


def test_a_constant_that_does_not_exist_is_refused(stream: Object) -> None:
    with pytest.raises(KeyError, match="no_such_constant"):
        stream.set_constant("no_such_constant", 1)


def test_a_struct_that_does_not_exist_has_no_size(stream: Object) -> None:
    assert stream.struct_size("no_such_struct") is None
