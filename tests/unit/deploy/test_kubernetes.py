"""The manifest for nodes without systemd: what it asks for, held against unit, policy and image.

It is read here, not run: there is no cluster.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.policy import load_policy

PROJECT = Path(__file__).parents[3]
FOLDER = PROJECT / "deploy/kubernetes"


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """The manifest's objects by their kind."""
    text = (FOLDER / "daemonset.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def pod(documents: dict[str, Any]) -> dict[str, Any]:
    """What each node runs."""
    spec: dict[str, Any] = documents["DaemonSet"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The agent."""
    (found,) = pod["containers"]
    assert isinstance(found, dict)
    return found


def test_all_of_it_is_in_one_namespace(documents: dict[str, Any]) -> None:
    assert documents.keys() == {"Namespace", "ConfigMap", "DaemonSet"}
    name = documents["Namespace"]["metadata"]["name"]
    assert {documents[kind]["metadata"]["namespace"] for kind in ("ConfigMap", "DaemonSet")} == {
        name
    }


def test_the_pods_are_those_that_it_selects(documents: dict[str, Any]) -> None:
    spec = documents["DaemonSet"]["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_two_agents_never_meet_on_a_node(documents: dict[str, Any]) -> None:
    strategy = documents["DaemonSet"]["spec"]["updateStrategy"]
    assert strategy["rollingUpdate"]["maxSurge"] == 0


def test_the_policy_holds_and_observes(documents: dict[str, Any], tmp_path: Path) -> None:
    (text,) = documents["ConfigMap"]["data"].values()
    path = tmp_path / "policy.toml"
    path.write_text(text)
    assert load_policy(path).mode == "observe"


def test_the_metrics_port_is_the_policys(
    documents: dict[str, Any], container: dict[str, Any]
) -> None:
    policy = tomllib.loads(documents["ConfigMap"]["data"]["policy.toml"])
    (port,) = container["ports"]
    assert policy["agent"]["metrics_address"].endswith(f":{port['containerPort']}")
    annotations = documents["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])


def test_processes_are_the_nodes_and_nothing_else_of_it_is_shared(pod: dict[str, Any]) -> None:
    assert pod["hostPID"] is True
    assert not {"hostNetwork", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False


def test_it_has_the_units_capabilities_and_one_more(container: dict[str, Any]) -> None:
    unit = (PROJECT / "systemd/sitsd.service").read_text()
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    granted = {name.removeprefix("CAP_") for line in lines for name in line.split()}
    context = container["securityContext"]
    assert set(context["capabilities"]["add"]) == granted | {"SYS_ADMIN"}
    assert context["capabilities"]["drop"] == ["ALL"]


def test_it_is_not_privileged_and_its_root_is_not_written(container: dict[str, Any]) -> None:
    context = container["securityContext"]
    assert (context["privileged"], context["allowPrivilegeEscalation"]) == (False, False)
    assert context["readOnlyRootFilesystem"] is True
    assert context["seccompProfile"]["type"] == "RuntimeDefault"


def test_every_mount_has_its_volume_and_all_that_is_needed_is_mounted(
    pod: dict[str, Any], container: dict[str, Any]
) -> None:
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    assert {"/etc/sits", "/run/sits", "/var/lib/sits", "/sys/fs/bpf", "/sys/fs/cgroup"} <= set(
        mounts.values()
    )
    of_the_node = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in pod["volumes"]
        if "hostPath" in volume
    }
    assert of_the_node == {name: mounts[name] for name in of_the_node}


def test_the_image_has_the_command_and_the_projects_version(container: dict[str, Any]) -> None:
    docker = (FOLDER / "Dockerfile").read_text()
    assert f'ENTRYPOINT ["{container["command"][-1]}"]' in docker
    version = re.search(r"^version = (.+)$", (PROJECT / "setup.cfg").read_text(), re.MULTILINE)
    assert version
    assert container["image"] == f"sits:{version[1]}"
    assert f"-t {container['image']} " in docker
