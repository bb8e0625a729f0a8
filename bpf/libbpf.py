"""A small, typed binding to libbpf, through ctypes.

Only what the loader, the readers and the probe need. libbpf comes with iproute2 on every current
distribution; 1.1 (Debian 12) is the oldest this was run with. libbpf's own words about a failure
(the verifier's among them) are kept and become the cause in `LibbpfError`.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterable, Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

BPF_MAP_TYPE_HASH: Final = 1
BPF_MAP_TYPE_ARRAY: Final = 2
BPF_MAP_TYPE_PERCPU_ARRAY: Final = 6
BPF_MAP_TYPE_LRU_HASH: Final = 9
BPF_MAP_TYPE_RINGBUF: Final = 27
BPF_F_NO_PREALLOC: Final = 1
BPF_F_MMAPABLE: Final = 1 << 10
BPF_CGROUP_INET_INGRESS: Final = 0
BPF_CGROUP_INET_EGRESS: Final = 1
BPF_ANY: Final = 0

_BTF_KIND_PTR: Final = 2
_BTF_KIND_STRUCT: Final = 4
_BTF_KIND_TYPEDEF: Final = 8
_BTF_KIND_FUNC_PROTO: Final = 13
_BTF_KIND_DATASEC: Final = 15
_WORDS_KEPT: Final = 40
_WORD_BYTES: Final = 1 << 20
"""A verifier's log comes in one piece, with what matters at its end."""

_BATCH: Final = 256
"""Entries of a map that one call reads; more than a bucket of a hash table ever holds."""

_LIBBPF_DEBUG: Final = 2
_STATS_RUN_TIME: Final = 0

_PRINT = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)
_SAMPLE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class LibbpfError(OSError):
    """libbpf or the kernel refused: what was tried, errno, and libbpf's last words."""

    def __str__(self) -> str:
        """What was tried and why it failed, without the number that `errno` has."""
        return str(self.strerror)


class _BtfType(ctypes.Structure):
    _fields_ = (("name_off", c_uint32), ("info", c_uint32), ("size_or_type", c_uint32))


class _BtfVarSecinfo(ctypes.Structure):
    _fields_ = (("type", c_uint32), ("offset", c_uint32), ("size", c_uint32))


class _MapInfo(ctypes.Structure):
    # the first fields of struct bpf_map_info; the kernel fills as much as it is given
    _fields_ = (
        ("type", c_uint32),
        ("id", c_uint32),
        ("key_size", c_uint32),
        ("value_size", c_uint32),
        ("max_entries", c_uint32),
        ("map_flags", c_uint32),
        ("name", ctypes.c_char * 16),
    )


