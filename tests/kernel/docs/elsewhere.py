"""Documented commands that no sitsd of a test can answer, and what runs each of them instead."""

import re
from typing import Final

_SERVICE: Final = "tests/vm/guest/test_service.py"
_JOURNALD: Final = "tests/vm/guest/test_journald.py"
_INSTALLED: Final = (_SERVICE, "def test_one_command_installs_and_starts_nothing")
_ENABLED: Final = (_SERVICE, "def test_a_second_command_has_it_run_and_observe")
_RESTARTED: Final = (_SERVICE, "def test_rounds_of_starts_kills_and_stops_leave_nothing")
_EXCHANGED: Final = (_SERVICE, "def test_upgrade_and_downgrade_under_load")
_REMOVED: Final = (_SERVICE, "def test_removed_it_leaves_what_is_configured_and_purged_nothing")
_CLONE: Final = ("tests/unit/deploy/test_install.py", "def test_installed_from_a_clone_it_runs")
_UNINSTALLED: Final = ("tests/unit/deploy/test_install.py", "def test_uninstalled_it_leaves")
_OPERATORS: Final = (
    "tests/unit/agent/test_roles.py",
    "def test_a_member_of_the_operators_group_operates",
)
_GATE: Final = ("tests/engines/haproxy/test_driver.py", "def test_a_drained_server_hands_over")
_SPANS: Final = ("tests/engines/test_otlp.py", "def test_a_request_and_a_decision_arrive")

