"""The tier without BTF as far as it needs neither bcc nor a kernel: texts, shapes, the choice."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bpf.bcc_loader import bcc_problem, map_shapes
from bpf.bcc_tier import (
    PROGRAMS,
    HeaderFacts,
    header_facts,
    kernel_headers,
    settings_of,
    source_text,
)
from bpf.features import Features
from bpf.libbpf import Libbpf, Object
from bpf.loader import OBJECT_DIR
from bpf.tiers import BCC_LIMITS, choose_tier, tier_problem, tier_words
from tests.unit.bpf.test_features import ALL

NEW_SWITCH = """TRACE_EVENT(sched_switch,

  TP_PROTO(bool preempt,
    struct task_struct *prev,
    struct task_struct *next,
    unsigned int prev_state),

  TP_ARGS(preempt, prev, next, prev_state),
"""
OLD_SWITCH = NEW_SWITCH.replace(",\n    unsigned int prev_state)", ")")
OLD_RETRANSMIT = """DEFINE_EVENT(tcp_event_sk_skb, tcp_retransmit_skb,

  TP_PROTO(const struct sock *sk, const struct sk_buff *skb),

  TP_ARGS(sk, skb)
"""
NEW_RETRANSMIT = """TRACE_EVENT(tcp_retransmit_skb,

  TP_PROTO(const struct sock *sk, const struct sk_buff *skb, int err),

  TP_ARGS(sk, skb, err),
"""
FACTS = HeaderFacts("__state", True, False)


@pytest.mark.parametrize(
    ("sched", "switch", "retransmit", "expected"),
    [
        (
            "  volatile long state;",
            OLD_SWITCH,
            OLD_RETRANSMIT,
            HeaderFacts("state", False, False),
        ),
        (
            "  unsigned __state;",
            NEW_SWITCH,
            OLD_RETRANSMIT,
            HeaderFacts("__state", True, False),
        ),
        (
            "  unsigned __state;",
            NEW_SWITCH,
            NEW_RETRANSMIT,
            HeaderFacts("__state", True, True),
        ),
        ("", "", "", HeaderFacts("state", False, False)),
    ],
)
def test_what_differs_between_kernels_is_read_in_their_headers(
    sched: str, switch: str, retransmit: str, expected: HeaderFacts
) -> None:
    assert header_facts(sched, switch, retransmit) == expected


def test_the_source_has_the_kernel_s_headers_first_and_every_program_once() -> None:
    text = source_text(settings_of(Path("/pins"), 9, 4, True, FACTS))
    first, _, rest = text.partition("#define PINS")
    assert set(re.findall(r"#include (.)", first)) == {"<"}
    assert "#include" not in rest
    for define in ('PINS "/pins/maps/"', "MAX_TARGETS 9", "POSSIBLE_CPUS 4", "CPU_ON_V1 1"):
        assert define in text
    found = re.findall(r"^int (\w+)\(struct bpf_raw_tracepoint_args \*ctx\)$", text, re.MULTILINE)
    assert sorted(found) == sorted(PROGRAMS)


def test_its_maps_are_those_of_the_other_tier_by_type_and_sizes() -> None:
    lib, shapes = Libbpf(), map_shapes(9, 4)
    seen = set()
    for name in ("sched", "stream"):
        opened = Object(lib, OBJECT_DIR / f"{name}.bpf.o")
        for map_name, handle in opened.maps().items():
            if map_name not in shapes:
                continue
            seen.add(map_name)
            kind, (key, value, _), _ = shapes[map_name]
            theirs = (
                lib.bpf_map__type(handle),
                lib.bpf_map__key_size(handle),
                lib.bpf_map__value_size(handle),
            )
            assert theirs == (kind, key, value), map_name
        opened.close()
    assert seen == shapes.keys()


def test_every_pinned_table_of_the_sources_is_one_of_its_maps() -> None:
    text = source_text(settings_of(Path("/p"), 2, 1, False, FACTS))
    named = set(re.findall(r'PINS "(\w+)"', text))
    assert named <= map_shapes(2, 1).keys()
    assert {"targets", "counters", "wait_histograms", "ports"} <= named


def without(**fields: bool) -> Features:
    return replace(ALL, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("features", "wanted", "expected"),
    [
        (ALL, "auto", "btf"),
        (ALL, "bcc", "bcc"),
        (ALL, "btf", "btf"),
        (without(btf=False), "auto", "bcc"),
        (without(btf=False), "btf", "none"),
        (without(btf=False, ring_buffer=False), "auto", "none"),
        (without(libbpf=False), "bcc", "none"),
    ],
)
def test_the_tier_is_the_first_that_can_be_of_those_that_are_wanted(
    features: Features, wanted: str, expected: str
) -> None:
    assert choose_tier(features, wanted) == expected  # type: ignore[arg-type]


def test_without_a_tier_the_reason_is_told() -> None:
    assert "ring buffer" in tier_problem(without(btf=False, ring_buffer=False))
    assert "the policy wants the tier" in tier_problem(without(btf=False))


def test_what_a_tier_can_not_do_is_told() -> None:
    assert tier_words("btf") == ("btf: programs fitted to this kernel by its BTF", "")
    assert tier_words("bcc")[1] == BCC_LIMITS
    for word in ("no streams", "no TTFT", "run-queue delay", "retransmits", "send queues"):
        assert word in BCC_LIMITS


def test_what_it_needs_and_is_not_there_is_named_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "(Debian: linux-headers-9.9.9)" in bcc_problem("9.9.9")
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    (tmp_path / "include").mkdir()
    assert kernel_headers("9.9.9") == tmp_path
    monkeypatch.setattr("bpf.bcc_loader.PYTHON_PACKAGES", tmp_path / "none")
    assert "(Debian: python3-bpfcc)" in bcc_problem("9.9.9")
