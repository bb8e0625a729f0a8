"""The leases of one scheduler and what it shows of itself: where two threads meet.

vLLM's thread computes steps, the socket's changes leases. A change waits in the leases until the
next step begins, so no knob moves while vLLM plans one; vLLM's thread looks at two attributes to
see that nothing changed. The lock is held for microseconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from controller.engines.contract import ContractError, Knob
from controller.engines.page import Allocator, EngineNow, PageWriter
from controller.plugins.vllm import figures as at
from controller.plugins.vllm.figures import no_figures
from controller.serving.leases import Lease, Leases
from controller.serving.server import AdminServer

log = logging.getLogger("vllm.sits")

MAX_LEASE_MS: Final = 10_000
NEVER: Final = 2**63


class Leased:
    """What the server serves (as `Served`), and the page.

    For vLLM's thread: `changed` or a passed `deadline_ns` say that there is something to `take`;
    it says whether a step of its own is `under_way`, `figures` are what it counts. At the end of a
    step it writes the `page` (None where none could be made) without the lock, which a step would
    pay for: it says that it `writes` before it looks whether `others_write`, and leaves that to
    `publish` then; others say that they do before they look whether it writes, and wait for it.
    """

    def __init__(
        self, knobs: Mapping[str, Knob], kv_total: int, budget: int, page: PageWriter | None
    ) -> None:
        """`budget` is shown as `max_batched_tokens` where that is no knob."""
        self.changed = False
        self.deadline_ns = NEVER
        self.under_way = self.writes = self.others_write = False
        self.stopped = threading.Event()
        self.figures = no_figures()
        self.figures[at.KV_TOTAL] = kv_total
        self._budget = budget
        self.page = page
        self._server: AdminServer | None = None
        self._lock = threading.Lock()
        self._leases = Leases(knobs, MAX_LEASE_MS)
        self._seen_version = self._leases.version
        self._failure = ""
        with self._lock:
            self._show()

    @property
    def values(self) -> Mapping[str, float]:
        """Every knob's value in force."""
        return self._leases.values

    def serve(self, server: AdminServer) -> None:
        """Begin to answer."""
        self._server = server
        server.start()

    def stop(self) -> None:
        """The end: no socket and no page stay behind."""
        self.stopped.set()
        if self._server is not None:
            self._server.stop()
        with self._lock, self._page_of_others():
            page, self.page = self.page, None
        if page is not None:
            page.close()

    # On vLLM's thread.

    def take(self, now_ns: int) -> tuple[Mapping[str, float], Lease | None]:
        """The top of a step: what is wanted is in force; the values, and the lease they have."""
        with self._lock:
            self.changed = False
            version = self._leases.version
            self._expire(now_ns)
            self._leases.apply()
            values, lease = self._leases.values, self._leases.lease
            self.deadline_ns = NEVER if lease is None else lease.deadline_ns
            news = self._leases.version != version
            if self._leases.version != self._seen_version:
                self._show()
        if news:
            self._wake()
        return values, lease

    def publish(self, now_ns: int, step: tuple[int, ...] = ()) -> None:
        """Write the page, with a `step` that has ended if one has."""
        with self._lock:
            self.figures[at.UPDATED] = now_ns
            if self.page is not None:
                self.page.publish(self.figures, step)

    def end(self) -> None:
        """The knobs can't be kept: they go back at the next step, whoever has the lease."""
        with self._lock:
            self._leases.end()
            self.changed = True
        self._wake()

    def fail(self, reason: str) -> None:
        """Start values for good: who sets something is refused for this `reason`."""
        # before the lock: who has it may wait for this
        self.writes = False
        with self._lock:
            self._failure = reason
            self.under_way = False
            self._leases.end()
            self.figures[at.DEFERRED] = self.figures[at.LONGEST] = 0
            self._show()
        self._wake()

    # On a thread that looks at the GPU.

    def show_allocator(self, allocator: Allocator) -> None:
        """Show how the allocator stands."""
        with self._lock, self._page_of_others() as page:
            if page is not None:
                page.show_allocator(allocator)

    # On the server's thread.

    def with_leases(self, act: Callable[[Leases], dict[str, Any]]) -> dict[str, Any]:
        """Run `act` on the leases and return what it returns, with their state added."""
        with self._changing():
            answer = act(self._leases)
            if self._failure and (self._leases.lease or self._leases.prepared):
                self._leases.end()
                raise ContractError("failed", self._failure)
        with self._lock:
            return {**answer, **self._leases.state(time.monotonic_ns())}

    def now(self) -> EngineNow:
        """What the page shows."""
        with self._lock:
            figures = self.figures.tolist()
        return EngineNow(*figures)

    def next_deadline_ns(self) -> int | None:
        """When a lease or a promise next runs out."""
        with self._lock:
            return self._leases.deadline_ns()

    def expire(self) -> int:
        """End what has run out, on an idle engine too; returns the leases' version."""
        with self._changing():
            return self._leases.version

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the leases, ended where overdue; afterwards what changed is seen by the next step.

        With no step under way there is nothing to wait for: it is applied here. vLLM's thread
        says that a step is under way before it looks at `changed`, this one sets that before it
        looks whether one is: so one of the two sees the other.
        """
        with self._lock:
            self._expire(time.monotonic_ns())
            try:
                yield
            finally:
                if self._leases.version != self._seen_version:
                    self.changed = True
                    if not self.under_way:
                        self._leases.apply()
                    with self._page_of_others():
                        self._show()

    @contextmanager
    def _page_of_others(self) -> Iterator[PageWriter | None]:
        """The page, for another thread than vLLM's that holds the lock."""
        self.others_write = True
        try:
            while self.writes:
                time.sleep(0)
            yield self.page
        finally:
            self.others_write = False

    def _expire(self, now_ns: int) -> None:
        if self._leases.expire(now_ns):
            log.warning("sits: the lease ran out, every knob is back at its start value")

    def _show(self) -> None:
        leases, figures = self._leases, self.figures
        self._seen_version = leases.version
        figures[at.EPOCH] = leases.applied_epoch
        figures[at.EXPIRIES] = leases.expiries
        figures[at.MAX_RUNNING] = int(leases.values["max_running"])
        figures[at.MAX_BATCHED] = int(leases.values.get("max_batched_tokens", self._budget))
        figures[at.UPDATED] = time.monotonic_ns()
        if self.page is not None:
            self.page.publish(figures)

    def _wake(self) -> None:
        if self._server is not None:
            self._server.wake()
