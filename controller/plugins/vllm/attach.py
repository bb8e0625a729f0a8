"""Puts a hand on a scheduler that vLLM has just made: the queue, the page, the socket."""

import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

from controller.engines.contract import Hello
from controller.engines.page import SWAPPED, PageError, PageWriter
from controller.plugins.vllm.allocator import follow
from controller.plugins.vllm.hand import Hand
from controller.plugins.vllm.knobs import Limits, offered, traits_of
from controller.plugins.vllm.kv_cache import KvCache
from controller.plugins.vllm.leased import MAX_LEASE_MS, Leased
from controller.plugins.vllm.places import admin_gid, page_path, socket_path
from controller.plugins.vllm.turns import in_turns
from controller.serving.calls import Calls
from controller.serving.server import AdminServer

log = logging.getLogger("vllm.sits")


def attach(scheduler: Any) -> Hand | None:
    """A hand that serves the contract; None, and the reason in the log, if that can't be.

    vLLM runs in either case.
    """
    try:
        return _attached(scheduler)
    except Exception as error:
        log.warning("sits is not there, vLLM serves as it was started: %s", error)
        return None


def _attached(scheduler: Any) -> Hand:
    rank = int(getattr(scheduler.parallel_config, "data_parallel_index", 0) or 0)
    path = socket_path(os.environ, rank)
    gid = admin_gid(os.environ)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    page = _page(page_path(path))
    try:
        traits = traits_of(scheduler)
        knobs = offered(scheduler, traits)
        limits, cache = Limits(scheduler, traits, knobs), KvCache(scheduler)
        leased = Leased(knobs, cache.total, limits.budget, page)
        hand = Hand(scheduler, traits, limits, cache, leased)
        hello = Hello(
            engine="vllm",
            version=_version(),
            instance=secrets.token_hex(8),
            pid=os.getpid(),
            knobs=knobs,
            graph_sizes=graph_sizes(scheduler.vllm_config),
            page=None if page is None else str(page.path.absolute()),
            max_lease_ms=MAX_LEASE_MS,
        )
        server = AdminServer(path, leased, Calls(leased, hello), gid)
    except BaseException:
        if page is not None:
            page.close()
        raise
    if traits.relegates:
        scheduler.waiting = in_turns(scheduler.waiting, hand.turns, hand.turns_failed)
    leased.serve(server)
    if page is not None and "torch" in sys.modules:
        follow(sys.modules["torch"], leased.show_allocator, leased.stopped)
    log.info("sits serves the engine contract at %s", path)
    return hand


def graph_sizes(vllm_config: Any) -> tuple[int, ...]:
    """Batch sizes for which vLLM captures CUDA graphs; none where it captures none."""
    compilation = getattr(vllm_config, "compilation_config", None)
    mode = getattr(compilation, "cudagraph_mode", None)
    if mode is None or getattr(mode, "name", str(mode)) == "NONE":
        return ()
    sizes = getattr(compilation, "cudagraph_capture_sizes", None)
    return tuple(sorted(int(size) for size in sizes or ()))


def _page(path: Path) -> PageWriter | None:
    """The stats page; None if it can't be made: the socket tells the same."""
    if SWAPPED:
        log.warning("sits serves without a stats page: this machine is big endian")
        return None
    try:
        return PageWriter(path)
    except (OSError, PageError) as error:
        log.warning("sits serves without a stats page: %s", error)
        return None


def _version() -> str:
    from vllm.version import __version__

    return str(__version__)
