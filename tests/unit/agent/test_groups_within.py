from pathlib import Path

import pytest

from agent.groups_within import Pod, pod_of, pods_below, units_below

UID = "0f0e-11"


@pytest.mark.parametrize(
    ("path", "pod"),
    [
        ("/kubepods/besteffort/pod0f0e-11", Pod("besteffort", UID)),
        ("/kubepods/burstable/pod0f0e-11", Pod("burstable", UID)),
        ("/kubepods/pod0f0e-11", Pod("guaranteed", UID)),
        ("/kubelet/kubepods/besteffort/pod0f0e-11", Pod("besteffort", UID)),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0f0e_11.slice",
            Pod("besteffort", UID),
        ),
        ("/kubepods.slice/kubepods-pod0f0e_11.slice", Pod("guaranteed", UID)),
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
            "/kubelet-kubepods-burstable-pod0f0e_11.slice",
            Pod("burstable", UID),
        ),
        ("/kubepods/besteffort/pod9d4e3c", Pod("besteffort", "9d4e3c")),
        ("/kubepods/besteffort/pod0f0e-11/4be1", None),
        ("/kubepods/besteffort", None),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0f0e_11.slice"
            "/cri-containerd-4be1.scope",
            None,
        ),
        ("/podman", None),
        ("/pod1", None),
        ("/batch/besteffort/pod1", None),
        ("/system.slice/a-kubepods-besteffort-pod.slice", None),
    ],
)
def test_a_pod_is_known_by_its_cgroup_and_nothing_else_is(path: str, pod: Pod | None) -> None:
    assert pod_of(path) == pod


def make(top: Path, *paths: str) -> None:
    for path in paths:
        (top / path).mkdir(parents=True)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("kubepods/besteffort/poda", "kubepods/burstable/podb"),
        ("k8s/kubepods/besteffort/poda", "k8s/kubepods/podb"),
        (
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda.slice",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb.slice",
        ),
    ],
)
def test_the_pods_of_a_class_are_found_and_no_others(
    tmp_path: Path, first: str, other: str
) -> None:
    make(tmp_path, f"{first}/container", other, "system.slice/besteffort.service/poda")
    assert list(pods_below(tmp_path, "besteffort")) == [("a", f"/{first}")]


def test_a_slice_has_its_units_and_those_of_the_slices_below_it(tmp_path: Path) -> None:
    make(
        tmp_path,
        "batch.slice/etl.service/worker.service",
        "batch.slice/run-1.scope",
        "batch.slice/batch-night.slice/copy.service",
        "batch.slice/lost+found",
        "system.slice/ssh.service",
    )
    assert list(units_below(tmp_path, tmp_path / "batch.slice")) == [
        ("copy.service", "/batch.slice/batch-night.slice/copy.service"),
        ("etl.service", "/batch.slice/etl.service"),
        ("run-1.scope", "/batch.slice/run-1.scope"),
    ]


def test_a_slice_that_is_gone_has_none(tmp_path: Path) -> None:
    assert list(units_below(tmp_path, tmp_path / "batch.slice")) == []
