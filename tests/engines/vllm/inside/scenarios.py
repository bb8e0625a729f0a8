"""What the plug-in does in situations that a served model does not come into by itself.

    python scenarios.py MODEL NAME…

Prints one JSON object: by scenario, what was seen.
"""

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core import Core, configuration

MODEL = sys.argv[1]


def place() -> Path:
    """A socket of its own for the scheduler that is made next."""
    path = Path(tempfile.mkdtemp()) / "admin.sock"
    os.environ["SITS_ADMIN_SOCKET"] = str(path)
    return path


def call(path: Path, name: str, **fields: Any) -> Any:
    """One call of the contract."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(json.dumps({"id": 1, "call": name, **fields}).encode() + b"\n")
        return json.loads(sock.makefile().readline())


def take(path: Path, values: dict[str, int], lease_ms: int = 10_000) -> Any:
    """The lease, with these values."""
    epoch = call(path, "get")["epoch"] + 1
    return call(path, "set", owner="test", epoch=epoch, lease_ms=lease_ms, values=values)


def now(path: Path) -> Any:
    """The page's figures."""
    return call(path, "stats")["now"]


def flavour(*, ahead: bool) -> dict[str, Any]:
    """One flavour under knobs that move all the time, with clients that go away."""
    path = place()
    core = Core(configuration(MODEL), ahead=ahead)
    names = [core.add(100 + number, 20) for number in range(40)]
    settings = (
        {"max_running": 3, "max_batched_tokens": 16, "long_prefill_tokens": 8},
        {"max_running": 64, "max_batched_tokens": 2048, "ttft_deadline_ms": 1},
        {"max_running": 10, "max_batched_tokens": 64, "ttft_deadline_ms": 0},
    )
    most = steps = 0
    while core.scheduler.has_requests():
        if steps % 7 == 0:
            take(path, settings[steps // 7 % 3])
        if steps == 30:
            core.abort(names[0])
            core.abort(names[-1])
        core.step()
        most = max(most, len(core.scheduler.running))
        steps += 1
    core.settle()
    bases = [base.__name__ for base in type(core.scheduler).__mro__]
    shown = now(path)
    core.scheduler.shutdown()
    return {
        "base": bases[1],
        "finished": len(core.finished),
        "page": shown,
        "left": path.exists(),
    }


def plain_flavour() -> dict[str, Any]:
    return flavour(ahead=False)


def ahead_flavour() -> dict[str, Any]:
    return flavour(ahead=True)


def in_force() -> dict[str, Any]:
    """A change is pending while a step is under way, and in force at once without one."""
    path = place()
    core = Core(configuration(MODEL))
    idle = take(path, {"max_running": 5})["state"]
    core.add(10, 5)
    plan = core.scheduler.schedule()
    under_way = take(path, {"max_running": 4, "max_batched_tokens": 512})
    budget = core.scheduler.max_num_scheduled_tokens
    core._in_flight.append((plan, ["r0"]))
    core.settle()
    core.step()
    after = call(path, "get")
    core.run()
    return {
        "idle": idle,
        "under_way": under_way["state"],
        "budget_under_way": budget,
        "after": after["state"],
        "cap_after": core.scheduler.max_num_active_reqs,
        "budget_after": core.scheduler.max_num_scheduled_tokens,
    }


def priorities() -> dict[str, Any]:
    """A queue in the order of users' priorities is not ours to order."""
    path = place()
    core = Core(configuration(MODEL, scheduling_policy="priority"))
    core.add(10, 3)
    core.run()
    return {"knobs": sorted(call(path, "hello")["knobs"]), "finished": len(core.finished)}


def preemption() -> dict[str, Any]:
    """More requests than the KV cache holds."""
    path = place()
    core = Core(configuration(MODEL, max_model_len=256), blocks=40)
    for _ in range(12):
        core.add(60, 100)
    take(path, {"ttft_deadline_ms": 1000})
    core.run()
    return {"finished": len(core.finished), "page": now(path)}


def failure() -> dict[str, Any]:
    """The plug-in fails in the middle of a step, under a lease."""
    path = place()
    core = Core(configuration(MODEL))
    take(path, {"max_running": 2, "ttft_deadline_ms": 5})
    for number in range(6):
        core.add(50 + number, 10)
    core.step()
    core.scheduler._sits.prompts.begun = None
    core.run()
    state = call(path, "get")
    return {
        "finished": len(core.finished),
        "values": state["values"] == state["start"],
        "owner": state["owner"],
        "refused": take(path, {"max_running": 2}).get("error"),
        "cap": core.scheduler.max_num_active_reqs,
    }


def failing_order() -> dict[str, Any]:
    """The order of the queue fails while vLLM plans a step."""
    path = place()
    core = Core(configuration(MODEL))
    take(path, {"max_running": 1, "ttft_deadline_ms": 5})
    for number in range(6):
        core.add(50 + number, 4)
    core.step()
    core.scheduler._sits.turns._requests = None
    core.run()
    return {"finished": core.finished, "refused": take(path, {})["error"]["code"]}


def stuck() -> dict[str, Any]:
    """Slots held by paused sessions reach the lowered cap: vLLM admits nobody any more."""
    path = place()
    core = Core(configuration(MODEL))
    take(path, {"max_running": 2})
    core.scheduler.num_waiting_for_streaming_input = 2
    core.add(10, 3)
    began = time.monotonic()
    while not core.finished and time.monotonic() - began < 30:
        if int((time.monotonic() - began) * 10) % 20 == 0:
            take(path, {})
        core.step()
        time.sleep(0.01)
    state = call(path, "get")
    return {
        "finished": len(core.finished),
        "seconds": time.monotonic() - began,
        "cap": core.scheduler.max_num_active_reqs,
        "owner": state["owner"],
    }


def ranks() -> dict[str, Any]:
    """Two data-parallel ranks of one server."""
    path = place()
    config = configuration(MODEL)
    first = Core(config)
    config.parallel_config.data_parallel_index = 1
    second = Core(config)
    made = sorted(each.name for each in path.parent.iterdir())
    pages = [call(each, "hello")["page"] for each in (path, path.with_name("admin-1.sock"))]
    for core in (first, second):
        core.scheduler.shutdown()
    return {
        "made": made,
        "pages": [Path(page).name for page in pages],
        "left": [each.name for each in path.parent.iterdir()],
    }


def graphs() -> dict[str, Any]:
    """The batch sizes that vLLM would capture graphs for."""
    path = place()
    config = configuration(MODEL)
    from vllm.config import CUDAGraphMode

    config.compilation_config.cudagraph_mode = CUDAGraphMode.PIECEWISE
    config.compilation_config.cudagraph_capture_sizes = [8, 1, 2, 4]
    core = Core(config)
    core.add(5, 2)
    core.run()
    return {"sizes": call(path, "hello")["graph_sizes"]}


def nowhere() -> dict[str, Any]:
    """The directory of the socket can't be made, and the group does not exist."""
    seen = {}
    for name, path, group in (
        ("no directory", "/proc/nowhere/admin.sock", ""),
        ("read only", f"{os.environ['READ_ONLY']}/admin.sock", ""),
        ("no group", f"{tempfile.mkdtemp()}/admin.sock", "no-such-group"),
    ):
        os.environ["SITS_ADMIN_SOCKET"], os.environ["SITS_ADMIN_GROUP"] = path, group
        core = Core(configuration(MODEL))
        for number in range(5):
            core.add(40 + number, 6)
        core.run()
        seen[name] = {"finished": len(core.finished), "there": core.scheduler._sits is not None}
    os.environ["SITS_ADMIN_GROUP"] = ""
    return seen


def full_disk() -> dict[str, Any]:
    """No room for the page: the socket alone serves."""
    os.environ["SITS_ADMIN_SOCKET"] = f"{os.environ['FULL']}/admin.sock"
    path = Path(os.environ["SITS_ADMIN_SOCKET"])
    core = Core(configuration(MODEL))
    take(path, {"max_running": 2})
    for number in range(5):
        core.add(40 + number, 6)
    core.run()
    shown = now(path)
    return {
        "finished": len(core.finished),
        "page": call(path, "hello")["page"],
        "cap": core.scheduler.max_num_active_reqs,
        "shown": shown["finished_total"],
    }


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    made.__name__: made
    for made in (
        plain_flavour,
        ahead_flavour,
        in_force,
        priorities,
        preemption,
        failure,
        failing_order,
        stuck,
        ranks,
        graphs,
        nowhere,
        full_disk,
    )
}


def main() -> None:
    seen = {name: SCENARIOS[name]() for name in sys.argv[2:] or SCENARIOS}
    print("\n" + json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)  # servers of schedulers that were not shut down still listen


if __name__ == "__main__":
    main()
