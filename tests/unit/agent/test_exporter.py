"""Metrics over TLS and to those with a password, over real sockets with real certificates."""

import base64
import http.client
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from agent import connections
from agent.exporter import exposure, metrics_server
from agent.http import HttpError, HttpServer
from agent.passwords import user_line
from controller.policy_model import Agent
from tests.unit.agent.certificates import Certificate, authority, signed

PLAIN = Agent(metrics_address="127.0.0.1:0")
PASSWORD = "corréct: horse"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Certificate]:
    """Two authorities, and what they signed."""
    directory = tmp_path_factory.mktemp("certificates")
    ours, others = authority(directory, "ours"), authority(directory, "others")
    return {
        "ours": ours,
        "others": others,
        "server": signed(directory, "server", ours),
        "renewed": signed(directory, "renewed", ours),
        "client": signed(directory, "client", ours),
        "stranger": signed(directory, "stranger", others),
    }


@pytest.fixture
def over_tls(files: dict[str, Certificate], tmp_path: Path) -> Agent:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(files["server"].cert, cert)
    shutil.copy(files["server"].key, key)
    return replace(PLAIN, metrics_tls_cert=cert, metrics_tls_key=key)


@pytest.fixture
def with_users(tmp_path: Path) -> Agent:
    file = tmp_path / "users"
    file.write_text(f"# who scrapes\n\n{user_line('scraper', PASSWORD)}\n")
    return replace(PLAIN, metrics_users=file)


def serving(agent: Agent, healthz: Any = lambda: (True, {"problems": ["secret"]})) -> HttpServer:
    registry = CollectorRegistry()
    Counter("sits_things", "Things.", registry=registry).inc(3)
    return metrics_server(agent, registry, healthz)


def client(files: dict[str, Certificate], who: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files["ours"].cert)
    if who is not None:
        context.load_cert_chain(files[who].cert, files[who].key)
    return context