class _ProgInfo(ctypes.Structure):
    # struct bpf_prog_info as far as the run counters
    _fields_ = (
        ("type", c_uint32),
        ("id", c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("jited_prog_len", c_uint32),
        ("xlated_prog_len", c_uint32),
        ("jited_prog_insns", c_uint64),
        ("xlated_prog_insns", c_uint64),
        ("load_time", c_uint64),
        ("created_by_uid", c_uint32),
        ("nr_map_ids", c_uint32),
        ("map_ids", c_uint64),
        ("name", ctypes.c_char * 16),
        ("ifindex", c_uint32),
        ("gpl_compatible", c_uint32),
        ("netns_dev", c_uint64),
        ("netns_ino", c_uint64),
        ("nr_jited_ksyms", c_uint32),
        ("nr_jited_func_lens", c_uint32),
        ("jited_ksyms", c_uint64),
        ("jited_func_lens", c_uint64),
        ("btf_id", c_uint32),
        ("func_info_rec_size", c_uint32),
        ("func_info", c_uint64),
        ("nr_func_info", c_uint32),
        ("nr_line_info", c_uint32),
        ("line_info", c_uint64),
        ("jited_line_info", c_uint64),
        ("nr_jited_line_info", c_uint32),
        ("line_info_rec_size", c_uint32),
        ("jited_line_info_rec_size", c_uint32),
        ("nr_prog_tags", c_uint32),
        ("prog_tags", c_uint64),
        ("run_time_ns", c_uint64),
        ("run_cnt", c_uint64),
        ("recursion_misses", c_uint64),
    )


_SIGNATURES: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "libbpf_set_print": (c_void_p, (c_void_p,)),
    "libbpf_num_possible_cpus": (c_int, ()),
    "libbpf_probe_bpf_map_type": (c_int, (c_int, c_void_p)),
    "libbpf_probe_bpf_helper": (c_int, (c_int, c_int, c_void_p)),
    "bpf_object__open_file": (c_void_p, (c_char_p, c_void_p)),
    "bpf_object__load": (c_int, (c_void_p,)),
    "bpf_object__close": (None, (c_void_p,)),
    "bpf_object__btf": (c_void_p, (c_void_p,)),
    "bpf_object__next_map": (c_void_p, (c_void_p, c_void_p)),
    "bpf_object__next_program": (c_void_p, (c_void_p, c_void_p)),
    "bpf_map__name": (c_char_p, (c_void_p,)),
    "bpf_map__fd": (c_int, (c_void_p,)),
    "bpf_map__reuse_fd": (c_int, (c_void_p, c_int)),
    "bpf_map__set_max_entries": (c_int, (c_void_p, c_uint32)),
    "bpf_map__max_entries": (c_uint32, (c_void_p,)),
    "bpf_map__key_size": (c_uint32, (c_void_p,)),
    "bpf_map__value_size": (c_uint32, (c_void_p,)),
    "bpf_map__type": (c_int, (c_void_p,)),
    "bpf_map__set_autocreate": (c_int, (c_void_p, ctypes.c_bool)),
    "bpf_map__is_internal": (ctypes.c_bool, (c_void_p,)),
    "bpf_map__initial_value": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "bpf_program__name": (c_char_p, (c_void_p,)),
    "bpf_program__fd": (c_int, (c_void_p,)),
    "bpf_program__set_autoload": (c_int, (c_void_p, ctypes.c_bool)),
    "bpf_program__autoload": (ctypes.c_bool, (c_void_p,)),
    "bpf_raw_tracepoint_open": (c_int, (c_char_p, c_int)),
    "bpf_link_create": (c_int, (c_int, c_int, c_int, c_void_p)),
    "bpf_map_create": (c_int, (c_int, c_char_p, c_uint32, c_uint32, c_uint32, c_void_p)),
    "bpf_obj_pin": (c_int, (c_int, c_char_p)),
    "bpf_obj_get": (c_int, (c_char_p,)),
    "bpf_obj_get_info_by_fd": (c_int, (c_int, c_void_p, POINTER(c_uint32))),
    "bpf_enable_stats": (c_int, (c_int,)),
    "bpf_map_lookup_elem": (c_int, (c_int, c_char_p, c_void_p)),
    "bpf_map_update_elem": (c_int, (c_int, c_char_p, c_char_p, c_uint64)),
    "bpf_map_delete_elem": (c_int, (c_int, c_char_p)),
    "bpf_map_get_next_key": (c_int, (c_int, c_char_p, c_void_p)),
    "bpf_map_lookup_batch": (
        c_int,
        (c_int, c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_uint32), c_void_p),
    ),
    "btf__load_vmlinux_btf": (c_void_p, ()),
    "btf__free": (None, (c_void_p,)),
    "btf__find_by_name_kind": (c_int, (c_void_p, c_char_p, c_uint32)),
    "btf__type_by_id": (POINTER(_BtfType), (c_void_p, c_uint32)),
    "btf__name_by_offset": (c_char_p, (c_void_p, c_uint32)),
    "ring_buffer__new": (c_void_p, (c_int, c_void_p, c_void_p, c_void_p)),
    "ring_buffer__free": (None, (c_void_p,)),
    "ring_buffer__consume": (c_int, (c_void_p,)),
    "ring_buffer__epoll_fd": (c_int, (c_void_p,)),
}


