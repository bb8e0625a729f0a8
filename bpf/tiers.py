"""Which programs measure: those by the kernel's BTF, or without it those that bcc compiles."""

import os
from typing import Final, Literal

from bpf.bcc_loader import bcc_problem
from bpf.features import Features

Tier = Literal["btf", "bcc", "none"]
Wanted = Literal["auto", "btf", "bcc"]

BCC_LIMITS: Final = (
    "the bcc tier measures: run-queue delay, retransmits and send queues; no streams, so no TTFT"
    " and no gaps, nobody is named for a wait, and the loop hears of one at its next tick"
)


def choose_tier(features: Features, wanted: Wanted) -> Tier:
    """The tier to load: the one that is wanted if it can be, of either the one by BTF."""
    if features.can_trace and wanted != "bcc":
        return "btf"
    able = features.libbpf and features.ring_buffer and not features.missing_capabilities
    return "bcc" if able and wanted != "btf" else "none"


def tier_problem(features: Features) -> str:
    """Why no tier can be loaded, where privileges and libbpf are there."""
    if not features.ring_buffer:
        return "the kernel has no ring buffer (5.8)"
    return "the kernel has no BTF, and the policy wants the tier that needs it"


def tier_words(tier: Tier) -> tuple[str, str]:
    """What a tier is, and what is missing with it."""
    missing = bcc_problem(os.uname().release)
    return {
        "btf": ("btf: programs fitted to this kernel by its BTF", ""),
        "bcc": ("bcc: programs compiled against this kernel's headers", BCC_LIMITS),
        "none": (
            "none: no program is loaded" + (f"; for bcc, {missing}" if missing else ""),
            "nothing is measured by the kernel; batching by an engine's own figures still works",
        ),
    }[tier]
