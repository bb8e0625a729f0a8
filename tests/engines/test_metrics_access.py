"""A real Prometheus scrapes the metrics over TLS and with a password, as it is told to."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.passwords import user_line
from controller.policy_model import Agent
from tests.engines.otlp_receiver import eventually
from tests.engines.prometheus_server import prometheus
from tests.unit.agent.certificates import authority, signed
from tests.unit.agent.test_exporter import serving

pytestmark = pytest.mark.slow

HOW = """
    scheme: https
    tls_config: {{ ca_file: "{ca}", cert_file: "{cert}", key_file: "{key}" }}
    basic_auth: {{ username: scraper, password_file: "{password}" }}
"""


@pytest.mark.parametrize(("password", "health"), [("open sesame", "up"), ("wrong", "down")])
def test_prometheus_scrapes_with_its_certificate_and_the_right_password_only(
    tmp_path: Path, password: str, health: str
) -> None:
    ours = authority(tmp_path, "ours")
    server, client = signed(tmp_path, "server", ours), signed(tmp_path, "client", ours)
    users, given = tmp_path / "users", tmp_path / "password"
    users.write_text(user_line("scraper", "open sesame") + "\n")
    given.write_text(password)
    agent = replace(
        Agent(metrics_address="127.0.0.1:0"),
        metrics_tls_cert=server.cert,
        metrics_tls_key=server.key,
        metrics_tls_client_ca=ours.cert,
        metrics_users=users,
    )
    how = HOW.format(ca=ours.cert, cert=client.cert, key=client.key, password=given)
    with serving(agent) as metrics, prometheus(f"127.0.0.1:{metrics.port}", how) as scraper:
        # right after its start it has no target yet
        eventually(lambda: scraper.query("up"))
        eventually(lambda: scraper.target()["health"] == health)
        if health == "up":
            eventually(lambda: scraper.value("sits_things_total") == 3)
        else:
            assert "401" in scraper.target()["lastError"]
