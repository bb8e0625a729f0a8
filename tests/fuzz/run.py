"""`make fuzz`: atheris on every target for some seconds each, from the corpus beside this file.

New inputs are kept only while it runs; what a target fails on is written to build/fuzz/TARGET-…,
to be put into the corpus, where `tests/unit/fuzz` tries it from then on.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
FOUND: Final = Path("build/fuzz")
SECONDS: Final = 8
MAX_INPUT_BYTES: Final = 4096
MAX_INPUT_S: Final = 10
MAX_MEMORY_MB: Final = 1024


def main() -> int:
    """Fuzz the targets that are named, or all of them; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="which targets; without any, all")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="how long each")
    parser.add_argument("--one", metavar="TARGET", help="fuzz this target in this process")
    options = parser.parse_args()
    if options.one is not None:
        fuzz(options.one, options.seconds)
        return 0
    names = options.targets or sorted(path.name for path in CORPUS.iterdir() if path.is_dir())
    return max([each_target(name, options.seconds) for name in names])


def each_target(name: str, seconds: int) -> int:
    """Fuzz a target in a process of its own, which may crash; says what came of it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", "--one", name, "--seconds", str(seconds)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds + 120,
    )
    said = done.stdout + done.stderr
    runs = re.search(r"Done (\d+) runs in (\d+) second", said)
    if done.returncode == 0 and runs is not None:
        print(f"fuzz: {name}: {runs[1]} inputs in {runs[2]} s, no fault", flush=True)
        return 0
    print(f"fuzz: {name} failed:\n{said[-4000:]}", flush=True)
    return 1


def fuzz(name: str, seconds: int) -> None:
    """Fuzz one target here; libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(
        include=["agent", "controller", "tomllib", "json", "http", "wsgiref", "email"]
    ):
        from tests.fuzz.targets import TARGETS

    FOUND.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as fresh:
        arguments = [
            f"-max_total_time={seconds}",
            f"-max_len={MAX_INPUT_BYTES}",
            f"-timeout={MAX_INPUT_S}",
            f"-rss_limit_mb={MAX_MEMORY_MB}",
            f"-artifact_prefix={FOUND}/{name}-",
        ]
        atheris.Setup(
            [sys.argv[0], fresh, str(CORPUS / name), *arguments],
            TARGETS[name],
            enable_python_coverage=True,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
