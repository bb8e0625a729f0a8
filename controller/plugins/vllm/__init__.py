"""The vLLM plug-in: vLLM's own scheduler, serving the engine contract from inside EngineCore.

Standard library only, and Python 3.10. It is started with `--scheduler-cls sits_vllm.Scheduler`
from the zip that `sitsctl engine-plugin vllm` writes; vLLM is imported only when it calls.
"""

from controller.plugins.vllm.scheduler import Scheduler

__all__ = ["Scheduler"]
