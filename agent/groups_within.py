"""Which cgroups below a directory are one neighbour each: a slice's units, a QoS class's pods.

Names are systemd's (systemd.slice(5)) and the kubelet's, whose two cgroup drivers name pods
`/kubepods/besteffort/podUID` and
`/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podUID.slice`, below whatever the
kubelet's `--cgroup-root` is; guaranteed pods have no class in their path. The same names stand in
every hierarchy of v1 and in v2.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_LEVELS: Final = 4
"""How far below the mount the kubelet's cgroups are looked for; its root is seldom deeper."""

_KUBEPODS: Final = re.compile(r"kubepods|(?:[A-Za-z0-9_.]+-)*kubepods\.slice")
_SLICE_POD: Final = re.compile(
    r"(?:[A-Za-z0-9_.]+-)*kubepods(?:-(besteffort|burstable))?-pod([0-9A-Za-z_]+)\.slice"
)
_PLAIN_POD: Final = re.compile(r"pod([0-9A-Za-z_-]+)")
_UNIT: Final = (".service", ".scope")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod by its cgroup: `qos` is besteffort, burstable or guaranteed, `uid` as the API has it.

    Static pods have a hash without dashes.
    """

    qos: str
    uid: str


def pod_of(path: str) -> Pod | None:
    """The pod whose own cgroup `path` is; None for any other, those of its containers included."""
    *parents, last = [part for part in path.split("/") if part]
    named = _SLICE_POD.fullmatch(last)
    if named is not None:
        return Pod(named[1] or "guaranteed", named[2].replace("_", "-"))
    named = _PLAIN_POD.fullmatch(last)
    if named is None or not parents:
        return None
    if parents[-1] in {"besteffort", "burstable"}:
        qos, parents = parents[-1], parents[:-1]
    else:
        qos = "guaranteed"
    return Pod(qos, named[1]) if parents and parents[-1] == "kubepods" else None


def pods_below(top: Path, qos: str) -> Iterator[tuple[str, str]]:
    """Name and path below `top` of each pod of a QoS class, in order."""
    for kubepods in sorted(_kubepods(top)):
        for path in sorted(_directories(kubepods, 2)):
            below = f"/{path.relative_to(top)}"
            pod = pod_of(below)
            if pod is not None and pod.qos == qos:
                yield pod.uid, below


def units_below(top: Path, directory: Path) -> Iterator[tuple[str, str]]:
    """Name and path below `top` of each service and scope in a slice and the slices below it."""
    for path in sorted(_entries(directory)):
        if path.name.endswith(_UNIT):
            yield path.name, f"/{path.relative_to(top)}"
        elif path.name.endswith(".slice"):
            yield from units_below(top, path)


def _kubepods(top: Path) -> Iterator[Path]:
    for path in _directories(top, MOST_LEVELS):
        # a slice's parents are in its name: only the outermost is the kubelet's own
        if _KUBEPODS.fullmatch(path.name) and not _KUBEPODS.fullmatch(path.parent.name):
            yield path


def _directories(top: Path, levels: int) -> Iterator[Path]:
    """All directories at most so many levels below; what is inside a unit is nobody's slice."""
    for path in _entries(top):
        yield path
        if levels > 1 and not path.name.endswith(_UNIT):
            yield from _directories(path, levels - 1)


def _entries(directory: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir()]
    except OSError:
        return []