def connected(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port or 0), timeout=10)


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def get(
    server: HttpServer,
    path: str = "/metrics",
    tls: ssl.SSLContext | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    assert server.port is not None
    connection = (
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", server.port, timeout=10, context=tls)
    )
    with closing(connection):
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()


def test_without_more_they_are_in_the_clear_for_whoever_asks() -> None:
    with serving(PLAIN) as server:
        assert b"sits_things_total 3" in get(server)[2]


def test_over_tls_a_client_that_knows_the_authority_reads_them(
    over_tls: Agent, files: dict[str, Certificate]
) -> None:
    with serving(over_tls) as server:
        assert b"sits_things_total 3" in get(server, tls=client(files))[2]


def test_the_end_of_an_answer_over_tls_is_told_so_that_a_cut_one_is_noticed(
    over_tls: Agent, files: dict[str, Certificate]
) -> None:
    with (
        serving(over_tls) as server,
        socket.create_connection(("127.0.0.1", server.port or 0)) as raw,
    ):
        context = client(files)
        with context.wrap_socket(
            raw, server_hostname="localhost", suppress_ragged_eofs=False
        ) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            received = b""
            while more := sock.recv(4096):
                received += more
    assert received.endswith(b"sitsd: /metrics /healthz\n")


def test_a_client_that_speaks_no_tls_gets_nothing_and_harms_nobody(
    over_tls: Agent, files: dict[str, Certificate]
) -> None:
    with serving(over_tls) as server:
        with connected(server) as raw:
            raw.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            received = b""
            try:
                while more := raw.recv(4096):
                    received += more
            except ConnectionResetError:
                pass
        assert b"sits_things" not in received
        assert get(server, tls=client(files))[0] == 200


def test_a_handshake_that_does_not_come_holds_its_own_connection_only(
    over_tls: Agent, files: dict[str, Certificate], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 0.5)
    with serving(over_tls) as server:
        silent = [connected(server) for _ in range(20)]
        try:
            assert get(server, tls=client(files))[0] == 200
            assert [each.recv(1) for each in silent] == [b""] * 20
        finally:
            for each in silent:
                each.close()


def test_an_old_tls_is_refused(over_tls: Agent, files: dict[str, Certificate]) -> None:
    old = client(files)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with serving(over_tls) as server, pytest.raises(ssl.SSLError):
        get(server, tls=old)


def test_a_renewed_certificate_is_served_without_a_restart(
    over_tls: Agent, files: dict[str, Certificate]
) -> None:
    assert over_tls.metrics_tls_cert is not None
    assert over_tls.metrics_tls_key is not None
    with serving(over_tls) as server:
        assert served_name(server, client(files)) == "server"
        shutil.copy(files["renewed"].key, over_tls.metrics_tls_key)
        shutil.copy(files["renewed"].cert, over_tls.metrics_tls_cert)
        assert served_name(server, client(files)) == "renewed"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("-----BEGIN CERTIFICATE-----\nhalf"),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_renewal_that_does_not_hold_leaves_the_old_certificate_in_force(
    over_tls: Agent, files: dict[str, Certificate], spoil: Callable[[Path], object]
) -> None:
    assert over_tls.metrics_tls_cert is not None
    with serving(over_tls) as server:
        spoil(over_tls.metrics_tls_cert)
        assert served_name(server, client(files)) == "server"


def served_name(server: HttpServer, context: ssl.SSLContext) -> str:
    with (
        connected(server) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as sock,
    ):
        shown: Any = sock.getpeercert()
        return str(dict(pair for (pair,) in shown["subject"])["commonName"])


@pytest.mark.parametrize(("who", "let_in"), [(None, False), ("stranger", False), ("client", True)])
def test_with_a_clients_authority_only_those_it_signed_read_them(
    over_tls: Agent, files: dict[str, Certificate], who: str | None, let_in: bool
) -> None:
    agent = replace(over_tls, metrics_tls_client_ca=files["ours"].cert)
    with serving(agent) as server:
        if let_in:
            assert get(server, tls=client(files, who))[0] == 200
        else:
            # in TLS 1.3 the client learns of it when it reads
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                get(server, tls=client(files, who))


def test_a_start_with_a_key_of_another_certificate_is_refused(
    over_tls: Agent, files: dict[str, Certificate]
) -> None:
    wrong = replace(over_tls, metrics_tls_key=files["renewed"].key)
    with pytest.raises(
        HttpError, match=r"^could not load TLS certificate '.*': key values mismatch"
    ):
        serving(wrong)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(
    over_tls: Agent, tmp_path: Path
) -> None:
    locked, key = tmp_path / "locked.key", str(over_tls.metrics_tls_key)
    subprocess.run(
        ("openssl", "ec", "-aes256", "-passout", "pass:x", "-out", locked, "-in", key),
        check=True,
        capture_output=True,
        timeout=60,
    )
    with pytest.raises(HttpError, match="the key is encrypted"):
        serving(replace(over_tls, metrics_tls_key=locked))


def test_who_has_a_password_reads_them(with_users: Agent) -> None:
    with serving(with_users) as server:
        assert b"sits_things_total 3" in get(server, headers=basic("scraper", PASSWORD))[2]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("scraper", "wrong"),
        basic("somebody", PASSWORD),
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Basic /w=="},
        {"Authorization": "Basic " + "A" * 4096},
    ],
)
def test_who_has_none_is_asked_for_it_and_reads_nothing(
    with_users: Agent, headers: dict[str, str]
) -> None:
    with serving(with_users) as server:
        status, answered, content = get(server, headers=headers)
    assert status == 401
    assert answered["WWW-Authenticate"] == 'Basic realm="sitsd", charset="UTF-8"'
    assert b"sits_things" not in content


def test_a_probe_without_a_password_learns_only_whether_all_is_well(with_users: Agent) -> None:
    ok = True
    with serving(with_users, lambda: (ok, {"problems": ["secret"]})) as server:
        assert (get(server, "/healthz")[0], get(server, "/healthz")[2]) == (200, b"200\n")
        ok = False
        assert (get(server, "/healthz")[0], get(server, "/healthz")[2]) == (503, b"503\n")
        assert b"secret" in get(server, "/healthz", headers=basic("scraper", PASSWORD))[2]