@cache
def _words_and_printer() -> tuple[list[str], Any]:
    """What libbpf said last, and the function that notes it.

    libbpf has one printer a process, and calls it as long as the process lives: so there is one
    here too, and it outlives every `Libbpf`.
    """
    libc = ctypes.CDLL(None)
    words: list[str] = []

    def keep(level: int, template: bytes, arguments: int) -> int:
        if level < _LIBBPF_DEBUG:
            text = ctypes.create_string_buffer(_WORD_BYTES)
            libc.vsnprintf(text, c_size_t(len(text)), template, c_void_p(arguments))
            words.extend(text.value.decode(errors="replace").splitlines())
            del words[:-_WORDS_KEPT]
        return 0

    return words, _PRINT(keep)


class Libbpf:
    """The library, opened once by whoever needs it and handed on."""

    def __init__(self, name: str = "libbpf.so.1") -> None:
        """Open libbpf; `LibbpfError` says what to install when it is not there."""
        try:
            self._lib = ctypes.CDLL(name, use_errno=True)
        except OSError as error:
            raise LibbpfError(
                errno.ENOENT, f"could not load {name} (Debian: libbpf1): {error}"
            ) from None
        for function, (result, arguments) in _SIGNATURES.items():
            pointer = getattr(self._lib, function)
            pointer.restype, pointer.argtypes = result, arguments
        self._words, printer = _words_and_printer()
        self._lib.libbpf_set_print(ctypes.cast(printer, c_void_p))

    def check(self, result: int | None, tried: str) -> int:
        """Return `result`, or raise `LibbpfError` for a negative number or a null pointer."""
        if result is not None and result >= 0:
            return result
        # libbpf 1.x returns -errno; from the system call wrappers also -1 with errno set
        code = -result if result is not None and result < -1 else ctypes.get_errno()
        words = "\n  ".join(self._words)
        self._words.clear()
        raise LibbpfError(
            code, f"could not {tried}: {os.strerror(code)}" + (f"\n  {words}" if words else "")
        )

    def __getattr__(self, name: str) -> Any:
        """A libbpf function of `_SIGNATURES`, by its own name."""
        if name not in _SIGNATURES:
            raise AttributeError(name)
        return getattr(self._lib, name)


class Object:
    """One compiled object, opened; `load` puts its programs and maps into the kernel."""

    def __init__(self, lib: Libbpf, path: Path) -> None:
        """Open the object file at `path`."""
        self._lib = lib
        self.path = path
        if not path.is_file():
            raise LibbpfError(
                errno.ENOENT, f"could not open BPF object {path}: not built (`make objects`)"
            )
        self._object = lib.check(
            lib.bpf_object__open_file(str(path).encode(), None), f"open BPF object {path}"
        )

    def _walk(self, step: str, name: str) -> Iterator[tuple[str, int]]:
        item = None
        while item := getattr(self._lib, step)(self._object, item):
            yield getattr(self._lib, name)(item).decode(), item

    def maps(self) -> dict[str, int]:
        """The maps by name, without libbpf's own for constants; each a handle."""
        return {
            name: handle
            for name, handle in self._walk("bpf_object__next_map", "bpf_map__name")
            if not self._lib.bpf_map__is_internal(handle)
        }

    def programs(self) -> dict[str, int]:
        """The programs by name; each a handle."""
        return dict(self._walk("bpf_object__next_program", "bpf_program__name"))

    def constants(self) -> dict[str, tuple[int, int]]:
        """The `const volatile` variables by name: offset in .rodata and size."""
        btf = self._lib.bpf_object__btf(self._object)
        section = self._lib.btf__find_by_name_kind(btf, b".rodata", _BTF_KIND_DATASEC)
        if section < 0:
            return {}
        head = self._lib.btf__type_by_id(btf, section)
        count = head.contents.info & 0xFFFF
        first = ctypes.addressof(head.contents) + ctypes.sizeof(_BtfType)
        found = {}
        for row in (_BtfVarSecinfo * count).from_address(first):
            variable = self._lib.btf__type_by_id(btf, row.type).contents
            name = self._lib.btf__name_by_offset(btf, variable.name_off).decode()
            found[name] = (row.offset, row.size)
        return found

    def set_constant(self, name: str, value: int) -> None:
        """Set a constant before `load`; the verifier then drops what it makes unreachable."""
        offset, size = self.constants()[name]
        for _, handle in self._walk("bpf_object__next_map", "bpf_map__name"):
            if not self._lib.bpf_map__is_internal(handle):
                continue
            length = c_size_t()
            start = self._lib.bpf_map__initial_value(handle, byref(length))
            ctypes.memmove(start + offset, value.to_bytes(size, "little"), size)
            return
        raise KeyError(name)

    def struct_size(self, name: str) -> int | None:
        """The size of a struct in the object's BTF, None if it has no such struct."""
        btf = self._lib.bpf_object__btf(self._object)
        found = self._lib.btf__find_by_name_kind(btf, name.encode(), _BTF_KIND_STRUCT)
        if found < 0:
            return None
        return int(self._lib.btf__type_by_id(btf, found).contents.size_or_type)

    def load(self) -> None:
        """Load into the kernel; the verifier's words are in the error."""
        self._lib.check(self._lib.bpf_object__load(self._object), f"load {self.path.name}")

    def close(self) -> None:
        """Close what libbpf holds; file descriptors that were duplicated stay."""
        self._lib.bpf_object__close(self._object)


