import subprocess
from pathlib import Path

import pytest

from bpf.loader import OBJECT_DIR
from tests.gate.programs import object_instructions


@pytest.mark.parametrize("path", sorted(OBJECT_DIR.glob("*.bpf.o")), ids=lambda path: path.name)
def test_an_objects_instructions_are_those_of_the_sections_that_binutils_calls_executable(
    path: Path,
) -> None:
    listed = subprocess.run(
        ["readelf", "-SW", str(path)], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.rpartition("]")[2].split() for line in listed.splitlines()]
    # name, type, address, offset, size, entry size, flags …
    sizes = [int(row[4], 16) for row in rows if len(row) > 7 and "X" in row[6]]
    assert sizes
    assert object_instructions(path) == sum(sizes) // 8
