import io
import os
import stat
import subprocess
import tarfile
from pathlib import Path

from tests.vm.rig import disk


def tar_disk(path: Path, members: dict[str, bytes | tarfile.TarInfo]) -> None:
    """Write a raw disk as the guest does: a tar at its start, zeros after it."""
    disk.blank(path)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members.items():
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                tar.addfile(content)
    with path.open("r+b") as raw:
        raw.write(packed.getvalue())


def link(name: str, target: str) -> tarfile.TarInfo:
    """Return a symbolic link as a tar member."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_results_come_back_with_their_directories(tmp_path: Path) -> None:
    tar_disk(tmp_path / "raw", {"./a.txt": b"one", "./deep/b.txt": b"two"})
    disk.unpack(tmp_path / "raw", tmp_path / "out")
    assert (tmp_path / "out/a.txt").read_bytes() == b"one"
    assert (tmp_path / "out/deep/b.txt").read_bytes() == b"two"


def test_a_disk_never_written_holds_no_results(tmp_path: Path) -> None:
    disk.blank(tmp_path / "raw")
    disk.unpack(tmp_path / "raw", tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_results_cut_short_come_back_as_far_as_they_got(tmp_path: Path) -> None:
    tar_disk(tmp_path / "raw", {"a": b"1", "b": bytes(5000)})
    os.truncate(tmp_path / "raw", 3000)
    disk.unpack(tmp_path / "raw", tmp_path / "out")
    assert (tmp_path / "out/a").read_bytes() == b"1"


def test_nothing_is_written_outside_the_results(tmp_path: Path) -> None:
    inside = tmp_path / "out"
    tar_disk(
        tmp_path / "raw",
        {
            "../escaped": b"1",
            str(tmp_path / "absolute"): b"2",
            "door": link("door", str(tmp_path)),
            "door/through": b"3",
        },
    )
    disk.unpack(tmp_path / "raw", inside)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "raw"]
    assert not (inside / "door").is_symlink()


def test_a_directory_becomes_a_file_system_with_its_contents(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep/file").write_bytes(os.urandom(100_000))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("deep/file")
    disk.ext4(source, tmp_path / "image")
    dumped = tmp_path / "dumped"
    dumped.mkdir()
    subprocess.run(
        ["/usr/sbin/debugfs", "-R", f"rdump / {dumped}", tmp_path / "image"],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert (dumped / "deep/file").read_bytes() == (source / "deep/file").read_bytes()
    assert (dumped / "link").readlink() == Path("deep/file")
    assert stat.S_IMODE((dumped / "run").stat().st_mode) == 0o755
