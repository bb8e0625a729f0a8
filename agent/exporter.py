"""The metrics' server as the policy wants it: where, with TLS or without, for all or for some."""

import ipaddress
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from wsgiref.types import WSGIApplication

from prometheus_client.registry import Collector

from agent.guarded import guarded
from agent.http import Healthz, HttpError, HttpServer, metrics_app, tcp_server
from agent.passwords import Users, UsersError
from agent.tls import Tls, TlsError, TlsFiles
from controller.policy_model import Agent

_OPEN_COST: Final = (
    "whoever reaches that address reads engines' names, load and latencies: set"
    " agent.metrics_tls_cert, agent.metrics_tls_key and agent.metrics_users, or serve them on"
    " 127.0.0.1"
)
_CLEAR_COST: Final = (
    "passwords go over the network in the clear: set agent.metrics_tls_cert and"
    " agent.metrics_tls_key"
)


def metrics_server(
    agent: Agent,
    registry: Collector,
    healthz: Healthz,
    more: Mapping[str, WSGIApplication] = MappingProxyType({}),
) -> HttpServer:
    """Listen where the policy says; `HttpError` if that, or what it takes, can't be had.

    `more` is served beside the metrics, to those who may read them.
    """
    app = metrics_app(registry, healthz, more)
    try:
        files = tls_files(agent)
        tls = None if files is None else Tls(files)
        if agent.metrics_users is not None:
            app = guarded(app, Users(agent.metrics_users).admits)
    except (TlsError, UsersError) as error:
        raise HttpError(str(error)) from None
    host, port = agent.metrics_endpoint
    return tcp_server(host, port, app, tls)


def tls_files(agent: Agent) -> TlsFiles | None:
    """The files of the metrics' TLS; None without it."""
    cert, key = agent.metrics_tls_cert, agent.metrics_tls_key
    if cert is None or key is None:
        return None
    return TlsFiles(cert, key, agent.metrics_tls_client_ca)


def exposure(agent: Agent) -> dict[str, Any]:
    """The line of `sitsctl doctor` on who can read the metrics."""
    tls, users = agent.metrics_tls_cert is not None, agent.metrics_users is not None
    certified = agent.metrics_tls_client_ca is not None
    local = _is_local(agent.metrics_endpoint[0])
    how = "over TLS" if tls else "in the clear"
    who = {
        (False, False): "whoever asks",
        (False, True): "clients with a certificate",
        (True, False): "those with a password",
        (True, True): "clients with a certificate and a password",
    }[users, certified]
    cost = ""
    if not local and not tls:
        cost = _CLEAR_COST if users else _OPEN_COST
    return {
        "name": "metrics",
        "ok": not cost,
        "detail": f"served at {agent.metrics_address} {how} to {who}"
        + (" on this machine" if local else ""),
        "cost": cost,
    }


def _is_local(host: str) -> bool:
    """Whether only this machine reaches that host. Names but for localhost are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
