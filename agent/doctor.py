"""What `sitsctl doctor` is told: what is allowed, what is missing, what that costs."""

import grp
from collections.abc import Sequence
from contextlib import suppress

from agent.agent_view import JsonObject
from agent.exporter import exposure
from agent.gpu_model import FAILED, HUNG, NO_DRIVER, Look
from agent.mps import WELL, limit_text
from agent.node import Node
from bpf.features import findings
from bpf.tiers import tier_words
from controller.journal import Journal
from controller.policy_model import Agent


def doctor_answer(
    node: Node, agent: Agent, journal: Journal, gpus: Look, mps: Sequence[JsonObject] = ()
) -> JsonObject:
    """What this kernel, these privileges and this policy allow; what limits and programs cost."""
    found = findings(node.features, agent.pin_dir)
    health = node.health()
    programs, counted_s = node.program_runs()
    return {
        "findings": [
            {"name": f.name, "ok": f.ok, "detail": f.detail, "cost": "" if f.ok else f.cost}
            for f in found
        ]
        + [_tier(node), _journal(journal), exposure(agent), _operators(agent), _gpus(gpus)]
        + [_mps(each) for each in mps],
        "limits": {name: getattr(health, name) for name in type(health).__slots__}
        | {"journal_rows": journal.dropped},
        "programs": [
            {"name": name, "runs": ran.count, "run_ns": ran.ns, "missed": ran.missed}
            for name, ran in programs.items()
        ],
        "counted_s": counted_s,
    }


def _tier(node: Node) -> JsonObject:
    detail, cost = tier_words(node.tier)
    return {"name": "tier", "ok": not cost, "detail": detail, "cost": cost}


def _journal(journal: Journal) -> JsonObject:
    return {
        "name": "journal",
        "ok": not journal.failing,
        "detail": journal.error if journal.failing else f"{journal.path} takes what is decided",
        "cost": "decisions and events are not kept, and nothing can be set by hand; control goes on"
        if journal.failing
        else "",
    }


def _gpus(look: Look) -> JsonObject:
    lost = [f"GPU {each.name}: {each.lost}" for each in look.devices if each.lost]
    seen = f"{look.text}, {len(look.devices)} seen by driver {look.driver}" if look.driver else ""
    well = look.state not in {FAILED, HUNG, NO_DRIVER} and not lost
    return {
        "name": "gpu",
        "ok": well,
        "detail": "; ".join([seen or look.text, *lost]),
        "cost": "" if well else "what runs on the GPUs, and how busy they are, is not known",
    }


def _mps(limit: JsonObject) -> JsonObject:
    well = limit["state"] in WELL
    return {
        "name": f"mps {limit['name']}",
        "ok": well,
        "detail": limit_text(limit),
        "cost": "" if well else "clients of this daemon that start now get all of a GPU",
    }


def _operators(agent: Agent) -> JsonObject:
    name = agent.operators
    if name is None:
        return {
            "name": "operators",
            "ok": True,
            "detail": "only root may change what the agent does",
            "cost": "",
        }
    there = False
    with suppress(KeyError):
        grp.getgrnam(name)
        there = True
    return {
        "name": "operators",
        "ok": there,
        "detail": f"root and the group {name} may change what the agent does"
        if there
        else f"there is no group {name}, which agent.operators names",
        "cost": "" if there else "only root may change what the agent does",
    }
