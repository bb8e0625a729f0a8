"""The policy's [otel] table: what it takes, and that its secrets stay inside."""

import pytest

from controller.policy import Otel, PolicyError, parse_policy, policy_from_json, policy_to_json
from controller.policy_tables import HIDDEN

SECRET = "Bearer 3cQ7"
FULL = f"""
[otel]
endpoint = "https://otel.example:4318/in"
protocol = "http"
sample_ratio = 1
max_queue = 10
timeout_ms = 250
headers = {{ authorization = "{SECRET}" }}
resource = {{ "deployment.environment.name" = "test" }}
"""


def refusal(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p")
    return str(caught.value)


def test_every_key_is_read() -> None:
    assert parse_policy(FULL, "p").otel == Otel(
        endpoint="https://otel.example:4318/in",
        protocol="http",
        sample_ratio=1.0,
        max_queue=10,
        timeout_ms=250,
        headers={"authorization": SECRET},
        resource={"deployment.environment.name": "test"},
    )


def test_without_an_endpoint_it_is_off() -> None:
    assert parse_policy("", "p").otel.endpoint is None


def test_header_values_reach_another_process_and_are_not_shown() -> None:
    policy = parse_policy(FULL, "p")
    assert policy_from_json(policy_to_json(policy)) == policy
    assert policy.as_dict()["otel"]["headers"] == {"authorization": HIDDEN}
    assert SECRET not in str(policy.as_dict())
    assert SECRET not in repr(policy)


@pytest.mark.parametrize(
    "line",
    [
        f'headers = "authorization: {SECRET}"',
        f'headers = {{ Authorization = "{SECRET}" }}',
        f'headers = {{ authorization = "{SECRET}\\n" }}',
        f'headers = {{ "a b" = "{SECRET}" }}',
        f'headers = {{ "grpc-timeout" = "{SECRET}" }}',
        f'headers = {{ "key-bin" = "{SECRET}" }}',
        f'headers = {{ a = ["{SECRET}"] }}',
        'headers = { a = "" }',
        f'endpoint = "http://user:{SECRET}@host:4317"',
        f'endpoint = "http://host:4317?key={SECRET}"',
    ],
)
def test_a_refusal_does_not_repeat_what_may_be_secret(line: str) -> None:
    said = refusal(f"[otel]\n{line}\n")
    assert said.startswith("p:2: otel.")
    assert SECRET not in said


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "collector:4317",
        "//c:1",
        "ftp://c:1",
        "http://",
        "http://c:0",
        "http://c:x",
        "http://c d",
    ],
)
def test_what_is_no_address_of_a_server_is_refused(endpoint: str) -> None:
    assert "otel.endpoint: must be a URL" in refusal(f'[otel]\nendpoint = "{endpoint}"\n')


@pytest.mark.parametrize("endpoint", ["http://[::1]:4317", "https://c", "http://c:4317/"])
def test_addresses_of_servers_are_kept_as_they_are(endpoint: str) -> None:
    assert parse_policy(f'[otel]\nendpoint = "{endpoint}"\n', "p").otel.endpoint == endpoint


def test_grpc_has_no_path() -> None:
    said = refusal('[otel]\nendpoint = "http://c:4317/v1/traces"\n')
    assert said == "p:2: otel.endpoint: must have no path over gRPC"


def test_a_resource_attribute_is_a_text() -> None:
    assert "otel.resource: must be a table of strings" in refusal("[otel]\nresource = { a = 1 }\n")
