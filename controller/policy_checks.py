"""What is wrong with a policy whose keys are each right: they are held against each other here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from controller.adapters.kinds import setting_problems
from controller.policy_model import Agent, Controller, Engine, Match, Neighbour, Otel, Policy
from controller.policy_rules import UNIX_PATH_BYTES
from controller.policy_tables import Problem, key_name
from controller.policy_text import KeyPath

LEASE_TICKS: Final = 3
"""A lease outlives this many slow ticks, so that one late tick does not lose it."""


def cross_problems(policy: Policy) -> Iterator[Problem]:
    """Every contradiction in `policy`; each names in `also` the other keys it rests on."""
    targets: list[tuple[KeyPath, Engine | Neighbour]] = [
        *((("engines", item.name), item) for item in policy.engines),
        *((("neighbours", item.name), item) for item in policy.neighbours),
    ]
    yield from _ticks(policy.controller)
    yield from _otel(policy.otel)
    yield from _metrics_tls(policy.agent)
    yield from _names(policy)
    yield from _matches(targets)
    yield from _cgroups(policy)
    yield from _classes(policy)
    yield from _adapters(policy)
    yield from _sockets(policy)
    yield from _ports(policy, targets)
    yield from _mps(policy)
    if len(targets) > policy.agent.max_targets:
        first_too_many, _ = targets[policy.agent.max_targets]
        yield Problem(
            ("agent", "max_targets"),
            f"must be at least the number of engines and neighbours, {len(targets)},"
            f" not {policy.agent.max_targets}",
            (first_too_many,),
        )


def _ticks(loop: Controller) -> Iterator[Problem]:
    tick: KeyPath = ("controller", "scheduler_tick_interval_ms")
    if loop.fast_tick_interval_ms > loop.scheduler_tick_interval_ms:
        yield Problem(
            ("controller", "fast_tick_interval_ms"),
            f"must be at most scheduler_tick_interval_ms, {loop.scheduler_tick_interval_ms:g},"
            f" not {loop.fast_tick_interval_ms:g}",
            (tick,),
        )
    shortest = LEASE_TICKS * loop.scheduler_tick_interval_ms
    if loop.lease_ms < shortest:
        yield Problem(
            ("controller", "lease_ms"),
            f"must be at least {LEASE_TICKS} × scheduler_tick_interval_ms, {shortest:g},"
            f" not {loop.lease_ms}",
            (tick,),
        )


def _otel(otel: Otel) -> Iterator[Problem]:
    if otel.endpoint is None or otel.protocol == "http":
        return
    if urlsplit(otel.endpoint).path not in {"", "/"}:
        yield Problem(("otel", "endpoint"), "must have no path over gRPC", (("otel", "protocol"),))


def _metrics_tls(agent: Agent) -> Iterator[Problem]:
    cert, key = ("agent", "metrics_tls_cert"), ("agent", "metrics_tls_key")
    if agent.metrics_tls_cert is None and agent.metrics_tls_key is not None:
        yield Problem(cert, "agent.metrics_tls_key needs it", (key,))
    if agent.metrics_tls_cert is not None and agent.metrics_tls_key is None:
        yield Problem(key, "agent.metrics_tls_cert needs it", (cert,))
    if agent.metrics_tls_client_ca is not None and agent.metrics_tls_cert is None:
        client_ca: KeyPath = ("agent", "metrics_tls_client_ca")
        yield Problem(cert, "agent.metrics_tls_client_ca needs it", (client_ca,))


def _names(policy: Policy) -> Iterator[Problem]:
    engines = {engine.name for engine in policy.engines}
    for neighbour in policy.neighbours:
        if neighbour.name in engines:
            yield Problem(
                ("neighbours", neighbour.name),
                f"engines.{neighbour.name} has the same name",
            )


def _matches(targets: list[tuple[KeyPath, Engine | Neighbour]]) -> Iterator[Problem]:
    first_with: dict[Match, KeyPath] = {}
    for path, target in targets:
        first = first_with.setdefault(target.match, path)
        if first != path:
            yield Problem((*path, target.match.kind), f"{key_name(first)} is found the same way")


def _cgroups(policy: Policy) -> Iterator[Problem]:
    for engine in policy.engines:
        if engine.match == Match("cgroup", "/") and not policy.agent.attach_root:
            yield Problem(
                ("engines", engine.name, "cgroup"),
                "the root cgroup needs agent.attach_root = true",
                (("agent", "attach_root"),),
            )
    for neighbour in policy.neighbours:
        if neighbour.match.kind != "cgroup" or neighbour.each_child or not neighbour.limit:
            continue
        # A limit reaches everything below a cgroup, so it would hold the engine too.
        for engine in policy.engines:
            inside = str(engine.match.value).startswith(f"{neighbour.match.value}/")
            if engine.match.kind == "cgroup" and inside:
                yield Problem(
                    ("neighbours", neighbour.name, "cgroup"),
                    f"engines.{engine.name} runs inside it and would be limited with it",
                    (("engines", engine.name, "cgroup"), ("neighbours", neighbour.name, "limit")),
                )


def _classes(policy: Policy) -> Iterator[Problem]:
    known = policy.all_classes
    named: list[tuple[KeyPath, str | None]] = [
        (("discovery", "found_class"), policy.discovery.found_class)
    ]
    named += [(("engines", item.name, "class"), item.service_class) for item in policy.engines]
    named += [
        (("neighbours", item.name, "class"), item.service_class) for item in policy.neighbours
    ]
    for path, name in named:
        if name is not None and name not in known:
            there = ", ".join(f'"{each}"' for each in known)
            yield Problem(path, f'there is no class "{name}", only {there}', (("classes",),))


def _adapters(policy: Policy) -> Iterator[Problem]:
    for engine in policy.engines:
        path, adapter = ("engines", engine.name, "adapter"), engine.adapter
        settings = adapter.settings()
        if adapter.kind is None:
            if settings:
                yield Problem((*path, "kind"), "an adapter needs it")
            continue
        for name, what in setting_problems(adapter.kind, settings):
            yield Problem((*path, name), what, (path,))
        if engine.admin_socket is not None:
            yield Problem(
                ("engines", engine.name, "admin_socket"),
                "an engine with an adapter has the adapter's socket",
                (path,),
            )
        socket = str(policy.socket_of(engine)).encode()
        if len(socket) > UNIX_PATH_BYTES:
            yield Problem(
                ("agent", "run_dir"),
                f"'{socket.decode()}' is longer than {UNIX_PATH_BYTES} bytes",
                (path,),
            )


def _sockets(policy: Policy) -> Iterator[Problem]:
    agents: KeyPath = ("agent", "admin_socket")
    first_with = {policy.agent.admin_socket: agents}
    for engine in policy.engines:
        if engine.admin_socket is None:
            continue
        path = ("engines", engine.name, "admin_socket")
        first = first_with.setdefault(engine.admin_socket, path)
        if first != path:
            yield Problem(path, f"{key_name(first)} is the same socket", (first,))


def _mps(policy: Policy) -> Iterator[Problem]:
    first_with: dict[Path, KeyPath] = {}
    for daemon in policy.mps:
        path = ("mps", daemon.name, "pipe_directory")
        first = first_with.setdefault(daemon.pipe_directory, path)
        if first != path:
            yield Problem(path, f"{key_name(first)} is the same directory", (first,))


def _ports(policy: Policy, targets: list[tuple[KeyPath, Engine | Neighbour]]) -> Iterator[Problem]:
    _, metrics_port = policy.agent.metrics_endpoint
    for path, target in targets:
        if target.match == Match("port", metrics_port):
            yield Problem(
                (*path, "port"),
                "agent.metrics_address has the same port",
                (("agent", "metrics_address"),),
            )
