"""Where the plug-in's socket and page are, by the environment of the vLLM server."""

import grp
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SOCKET: Final = "SITS_ADMIN_SOCKET"
GROUP: Final = "SITS_ADMIN_GROUP"
DEFAULT_SOCKET: Final = Path("/run/vllm/admin.sock")
"""Not below the agent's own directory, which systemd removes when the agent stops."""


def socket_path(environment: Mapping[str, str], rank: int) -> Path:
    """The admin socket of a data-parallel rank: as set, from rank 1 on with `-RANK` in its name."""
    path = Path(environment.get(SOCKET) or DEFAULT_SOCKET)
    return path.with_stem(f"{path.stem}-{rank}") if rank else path


def page_path(socket: Path) -> Path:
    """The stats page beside a socket: `admin.sock` has `admin.page`."""
    return socket.with_suffix(".page")


def admin_gid(environment: Mapping[str, str]) -> int | None:
    """The group admitted beside root and the server's own user; `KeyError` if there is none."""
    group = environment.get(GROUP)
    if not group:
        return None
    return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