ELSEWHERE: Final[dict[str, tuple[str, str]]] = {
    "make demo": ("tests/kernel/demo/test_demo.py", "def test_the_shortest_demo"),
    "make walk": ("tests/kernel/demo/test_walk.py", "def test_a_fault_is_found_within_a_minute"),
    "make test": (".ci/run", "suite test-real"),
    "make test-slow": (".ci/run", "suite test-slow"),
    "make test-vm": (".ci/run", "make test-vm"),
    "make fuzz": (".ci/run", "make fuzz"),
    "make gate": (".ci/run", "make gate"),
    "make engines": (".ci/run", "make engines"),
    "make man": ("tests/unit/docs/test_man.py", "def test_every_command_has_its_page"),
    "make install": _CLONE,
    "make uninstall": _UNINSTALLED,
    "PURGE=1 make uninstall": _UNINSTALLED,
    "make deb && apt install ./build/sits_0.1.0_amd64.deb": _INSTALLED,
    "apt install ./sits_0.1.0_amd64.deb": _INSTALLED,
    "apt install ./sits_….deb": _EXCHANGED,
    "dpkg -i": _EXCHANGED,
    "apt remove sits": _REMOVED,
    "apt purge sits": _REMOVED,
    "apt install python3-bpfcc linux-headers-$(uname -r)": (
        "tests/vm/guest/test_bcc.py",
        "def test_a_kernel_whose_btf_is_hidden_gets_the_bcc_tier",
    ),
    "systemctl enable --now sitsd": _ENABLED,
    "systemctl daemon-reload && systemctl restart sitsd": _RESTARTED,
    "systemctl restart sitsd": _RESTARTED,
    "systemctl reload sitsd": (
        _SERVICE,
        "def test_a_reload_puts_the_new_policy_in_force_in_the_same_process",
    ),
    "systemctl stop sitsd": (_SERVICE, "def test_stopped_it_leaves_no_process_and_is_no_failure"),
    "journalctl -u sitsd SITS_ENGINE=chat SITS_CAUSE=neighbour_cpu": (
        _JOURNALD,
        "def test_events_are_found_by_their_fields",
    ),
    "journalctl -u sitsd -p warning -o json": (_JOURNALD, "def test_a_refusal_is_a_warning"),
    "curl http://127.0.0.1:9464/metrics": (
        _SERVICE,
        "def test_it_is_scraped_and_its_commands_answer",
    ),
    "curl --unix-socket /run/sits/admin.sock http://sits/v1/status": (
        "tests/unit/agent/test_api.py",
        "def test_a_call_answers_what_the_view_says",
    ),
    "usermod -aG sits alice": _OPERATORS,
    "groupadd --system sits-operators && usermod -aG sits,sits-operators alice": _OPERATORS,
    "mount -t bpf bpf /sys/fs/bpf": (
        "tests/vm/guest/test_machine.py",
        "def test_bpf_file_system_is_mounted",
    ),
    "cat /run/sits/undo.json": ("tests/kernel/agent/test_restart.py", "Limiter(site.undo)"),
    "echo 0 > /sys/fs/cgroup/GROUP/cgroup.freeze": (
        "tests/vm/guest/test_limits_files_v2.py",
        "def test_a_frozen_group_uses_no_cpu_and_goes_on_by_itself",
    ),
    "python docs/structure.py": (
        "tests/unit/docs/test_structure.py",
        "def test_the_drawing_is_of_the_code_as_it_is",
    ),
    "sits-adapter haproxy --address /run/haproxy/admin.sock --backend engines"
    " --admin-socket /run/chat.sock --page /run/chat.page --undo-file /run/chat.undo.json": (
        "tests/engines/haproxy/test_adapter.py",
        "def test_a_lease_holds_haproxy_s_values_and_its_end_brings_them_back",
    ),
    "sits-adapter --undo /run/sits/adapters": (
        "tests/engines/haproxy/test_adapter.py",
        "def test_undo_by_hand_brings_the_start_values_back",
    ),
    'echo "set server engines/a state drain" | socat stdio /run/haproxy/admin.sock': _GATE,
    'echo "set server engines/a state ready" | socat stdio /run/haproxy/admin.sock': _GATE,
    'echo "set weight engines/b 50%" | socat stdio /run/haproxy/admin.sock': _GATE,
    "SITS_ADMIN_SOCKET=/run/vllm/admin.sock PYTHONPATH=/opt/sits/sits_vllm.zip"
    " vllm serve MODEL --scheduler-cls sits_vllm.Scheduler": (
        "tests/engines/vllm/launch.py",
        '"--scheduler-cls=sits_vllm.Scheduler"',
    ),
    "tritonserver --model-repository=/models --model-control-mode=explicit --load-model='*'"
    " --disable-auto-complete-config --grpc-address=unix:/run/triton/grpc --grpc-port=1": (
        "tests/engines/triton/server.py",
        '"--model-control-mode=explicit", "--load-model=*"',
    ),
    "python3 -m pip --python /opt/sits/bin/python install 'opentelemetry-sdk'"
    " 'opentelemetry-exporter-otlp-proto-http'": _SPANS,
    "python3 -m pip --python /opt/sits/bin/python install nvidia-ml-py": (
        "tests/unit/agent/gpu/test_gpu.py",
        "def test_every_figure_of_every_gpu_comes_through",
    ),
    "python3 -m pip --python /opt/sits/bin/python install 'tritonclient[grpc]'": (
        "tests/engines/triton/test_adapter.py",
        "def test_",
    ),
}
"""By command: the file that runs it, and what to look for there."""

NOT_RUN: Final[dict[str, str]] = {
    "make gate-record": "writes what `make gate` compares with",
    "systemctl status": "systemd's, about an engine's unit",
    "systemctl status sitsd": "systemd's, and only looks",
    "journalctl -u sitsd": "systemd's, and only looks",
    "journalctl -u sitsd -n 50": "systemd's, and only looks",
    "ssh -L 9464:127.0.0.1:9464 NODE": "ssh's",
    "curl -N": "curl's, about an engine",
    "vmstat 1": "procps', and only looks",
}
"""By command: why no test runs it."""

BENCH: Final = re.compile(r"make (?:bench(-[a-z]+)?|soak)")
"""Benches and the soak take long and want quiet: people run them. Their parts have tests."""
