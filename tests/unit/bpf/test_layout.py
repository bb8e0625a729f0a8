"""layout.py against layout.h and against the BTF of the compiled objects."""

import ctypes
from collections.abc import Iterator
from enum import IntEnum
from ipaddress import ip_address
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf import histogram, layout
from bpf.layout import (
    Counters,
    EdgeKind,
    EndReason,
    EventKind,
    Health,
    Stream,
    StreamFlags,
    TargetKind,
    parse_edge,
    parse_event,
    parse_stream,
)
from bpf.libbpf import Libbpf, Object
from bpf.loader import OBJECT_DIR
from tests.unit.bpf.header import defines, enums, field_names, structs

AF_INET, AF_INET6 = 2, 10
STRUCTS = structs()
SIZES = {
    "target": layout.TARGET.size,
    "counters": layout.COUNTERS.size,
    "health": layout.HEALTH.size,
    "histogram": layout.HISTOGRAM.size,
    "culprit_key": layout.CULPRIT_KEY.size,
    "culprit": layout.CULPRIT.size,
    "role_key": layout.ROLE_KEY.size,
    "role": layout.ROLE.size,
    "stream": layout.STREAM.size,
    "event": layout.EVENT.size + layout.STREAM.size,
    "start_event": layout.EVENT.size + layout.STREAM.size + 8 + layout.HEAD_BYTES,
    "edge": layout.EDGE.size,
}


TARGET_FIELDS = [
    "ttft_slo_ns",
    "gap_slo_ns",
    "wait_edge_ns",
    "first_chunk_deadline_ns",
    "kind",
    "name",
]


@pytest.fixture(scope="module")
def objects() -> Iterator[list[Object]]:
    lib = Libbpf()
    opened = [Object(lib, path) for path in sorted(OBJECT_DIR.glob("*.bpf.o"))]
    yield opened
    for each in opened:
        each.close()


@pytest.mark.parametrize("name", SIZES)
def test_a_struct_has_the_size_that_every_object_gives_it(name: str, objects: list[Object]) -> None:
    in_objects = {each.struct_size(name) for each in objects} - {None}
    assert in_objects == {SIZES[name]}


def test_every_struct_of_the_header_is_known() -> None:
    assert STRUCTS.keys() == SIZES.keys()


@pytest.mark.parametrize("name", SIZES)
def test_the_header_as_these_tests_read_it_is_what_the_compiler_read(name: str) -> None:
    assert ctypes.sizeof(STRUCTS[name]) == SIZES[name]


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("HIST_FIRST_BIT", histogram.FIRST_BIT),
        ("HIST_LAST_BIT", histogram.LAST_BIT),
        ("HIST_SLOTS", histogram.SLOTS),
        ("NAME_BYTES", layout.NAME_BYTES),
        ("HEAD_BYTES", layout.HEAD_BYTES),
        ("MAX_ROLES", layout.MAX_ROLES),
    ],
)
def test_a_constant_agrees_with_the_header(name: str, here: int) -> None:
    assert defines()[name] == here


@pytest.mark.parametrize(
    ("name", "prefix", "here"),
    [
        ("target_kind", "TARGET_", TargetKind),
        ("event_kind", "EVENT_", EventKind),
        ("end_reason", "END_", EndReason),
        ("stream_flags", "STREAM_", StreamFlags),
        ("edge_kind", "EDGE_", EdgeKind),
    ],
)
def test_an_enum_agrees_with_the_header(name: str, prefix: str, here: type[IntEnum]) -> None:
    members = {prefix + member: value.value for member, value in here.__members__.items()}
    assert enums()[name] == members


def test_every_enum_of_the_header_is_checked_here() -> None:
    assert enums().keys() == {
        "target_kind",
        "event_kind",
        "end_reason",
        "stream_flags",
        "edge_kind",
    }


@pytest.mark.parametrize(("name", "here"), [("counters", Counters), ("health", Health)])
def test_fields_stand_in_the_headers_order(name: str, here: type[Counters] | type[Health]) -> None:
    ours = list(Counters._fields if here is Counters else Health.__slots__)
    theirs = [field for field in field_names(STRUCTS[name]) if field in ours or field != "pad"]
    assert ours == theirs


@pytest.mark.parametrize(
    ("name", "here", "names"),
    [
        ("target", layout.TARGET, TARGET_FIELDS),
        ("culprit_key", layout.CULPRIT_KEY, ["cgroup", "slot", "pad"]),
        ("culprit", layout.CULPRIT, ["wait_ns", "waits", "worst_ns", "comm"]),
        ("edge", layout.EDGE, ["at_ns", "value_ns", "slot", "kind"]),
    ],
)
def test_what_is_packed_here_is_read_there(name: str, here: Struct, names: list[str]) -> None:
    values = [
        bytes(range(1, 1 + int(part[:-1]))) if part.endswith("s") else number
        for number, part in enumerate(_parts(here), start=1)
    ]
    there = STRUCTS[name].from_buffer_copy(here.pack(*values))
    assert field_names(STRUCTS[name]) == names
    read = [getattr(there, field) for field in names]
    assert [bytes(value) if isinstance(value, ctypes.Array) else value for value in read] == values