def map_info(lib: Libbpf, fd: int) -> tuple[int, int, int, int]:
    """A map's type, key size, value size and number of entries."""
    info = _MapInfo()
    lib.check(
        lib.bpf_obj_get_info_by_fd(fd, byref(info), byref(c_uint32(ctypes.sizeof(info)))),
        f"read map info of fd {fd}",
    )
    return info.type, info.key_size, info.value_size, info.max_entries


class _MapOptions(ctypes.Structure):
    # struct bpf_map_create_opts of libbpf 1.1 (src/bpf.h) as far as the flags; sz says how far
    _fields_ = (
        ("sz", c_size_t),
        ("btf_fd", c_uint32),
        ("btf_key_type_id", c_uint32),
        ("btf_value_type_id", c_uint32),
        ("btf_vmlinux_value_type_id", c_uint32),
        ("inner_map_fd", c_uint32),
        ("map_flags", c_uint32),
    )


def make_map(lib: Libbpf, name: str, kind: int, sizes: tuple[int, int, int], flags: int) -> int:
    """A new map of `kind`; `sizes` are of a key and a value, in bytes, and how many entries."""
    options = _MapOptions(sz=ctypes.sizeof(_MapOptions), map_flags=flags)
    return lib.check(
        lib.bpf_map_create(kind, name[:15].encode(), *sizes, byref(options)),
        f"create map '{name}'",
    )


@dataclass(frozen=True, slots=True)
class Runs:
    """How often a program ran and for how long, while the kernel counted; how often it was missed.

    The kernel leaves a tracing program out that would interrupt itself on a CPU, and always counts
    that (`recursion_misses`, from 5.12).
    """

    count: int = 0
    ns: int = 0
    missed: int = 0


def program_runs(lib: Libbpf, fd: int) -> Runs:
    """What the kernel counted of a program since it was loaded."""
    info = _ProgInfo()
    lib.check(
        lib.bpf_obj_get_info_by_fd(fd, byref(info), byref(c_uint32(ctypes.sizeof(info)))),
        f"read program info of fd {fd}",
    )
    return Runs(info.run_cnt, info.run_time_ns, info.recursion_misses)


def count_runs(lib: Libbpf) -> int:
    """Have the kernel count every program's runs as long as this descriptor is open (from 5.8)."""
    return lib.check(lib.bpf_enable_stats(_STATS_RUN_TIME), "count the programs' runs")


def tracepoint_arguments(lib: Libbpf, names: Iterable[str]) -> dict[str, int]:
    """How many arguments each of these kernel tracepoints has that the kernel's BTF knows.

    All at once: to read that BTF takes ten milliseconds.
    """
    btf = lib.btf__load_vmlinux_btf()
    if not btf:
        return {}
    try:
        found = {name: _arguments(lib, btf, name) for name in names}
    finally:
        lib.btf__free(btf)
    return {name: count for name, count in found.items() if count is not None}


def _arguments(lib: Libbpf, btf: int, tracepoint: str) -> int | None:
    found = lib.btf__find_by_name_kind(btf, f"btf_trace_{tracepoint}".encode(), _BTF_KIND_TYPEDEF)
    if found < 0:
        return None
    pointer = lib.btf__type_by_id(btf, found).contents.size_or_type
    proto = lib.btf__type_by_id(btf, pointer).contents.size_or_type
    # the first parameter of a tracepoint's callback is its private data
    return int(lib.btf__type_by_id(btf, proto).contents.info & 0xFFFF) - 1