def test_guessing_is_slow_and_does_not_keep_a_known_scraper_waiting(with_users: Agent) -> None:
    with serving(with_users) as server:
        right = basic("scraper", PASSWORD)
        assert get(server, headers=right)[0] == 200
        tried: list[int] = []

        def guess() -> None:
            tried.append(get(server, headers=basic("scraper", f"{threading.get_ident()}"))[0])

        guesses = [threading.Thread(target=guess) for _ in range(4)]
        began = time.monotonic()
        for each in guesses:
            each.start()
        known = 0
        while any(each.is_alive() for each in guesses):
            known += get(server, headers=right)[0] == 200
        took = time.monotonic() - began
    assert tried == [401] * 4
    # three of the four waited for the one before
    assert took >= 3 * 0.5
    assert known > 1


def test_another_password_counts_at_once_and_the_old_one_no_more(with_users: Agent) -> None:
    assert with_users.metrics_users is not None
    with serving(with_users) as server:
        assert get(server, headers=basic("scraper", PASSWORD))[0] == 200
        with_users.metrics_users.write_text(user_line("scraper", "new") + "\n")
        assert get(server, headers=basic("scraper", PASSWORD))[0] == 401
        assert get(server, headers=basic("scraper", "new"))[0] == 200


@pytest.mark.parametrize("content", ["", "nonsense\n", "scraper:scrypt:14:8:1:AAAA\n"])
def test_a_file_that_does_not_hold_leaves_the_old_users_in_force(
    with_users: Agent, content: str
) -> None:
    assert with_users.metrics_users is not None
    with serving(with_users) as server:
        with_users.metrics_users.write_text(content)
        assert get(server, headers=basic("scraper", PASSWORD))[0] == 200


def test_a_start_with_a_users_file_that_does_not_hold_is_refused(with_users: Agent) -> None:
    assert with_users.metrics_users is not None
    with_users.metrics_users.write_text("scraper:open sesame\n")
    with pytest.raises(HttpError) as caught:
        serving(with_users)
    assert "line 1: not NAME:scrypt:LOG2_N:R:P:SALT:HASH" in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_tls_and_passwords_go_together(
    over_tls: Agent, with_users: Agent, files: dict[str, Certificate]
) -> None:
    agent = replace(over_tls, metrics_users=with_users.metrics_users)
    with serving(agent) as server:
        assert get(server, tls=client(files))[0] == 401
        assert get(server, tls=client(files), headers=basic("scraper", PASSWORD))[0] == 200


CERT = {"metrics_tls_cert": Path("/cert"), "metrics_tls_key": Path("/key")}
USERS = {"metrics_users": Path("/users")}


@pytest.mark.parametrize(
    ("address", "more", "ok", "words"),
    [
        ("127.0.0.1:9464", {}, True, "in the clear to whoever asks on this machine"),
        ("[::1]:9464", {}, True, "in the clear to whoever asks on this machine"),
        ("localhost:9464", {}, True, "in the clear to whoever asks on this machine"),
        ("0.0.0.0:9464", {}, False, "in the clear to whoever asks"),
        ("[::]:9464", {}, False, "in the clear to whoever asks"),
        ("node.example:9464", {}, False, "in the clear to whoever asks"),
        ("0.0.0.0:9464", USERS, False, "in the clear to those with a password"),
        ("0.0.0.0:9464", CERT, True, "over TLS to whoever asks"),
        ("0.0.0.0:9464", CERT | USERS, True, "over TLS to those with a password"),
        (
            "0.0.0.0:9464",
            CERT | {"metrics_tls_client_ca": Path("/ca")},
            True,
            "over TLS to clients with a certificate",
        ),
    ],
)
def test_the_doctor_says_who_can_read_the_metrics(
    address: str, more: dict[str, Any], ok: bool, words: str
) -> None:
    found = exposure(Agent(metrics_address=address, **more))
    assert (found["ok"], bool(found["cost"])) == (ok, not ok)
    assert found["detail"] == f"served at {address} {words}"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    # one that has answered may still be on its way out
    for each in threading.enumerate():
        if "http" in each.name:
            each.join(5)
    assert [each.name for each in threading.enumerate() if "http" in each.name] == []