def _parts(packed: Struct) -> list[str]:
    """The format's values one by one: "=2Q4s" has Q, Q and 4s."""
    parts, number = [], ""
    for character in packed.format.lstrip("="):
        if character.isdigit():
            number += character
            continue
        parts += [f"{number}s"] if character == "s" else [character] * int(number or 1)
        number = ""
    return parts


u64, u32, u16 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)
streams = st.builds(
    Stream,
    connection=u64,
    request_ns=u64,
    head_ns=u64,
    first_ns=u64,
    last_ns=u64,
    gap_sum_ns=u64,
    gap_max_ns=u64,
    body_bytes=u64,
    read_ns=u64,
    write_ns=u64,
    last_write_ns=u64,
    write_gap_max_ns=u64,
    blocked_ns=u64,
    busy_ms=u32,
    rwnd_limited_ms=u32,
    sndbuf_limited_ms=u32,
    writes_stalled=u32,
    write_again=u32,
    number=u32,
    slot=u32,
    chunks=u32,
    gaps_over=u32,
    retransmits=u32,
    events=u32,
    role_frames=u32,
    status=u16,
    flags=st.sampled_from([StreamFlags(value) for value in range(8)]),
    local_port=u16,
    remote_port=u16,
    remote_address=st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str).filter(lambda text: "::ffff:" not in text),
    ),
)


def as_the_kernel_writes_it(stream: Stream) -> ctypes.Structure:
    c = STRUCTS["stream"]()
    for name, value in stream._asdict().items():
        if name != "remote_address":
            setattr(c, name, value)
    address = ip_address(stream.remote_address)
    c.family = AF_INET if address.version == 4 else AF_INET6
    ctypes.memmove(c.remote_ip, address.packed, len(address.packed))
    return c


@given(streams)
def test_a_stream_is_read_as_the_kernel_wrote_it(stream: Stream) -> None:
    assert parse_stream(bytes(as_the_kernel_writes_it(stream))) == stream


def test_an_ipv4_client_of_an_ipv6_socket_is_shown_as_ipv4() -> None:
    c = STRUCTS["stream"](family=AF_INET6)
    ctypes.memmove(c.remote_ip, ip_address("::ffff:192.0.2.7").packed, 16)
    assert parse_stream(bytes(c)).remote_address == "192.0.2.7"


@given(streams, st.binary(max_size=layout.HEAD_BYTES))
def test_a_start_carries_the_first_bytes_of_the_request(stream: Stream, head: bytes) -> None:
    c = STRUCTS["start_event"](head_len=len(head))
    c.event.at_ns, c.event.kind = 77, EventKind.START
    c.event.stream = as_the_kernel_writes_it(stream)
    ctypes.memmove(c.head, head, len(head))
    event = parse_event(bytes(c))
    assert (event.at_ns, event.kind, event.reason) == (77, EventKind.START, None)
    assert (event.stream, event.head) == (stream, head)


@given(streams, st.sampled_from(EndReason))
def test_an_end_carries_its_reason(stream: Stream, reason: EndReason) -> None:
    c = STRUCTS["event"](at_ns=78, kind=EventKind.END, reason=reason)
    c.stream = as_the_kernel_writes_it(stream)
    event = parse_event(bytes(c))
    assert (event.at_ns, event.kind, event.reason) == (78, EventKind.END, reason)
    assert (event.stream, event.head) == (stream, b"")


@given(streams)
def test_ttft_is_from_the_request_to_the_first_chunk_and_none_before(stream: Stream) -> None:
    expected = stream.first_ns - stream.request_ns if stream.first_ns else None
    assert stream.ttft_ns == expected


@given(u64, u64, u32, st.sampled_from(EdgeKind))
def test_an_edge_is_read_as_the_kernel_wrote_it(
    at_ns: int, value_ns: int, slot: int, kind: EdgeKind
) -> None:
    edge = parse_edge(bytes(STRUCTS["edge"](at_ns, value_ns, slot, kind)))
    assert (edge.at_ns, edge.value_ns, edge.slot, edge.kind) == (at_ns, value_ns, slot, kind)


def test_since_subtracts_every_counter() -> None:
    names = Counters._fields
    earlier = Counters(*range(len(names)))
    later = Counters(*(10 + 3 * number for number in range(len(names))))
    expected = Counters(*(10 + 2 * number for number in range(len(names))))
    assert later.since(earlier) == expected
