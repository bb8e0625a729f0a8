"""A page with much to show, and a server for it."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from agent.history import Moment
from agent.http import HttpServer, metrics_app, tcp_server
from agent.page.answer import Gpus, PageAnswer
from agent.page.app import page_routes
from agent.page.columns import STEP_S, Columns
from bpf.histogram import Histogram
from bpf.layout import Counters
from tests.unit.agent.made import MS, histogram
from tests.unit.agent.recorded import EXPLAIN, RecordedView

HOSTILE = "<img src=x onerror=alert(1)>"
COLUMNS = 150


class ShownView(RecordedView):
    """A recorded view whose decisions are of just now."""

    def blame(self, engine: str, seconds: float) -> list[dict[str, Any]]:
        """The recorded culprits."""
        self.asked.append(("blame", engine, seconds))
        return list(EXPLAIN["culprits"])

    def journal(self, *arguments: Any) -> dict[str, Any]:
        """The recorded decisions, half a minute apart and the last one now."""
        answer = super().journal(*arguments)
        for place, row in enumerate(answer["decisions"]):
            row["wall_ns"] = time.time_ns() - place * 30_000_000_000
        return answer


def columns_of(*engines: str) -> Columns:
    """Waves of latency, with a neighbour's doing in the middle."""
    made = Columns()
    first = int(time.monotonic() // STEP_S) - COLUMNS
    total: dict[str, Histogram] = {"ttft": histogram(), "gap": histogram()}
    risk_ns = 0
    for step in range(COLUMNS + 1):
        bad = 60 < step < 80
        wave = 1 + 0.4 * math.sin(step / 9)
        new = {
            "ttft": histogram(*(round(wave * (900 if bad else 60) * MS * k) for k in (1, 2, 4))),
            "gap": histogram(*(round(wave * (70 if bad else 9) * MS * k) for k in (1, 1, 2, 4))),
        }
        total = {name: total[name].plus(new[name]) for name in total}
        risk_ns += 3_000 * MS if bad else 0
        status: Mapping[str, Any] = {
            "knobs": {"max_running": {"value": 8 if bad else 64}, "max_queued": {"value": 1024}},
            "cpu_weight": {"value": 1000 if bad else 100, "base": 100},
            "now": {"running": 3, "waiting": 1},
        }
        for engine in engines:
            moment = Moment(
                (first + step) * STEP_S * 1_000_000_000,
                Counters(chunks=step),
                {"neighbour_cpu": risk_ns},
                total["ttft"],
                total["gap"],
                ended=step * 3,
                good=step * 2,
            )
            made.take(engine, moment, status)
    return made


@contextmanager
def served(view: RecordedView, columns: Columns, gpus: Gpus = tuple) -> Iterator[HttpServer]:
    """The page at `/` of a free port."""
    answer = PageAnswer(view, columns, gpus)  # type: ignore[arg-type]
    app = metrics_app(CollectorRegistry(), lambda: (True, {}), page_routes(answer))
    with tcp_server("127.0.0.1", 0, app) as server:
        yield server
