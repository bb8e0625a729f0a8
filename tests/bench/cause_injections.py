"""What goes wrong in the cause matrix: each kind, what it is to be called, and how it is done."""

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.attribution import Cause

from .cause_rig import CauseRig

Strength = Mapping[str, float]
"""How strong an injection was, by its own figures."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of trouble. `inject` makes it for so many seconds and says how strong it was."""

    name: str
    cause: Cause
    inject: Callable[[CauseRig, random.Random, float], Strength]


def _nothing(_: CauseRig, __: random.Random, seconds: float) -> Strength:
    time.sleep(seconds)
    return {}


def _neighbours(rig: CauseRig, draw: random.Random, seconds: float) -> Strength:
    count = draw.randint(4, 6)
    with rig.burning(count):
        time.sleep(seconds)
    return {"neighbours": count}


def _quota(rig: CauseRig, draw: random.Random, seconds: float) -> Strength:
    cores = round(draw.uniform(0.15, 0.5), 2)
    with rig.quota(cores):
        time.sleep(seconds)
    return {"cores": cores}


def _loss(rig: CauseRig, draw: random.Random, seconds: float) -> Strength:
    share = round(draw.uniform(0.05, 0.4), 3)
    with rig.losing(share):
        time.sleep(seconds)
    return {"share": share}


def _slow_reader(rig: CauseRig, draw: random.Random, seconds: float) -> Strength:
    with rig.clients.not_reading(draw):
        time.sleep(seconds)
    return {}


def _long_prefill(rig: CauseRig, draw: random.Random, seconds: float) -> Strength:
    with rig.clients.long_prompts(draw):
        time.sleep(seconds)
    return {}


def _stopped(rig: CauseRig, draw: random.Random, _: float) -> Strength:
    seconds = round(draw.uniform(1, 2), 2)
    os.kill(rig.engine_pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(rig.engine_pid, signal.SIGCONT)
    return {"seconds": seconds}


def _memory(rig: CauseRig, draw: random.Random, seconds: float) -> Strength:
    spare = draw.randint(1, 16) << 20
    with rig.out_of_memory(spare):
        time.sleep(seconds)
    return {"spare_mib": spare >> 20}


KINDS: Final = (
    Kind("nothing", Cause.NONE, _nothing),
    Kind("neighbours", Cause.NEIGHBOUR_CPU, _neighbours),
    Kind("own quota", Cause.OWN_QUOTA, _quota),
    Kind("packet loss", Cause.NETWORK, _loss),
    Kind("slow reader", Cause.SLOW_READER, _slow_reader),
    Kind("long prefill", Cause.BATCH, _long_prefill),
    Kind("stopped engine", Cause.ENGINE_STOPPED, _stopped),
    Kind("memory", Cause.MEMORY, _memory),
)
