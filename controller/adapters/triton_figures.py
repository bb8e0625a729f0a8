"""What Triton counts, as figures of the contract: batches as steps, totals that only grow. Pure.

A batch of the model is a step, and each item in it a prompt token: it is all the work that there
is. The statistics begin at 0 again at every reload, the Prometheus counters do not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.engines.page import Step

MOST_STEPS: Final = 32
"""Steps of one look, the last ones: half of what a page holds."""

FINISHED: Final = ("nv_inference_request_success", "nv_inference_request_failure")
ITEMS: Final = "nv_inference_count"
PENDING: Final = "nv_inference_pending_request_count"

Batches = Mapping[int, tuple[int, int]]
"""By batch size: executions, and ns they took in all."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """The model's statistics since its last reload, all versions together."""

    requests: int = 0
    items: int = 0
    batches: Batches = field(default_factory=dict)


def statistics(model_stats: Iterable[Mapping[str, Any]]) -> Statistics:
    """From `ModelStatistics` (grpc_service.proto) as JSON has it."""
    requests = items = 0
    batches: dict[int, tuple[int, int]] = {}
    for each in model_stats:
        totals = each.get("inference_stats", {})
        requests += sum(int(totals.get(end, {}).get("count", 0)) for end in ("success", "fail"))
        items += int(each.get("inference_count", 0))
        for batch in each.get("batch_stats", []):
            size = int(batch.get("batch_size", 0))
            parts = [batch.get(f"compute_{part}", {}) for part in ("input", "infer", "output")]
            runs, spent_ns = batches.get(size, (0, 0))
            batches[size] = (
                runs + int(parts[1].get("count", 0)),
                spent_ns + sum(int(part.get("ns", 0)) for part in parts),
            )
    return Statistics(requests, items, batches)


@dataclass(frozen=True, slots=True)
class Counted:
    """Totals over reloads, and the last `MOST_STEPS` batches of those since the look before."""

    last: Statistics = field(default_factory=Statistics)
    requests: int = 0
    items: int = 0
    steps: int = 0
    fresh: tuple[Step, ...] = ()


def count(before: Counted, now: Statistics, now_ns: int) -> Counted:
    """`before` and what came since; a count that fell began anew at a reload.

    Each execution becomes a step of the mean duration of those of its size, as that is all that
    Triton tells.
    """
    old = before.last
    if now.requests < old.requests or now.items < old.items:
        old = Statistics()
    took = []
    for size, (runs, spent_ns) in sorted(now.batches.items()):
        runs_before, spent_before_ns = old.batches.get(size, (0, 0))
        new = runs - runs_before
        if new > 0:
            took.append((new, size, max(0, spent_ns - spent_before_ns) // new))
    ran = sum(new for new, _, _ in took)
    first = before.steps + 1
    # round robin over the sizes, so that those kept are of all of them
    rounds = [(turn, size, ns) for new, size, ns in took for turn in range(min(new, MOST_STEPS))]
    kept = sorted(rounds)[:MOST_STEPS]
    first += ran - len(kept)
    return Counted(
        last=now,
        requests=before.requests + now.requests - old.requests,
        items=before.items + now.items - old.items,
        steps=before.steps + ran,
        fresh=tuple(
            Step(first + i, now_ns, step_ns, size, 0, 0)
            for i, (_, size, step_ns) in enumerate(kept)
        ),
    )


@dataclass(frozen=True, slots=True)
class Metrics:
    """The model's counters at the metrics endpoint; `pending` requests wait for an instance."""

    finished: int
    items: int
    pending: int | None


def metrics(text: str, model: str) -> Metrics | None:
    """From the Prometheus text format; None where there is nothing of the model."""
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if not brace or f'model="{model}"' not in rest:
            continue
        if name in {*FINISHED, ITEMS, PENDING}:
            sums[name] = sums.get(name, 0.0) + float(rest.rpartition(" ")[2])
    if ITEMS not in sums:
        return None
    return Metrics(
        finished=int(sum(sums.get(name, 0.0) for name in FINISHED)),
        items=int(sums[ITEMS]),
        pending=int(sums[PENDING]) if PENDING in sums else None,
    )
