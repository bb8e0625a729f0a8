"""`sits-reference-engine`: the command that puts the parts together."""

import asyncio
import functools
import grp
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from controller.engines.contract import KNOBS, Hello, Knob
from controller.engines.page import PageError, PageWriter
from controller.plugins.relegation import MAX_DEADLINE_MS, MAX_DEFERRAL_MS, MAX_TOKENS_PER_S

VERSION: Final = "0.1.0"
MAX_LEASE_MS: Final = 10_000
SWITCH_INTERVAL_S: Final = 0.0002
"""How long a thread may keep the interpreter while another waits. With 24 streams the P95 of an
admin answer was 6 ms under Python's own 5 ms, and 1.4 ms under this; shorter gained nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The command line, checked."""

    host: str
    port: int
    admin_socket: Path | None
    page: Path | None
    admin_gid: int | None
    seed: int
    model_name: str
    max_running: int
    max_batched_tokens: int
    max_queued: int
    ttft_deadline_ms: int
    prefill_tokens_per_s: int
    max_deferral_ms: int
    kv_tokens: int
    max_context: int
    layers: int
    width: int


def start_knobs(settings: Settings) -> Mapping[str, Knob]:
    """The knobs offered: sizes never above what the engine was started with."""
    return {
        name: Knob(name, minimum, maximum, start, KNOBS[name])
        for name, minimum, maximum, start in (
            ("max_running", 1, settings.max_running, settings.max_running),
            ("max_batched_tokens", 1, settings.max_batched_tokens, settings.max_batched_tokens),
            ("long_prefill_tokens", 1, settings.max_batched_tokens, settings.max_batched_tokens),
            ("max_queued", 1, settings.max_queued, settings.max_queued),
            ("ttft_deadline_ms", 0, MAX_DEADLINE_MS, settings.ttft_deadline_ms),
            ("prefill_tokens_per_s", 0, MAX_TOKENS_PER_S, settings.prefill_tokens_per_s),
            ("max_deferral_ms", 0, MAX_DEADLINE_MS, settings.max_deferral_ms),
        )
    }


