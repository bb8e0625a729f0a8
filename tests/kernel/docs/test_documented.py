"""Every command of the documents is typed, against a live sitsd, or it is said what runs it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from bpf.features import Features
from tests.documented import ROOT, all_shown
from tests.kernel.conftest import MakeGroup

from .elsewhere import BENCH, ELSEWHERE, NOT_RUN
from .scene import Scene, scene

OURS: Final = re.compile(
    r"^(?:watch -n1 -c sitsctl |sitsctl |sitsd |eval \"\$\(_SITSCTL_|_SITSCTL_"
    r"|install -D -m 644 /opt/sits/share/)"
)
"""What is typed against a live sitsd."""

CODES: Final = (
    (r"^sitsctl --socket /run/sits/none\.sock ", {3}),
    (r"^(?:watch .*)?sitsctl (?:status|doctor|gpu)\b", {0, 1}),
)
"""How what is typed may end, where that is not 0: with 1 it says what is wrong with the machine."""

IN_CONTROL: Final = re.compile(r"--canary|policy abort")
"""What only makes sense in control mode."""

LINES: Final = sorted({each.line for each in all_shown()})
TYPED: Final = [line for line in LINES if OURS.match(line)]


@pytest.fixture(scope="module")
def live(
    make_cgroup: MakeGroup,
    bpffs: Path,
    features: Features,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Scene]:
    if not features.can_stream:
        pytest.skip(f"this kernel can't follow streams: {features}")
    folder = tmp_path_factory.mktemp("documented")
    with scene(make_cgroup("documented"), folder, bpffs / f"sits-{uuid4().hex[:12]}") as made:
        yield made


@pytest.mark.kernel
@pytest.mark.parametrize("line", TYPED)
def test_what_a_document_says_to_type_works(live: Scene, line: str) -> None:
    live.calm()
    if IN_CONTROL.search(line):
        live.mode("control")
    if line == "sitsctl policy abort":
        assert live.type("sitsctl policy apply new.toml --canary 3m").returncode == 0
    done = live.type(line)
    allowed = next((codes for pattern, codes in CODES if re.match(pattern, line)), {0})
    assert done.returncode in allowed, f"{live.here(line)}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    if line.startswith("sitsctl ") and ">" not in line:
        assert done.stdout + done.stderr


def test_every_other_command_has_its_place_in_the_tables_and_only_once() -> None:
    rest = {line for line in LINES if not BENCH.fullmatch(line)} - set(TYPED)
    assert rest == ELSEWHERE.keys() | NOT_RUN.keys()
    assert ELSEWHERE.keys().isdisjoint(NOT_RUN)


@pytest.mark.parametrize("line", ELSEWHERE)
def test_what_runs_it_elsewhere_is_there(line: str) -> None:
    file, text = ELSEWHERE[line]
    assert text in (ROOT / file).read_text()


def test_a_new_command_would_be_found() -> None:
    assert not OURS.match("kubectl apply -f new.yaml")
    assert len(TYPED) > 60