class Map:
    """A map by file descriptor: look-ups, updates and keys as bytes."""

    def __init__(self, lib: Libbpf, fd: int, value_bytes: int | None = None) -> None:
        """`value_bytes` is what one look-up returns, if it is not the map's own value size."""
        self._lib = lib
        self.fd = fd
        _, self.key_size, value_size, self.max_entries = map_info(lib, fd)
        self._value_size = value_bytes or value_size
        self._value = ctypes.create_string_buffer(self._value_size)

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, or None."""
        if self._lib.bpf_map_lookup_elem(self.fd, key, self._value) < 0:
            return None
        return self._value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Set `key` to `value`."""
        self._lib.check(
            self._lib.bpf_map_update_elem(self.fd, key, value, BPF_ANY), f"update map fd {self.fd}"
        )

    def delete(self, key: bytes) -> None:
        """Remove `key`; nothing happens if it is not there."""
        self._lib.bpf_map_delete_elem(self.fd, key)

    def keys(self) -> list[bytes]:
        """All keys, as far as the map holds still meanwhile."""
        found: list[bytes] = []
        key: bytes | None = None
        following = ctypes.create_string_buffer(self.key_size)
        while len(found) <= self.max_entries:
            if self._lib.bpf_map_get_next_key(self.fd, key, following) < 0:
                break
            key = following.raw
            found.append(key)
        return found

    def items(self) -> list[tuple[bytes, bytes]]:
        """All entries of a hash map, a few hundred with each call; not for maps of each CPU.

        As far as the map holds still meanwhile; `LibbpfError` if the kernel can't (before 5.6).
        """
        count = min(_BATCH, self.max_entries)
        keys = ctypes.create_string_buffer(count * self.key_size)
        values = ctypes.create_string_buffer(count * self._value_size)
        # where to go on: the kernel's own, of the size of a key or four bytes
        at = ctypes.create_string_buffer(max(4, self.key_size))
        found: list[tuple[bytes, bytes]] = []
        follows = None
        while True:
            got = c_uint32(count)
            result = self._lib.bpf_map_lookup_batch(
                self.fd, follows, at, keys, values, byref(got), None
            )
            at_end = result == -errno.ENOENT
            if not at_end:
                self._lib.check(result, f"read all of map fd {self.fd}")
            found += zip(
                _slices(keys.raw, self.key_size, got.value),
                _slices(values.raw, self._value_size, got.value),
                strict=True,
            )
            if at_end:
                return found
            follows = at


def _slices(data: bytes, size: int, count: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, count * size, size)]


class Ring:
    """The user's end of a ring buffer. One consumer a ring."""

    def __init__(
        self, lib: Libbpf, fd: int, take: Callable[[bytes], None], most: int | None = None
    ) -> None:
        """`take` gets each record as bytes, in order.

        `most` of them at once is for who has more to do than to follow a ring that is filled as
        fast as it is emptied.
        """
        self._lib = lib
        self._taken = 0

        def sample(_context: int, data: int, size: int) -> int:
            take(ctypes.string_at(data, size))
            self._taken += 1
            return -errno.ECANCELED if self._taken == most else 0

        self._sample = _SAMPLE(sample)
        self._ring = lib.check(
            lib.ring_buffer__new(fd, ctypes.cast(self._sample, c_void_p), None, None),
            f"open ring buffer fd {fd}",
        )

    def fileno(self) -> int:
        """A descriptor that is readable when there are records."""
        return int(self._lib.ring_buffer__epoll_fd(self._ring))

    def consume(self) -> int:
        """Take all records there are, or as many as were to be at most; returns how many."""
        self._taken = 0
        result = self._lib.ring_buffer__consume(self._ring)
        if result != -errno.ECANCELED:
            self._lib.check(result, "read ring buffer")
        return self._taken

    def close(self) -> None:
        """Unmap the ring."""
        self._lib.ring_buffer__free(self._ring)