def _group(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(value) if value.isdecimal() else grp.getgrnam(value).gr_gid
    except KeyError:
        raise click.BadParameter(f"there is no group {value!r}") from None


@click.command(context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address the HTTP server listens at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    help="Port the HTTP server listens at; 0 takes a free one, which is printed.",
)
@click.option(
    "--admin-socket",
    type=click.Path(path_type=Path),
    help="Unix socket for the engine contract; none without this.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    help="File of the stats page, best on a tmpfs such as /run; none without this.",
)
@click.option(
    "--admin-group",
    "admin_gid",
    callback=_group,
    help="Group (name or gid) admitted to the admin socket beside root and this user.",
)
@click.option("--seed", type=int, default=0, help="Seed of the weights and of sampling.")
@click.option("--model-name", default="sits-reference", help="Name of the model in the API.")
@click.option(
    "--max-running",
    type=click.IntRange(1, 1024),
    default=64,
    help="Requests computed at once, and the upper end of that knob.",
)
@click.option(
    "--max-batched-tokens",
    type=click.IntRange(1, 65536),
    default=2048,
    help="Tokens computed in one step, and the upper end of that knob.",
)
@click.option(
    "--max-queued",
    type=click.IntRange(1, 1_000_000),
    default=1024,
    help="Requests that may wait; more get HTTP 503. The upper end of that knob.",
)
@click.option(
    "--ttft-deadline-ms",
    type=click.IntRange(0, MAX_DEADLINE_MS),
    default=0,
    help="Requests that can't have their first token within this wait behind those that can; 0:"
    " first come, first served. Where that knob begins.",
)
@click.option(
    "--prefill-tokens-per-s",
    type=click.IntRange(0, MAX_TOKENS_PER_S),
    default=0,
    help="How fast prompts are taken to be computed; 0: as measured. Where that knob begins.",
)
@click.option(
    "--max-deferral-ms",
    type=click.IntRange(0, MAX_DEADLINE_MS),
    default=MAX_DEFERRAL_MS,
    help="A late request that has waited this long goes before the others; 0: never. Where that"
    " knob begins.",
)
@click.option(
    "--kv-tokens",
    type=click.IntRange(1, 16_777_216),
    default=65536,
    help="Size of the KV cache in tokens, about 1 KiB each with the default model.",
)
@click.option(
    "--max-context",
    type=click.IntRange(2, 131072),
    default=4096,
    help="Most tokens of one request, prompt and answer; at most --kv-tokens.",
)
@click.option("--layers", type=click.IntRange(1, 64), default=2, help="Layers of the model.")
@click.option(
    "--width",
    type=click.IntRange(2, 8192),
    default=256,
    help="Size of a token's vector in the model; even.",
)
@click.version_option(VERSION, prog_name="sits-reference-engine")
def main(**options: Any) -> None:
    """Serve a small language model that really computes, with random weights.

    It speaks OpenAI's completions and chat completions over HTTP (/v1/completions,
    /v1/chat/completions, /v1/models, /health, /metrics) and the sits engine contract over
    --admin-socket. It stands in for a real engine in tests and demonstrations.
    """
    settings = Settings(**options)
    if settings.max_context > settings.kv_tokens:
        raise click.BadParameter(
            f"must be at most --kv-tokens ({settings.kv_tokens})", param_hint="--max-context"
        )
    if settings.width % 2:
        raise click.BadParameter("must be even", param_hint="--width")
    # One thread of linear algebra: the engine's times are to be those of one core.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        healthy = asyncio.run(serve(settings))
    except (OSError, PageError) as error:
        raise click.ClickException(str(error)) from error
    if not healthy:
        raise click.ClickException("the engine's thread ended; its error is above")


async def serve(settings: Settings) -> bool:
    """Serve until SIGTERM or SIGINT; False if the engine's thread failed."""
    # Only now: NumPy takes its number of threads from the environment when it is imported.
    from controller.reference.engine import Engine, Token
    from controller.reference.front import Connection, Front
    from controller.reference.metrics import Metrics
    from controller.reference.model import Model, Shape
    from controller.serving.calls import Calls
    from controller.serving.server import AdminServer

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    knobs = start_knobs(settings)
    shape = Shape(layers=settings.layers, width=settings.width, max_context=settings.max_context)
    with ExitStack() as stack:
        page = None
        if settings.page is not None:
            page = PageWriter(settings.page)
            stack.callback(page.close)

        def deliver(tokens: Sequence[Token]) -> None:
            loop.call_soon_threadsafe(front.deliver, tokens)

        def ended() -> None:
            loop.call_soon_threadsafe(stop.set)

        engine = Engine(
            Model(shape, settings.seed),
            settings.kv_tokens,
            knobs=knobs,
            max_lease_ms=MAX_LEASE_MS,
            page=page,
            deliver=deliver,
            seed=settings.seed,
        )
        metrics = Metrics(engine.now, settings.model_name)
        front = Front(engine, metrics, settings.model_name, settings.max_context)
        wake = _nothing
        if settings.admin_socket is not None:
            hello = Hello(
                engine="sits-reference",
                version=VERSION,
                instance=secrets.token_hex(8),
                pid=os.getpid(),
                knobs=knobs,
                page=None if settings.page is None else str(settings.page.absolute()),
                max_lease_ms=MAX_LEASE_MS,
            )
            admin = AdminServer(
                settings.admin_socket, engine, Calls(engine, hello), settings.admin_gid
            )
            stack.callback(admin.stop)
            admin.start()
            wake = admin.wake
        try:
            server = await loop.create_server(
                functools.partial(Connection, front), settings.host, settings.port, backlog=1024
            )
        except OSError as error:
            raise OSError(
                f"could not listen at {settings.host}:{settings.port}: {error.strerror}"
            ) from error
        engine.start(wake, ended)
        stack.callback(engine.stop)
        port = server.sockets[0].getsockname()[1]
        click.echo(f"serving {settings.model_name} at http://{settings.host}:{port}")
        await stop.wait()
        healthy = engine.alive
        server.close()
        front.close()
        await server.wait_closed()
    return healthy


def _nothing() -> None:
    """Without an admin socket nobody waits for word of a knob."""
