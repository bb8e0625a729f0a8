"""The guest's root file system: Debian 12 with systemd, and a unit that runs the payload."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.vm.rig import disk
from tests.vm.rig.apt import host_mirror
from tests.vm.rig.cache import Cache
from tests.vm.rig.command import run

SUITE = "bookworm"
BUILD_S = 600
GUEST_FILES = Path(__file__).parent / "guest_files"

PACKAGES = (
    "bpftool",
    "curl",
    "dbus",
    "iproute2",
    "kmod",
    "libbpf1",
    "procps",
    "python3",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
)

# Not needed by a machine that lives for a minute, and slow in software emulation.
MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "kmod-static-nodes.service",
    "modprobe@.service",
    "serial-getty@ttyS0.service",
    "systemd-binfmt.service",
    "systemd-firstboot.service",
    "systemd-hwdb-update.service",
    "systemd-logind.service",
    "systemd-modules-load.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-remount-fs.service",
    "systemd-sysusers.service",
    "systemd-timesyncd.service",
    "systemd-udev-trigger.service",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that an image is made from; equal recipes make interchangeable images.

    `files` maps a path in the guest to its text and mode.
    """

    suite: str
    packages: tuple[str, ...]
    masked: tuple[str, ...]
    files: dict[str, tuple[str, int]]

    @property
    def digest(self) -> str:
        """Twelve hex digits that name the recipe."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def recipe() -> Recipe:
    """Return the recipe of the image that the rig uses."""
    run_payload = (GUEST_FILES / "run-payload").read_text()
    unit = (GUEST_FILES / "payload.service").read_text()
    files = {
        "etc/hostname": ("rig\n", 0o644),
        "etc/hosts": ("127.0.0.1 localhost rig\n::1 localhost\n", 0o644),
        "etc/fstab": ("", 0o644),
        # With an empty one systemd would take every boot for the first and enable all presets.
        "etc/machine-id": ("5175" * 8 + "\n", 0o444),
        "etc/systemd/journald.conf.d/rig.conf": ("[Journal]\nStorage=volatile\n", 0o644),
        "etc/systemd/system/payload.service": (unit, 0o644),
        "usr/local/sbin/run-payload": (run_payload, 0o755),
    }
    return Recipe(SUITE, PACKAGES, MASKED, files)


def fetch(cache: Cache) -> Path:
    """Return the image of the present recipe, building it if the cache lacks it (needs root)."""
    wanted = recipe()
    entry = cache.build(f"images/{wanted.digest}", lambda into: _make(cache, wanted, into))
    return entry / "root.ext4"


def _make(cache: Cache, wanted: Recipe, into: Path) -> None:
    root = cache.scratch() / "root"
    leave_out = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
    run(
        [
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=minbase",
            f"--include={','.join(wanted.packages)}",
            '--aptopt=APT::Install-Recommends "false"',
            "--dpkgopt=force-unsafe-io",
            *(f"--dpkgopt=path-exclude={pattern}" for pattern in leave_out),
            wanted.suite,
            root,
            host_mirror().line(wanted.suite),
        ],
        timeout_s=BUILD_S,
        env={"TMPDIR": str(cache.work)},
    )
    furnish(root, wanted)
    disk.ext4(root, into / "root.ext4", spare_mib=200)


def furnish(root: Path, wanted: Recipe) -> None:
    """Put the recipe's files, masks and default target into a root file system."""
    for name, (text, mode) in wanted.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
    units = root / "etc/systemd/system"
    wants = units / "multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    links = {units / name: "/dev/null" for name in wanted.masked}
    links[units / "default.target"] = "/lib/systemd/system/multi-user.target"
    links[wants / "payload.service"] = "../payload.service"
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
