"""All entries of a map by few calls."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpf.libbpf import (
    BPF_F_NO_PREALLOC,
    BPF_MAP_TYPE_HASH,
    BPF_MAP_TYPE_LRU_HASH,
    Libbpf,
    LibbpfError,
    Map,
    make_map,
)

pytestmark = pytest.mark.kernel


@contextmanager
def made(lib: Libbpf, kind: int, entries: int) -> Iterator[Map]:
    flags = BPF_F_NO_PREALLOC if kind == BPF_MAP_TYPE_HASH else 0
    fd = make_map(lib, "items", kind, (4, 8, entries), flags)
    try:
        yield Map(lib, fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("kind", [BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LRU_HASH])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1500])
def test_every_entry_is_read_once(lib: Libbpf, kind: int, count: int) -> None:
    with made(lib, kind, 4096) as held:
        put = {number.to_bytes(4, "little"): os.urandom(8) for number in range(count)}
        for key, value in put.items():
            held.put(key, value)
        found = held.items()
        assert len(found) == count
        assert dict(found) == put


def test_a_map_smaller_than_one_call_takes_is_read_whole(lib: Libbpf) -> None:
    with made(lib, BPF_MAP_TYPE_HASH, 2) as held:
        held.put(b"aaaa", b"12345678")
        held.put(b"bbbb", b"87654321")
        assert sorted(held.items()) == [(b"aaaa", b"12345678"), (b"bbbb", b"87654321")]


def test_what_can_not_be_read_says_so(lib: Libbpf) -> None:
    with made(lib, BPF_MAP_TYPE_HASH, 4) as held:
        descriptor, held.fd = held.fd, 9999
        with pytest.raises(LibbpfError, match="could not read all of map fd 9999"):
            held.items()
        held.fd = descriptor
