import pytest

from controller.limits.protected import Kept, why_path

KEPT = Kept(
    own=frozenset({"/", "/system.slice/sits.service"}),
    engines=frozenset({"/llm.slice/vllm.service"}),
)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/init.scope",
        "/user.slice/user-1000.slice/user@1000.service/init.scope",
        "/system.slice",
        "/system.slice/systemd-journald.service",
        "/system.slice/systemd-udevd.service/udev",
        "/system.slice/dbus.service",
        "/system.slice/ssh.service",
        "/system.slice/sshd.service",
        "/system.slice/sshd@0-10.0.0.1:22-10.0.0.2:50000.service",
        "/system.slice/system-getty.slice/getty@tty1.service",
        "/system.slice/NetworkManager.service",
        "/system.slice/kubelet.service",
        "/system.slice/containerd.service",
        "/system.slice/docker.service",
        "/system.slice/crio.service",
        "/system.slice/sits.service",
        "/system.slice/sits.service/child",
        "/llm.slice",
        "/llm.slice/vllm.service",
        "/llm.slice/vllm.service/worker",
    ],
)
def test_what_keeps_the_machine_alive_or_holds_an_engine_is_protected(path: str) -> None:
    assert why_path(path, KEPT)


@pytest.mark.parametrize(
    "path",
    [
        "/system.slice/backup.service",
        "/system.slice/docker-4be1.scope",
        "/system.slice/containerd.service/kubepods-besteffort-pod1.slice",
        "/batch.slice",
        "/batch.slice/systemd-lookalike.service",
        "/llm.slice/other.service",
        "/llm.slice/vllm.service2",
        "/kubepods/besteffort/pod1",
        "/user.slice/user-1000.slice/session-3.scope",
    ],
)
def test_what_only_looks_like_it_is_not(path: str) -> None:
    assert why_path(path, KEPT) is None


def test_the_reason_says_who_would_be_held_too() -> None:
    assert why_path("/llm.slice", KEPT) == "an engine runs in it"
    assert why_path("/llm.slice/vllm.service/worker", KEPT) == (
        "it is a part of the cgroup of an engine"
    )
