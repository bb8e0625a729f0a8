"""A libnvidia-ml.so.1 compiled here, which says what a test writes into a file."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("stub_nvml.c")
MIB = 1 << 20


def gpu(
    index: int,
    *,
    util: int = 55,
    used: int = 30_000,
    reasons: int = 0,
    mig: bool = False,
    error: int = 0,
) -> str:
    """A GPU's line: 80,000 MiB, 250 of 400 W, 61 °C."""
    return (
        f"gpu {index} {util} {80_000 * MIB} {used * MIB} 250000 400000 61 {reasons} {mig:d} {error}"
    )


class Stub:
    """The library's directory, and the file it reads."""

    def __init__(self, library: Path, said: Path) -> None:
        self._library, self._said = library, said
        self.say()

    def say(self, *lines: str) -> None:
        """This is what it says from now on."""
        fresh = self._said.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self._said)

    @property
    def environment(self) -> Mapping[str, str]:
        """For a process that is to find it."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self._library),
            "SITS_STUB_NVML": str(self._said),
        }


def compiled(directory: Path) -> Path:
    """The directory, with the library in it."""
    made = directory / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return directory


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def stub(stub_library: Path, tmp_path: Path) -> Stub:
    return Stub(stub_library, tmp_path / "said")
