"""How a real vLLM is started here: on the CPU, with the tiny model, with the plug-in or without."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent.engine_plugin import bundle
from agent.engine_plugin_command import PLUGINS
from demo.client import PromptText
from demo.stage import EngineKind, Place
from tests.engines.vllm.install import home, install, model, python

SCHEDULER: Final = "--scheduler-cls=sits_vllm.Scheduler"
READY_WITHIN_S: Final = 400.0
"""Half a minute on a machine of its own."""

ENDS_WITHIN_S: Final = 60.0

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
"""No network, a gigabyte of KV cache, one thread of linear algebra."""

_OPTIONS: Final = (
    "--served-model-name=tiny",
    "--load-format=dummy",
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=2048",
)


def write_plugin(directory: Path) -> Path:
    """The plug-in's one file, as `sitsctl engine-plugin vllm` writes it."""
    plugin = PLUGINS["vllm"]
    file = directory / f"{plugin.package}.zip"
    file.write_bytes(bundle(plugin.source, plugin.package))
    return file


def command(
    root: Path,
    port: int,
    options: Sequence[str] = (),
    plugin: Path | None = None,
    admin_socket: Path | None = None,
) -> list[str]:
    """The command line of a server on 127.0.0.1; with a `plugin` it serves at `admin_socket`."""
    variables = dict(ENVIRONMENT)
    if plugin is not None:
        variables |= {"PYTHONPATH": str(plugin), "SITS_ADMIN_SOCKET": str(admin_socket)}
        options = (SCHEDULER, *options)
    return [
        "/usr/bin/env",
        *(f"{name}={value}" for name, value in variables.items()),
        str(python(root)),
        "-W",
        "ignore",
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={model(root)}",
        "--host=127.0.0.1",
        f"--port={port}",
        *_OPTIONS,
        *options,
    ]


def kind(*extra: str) -> EngineKind:
    """vLLM with the plug-in, installed if it is not there, for the demonstration's rig."""

    def made(place: Place, options: Sequence[str]) -> Sequence[str]:
        root = install(home())
        plugin = write_plugin(place.run_dir)
        return command(root, place.port, (*extra, *options), plugin, place.admin_socket)

    return EngineKind(made, PromptText(" w3", 0), READY_WITHIN_S, ENDS_WITHIN_S)
