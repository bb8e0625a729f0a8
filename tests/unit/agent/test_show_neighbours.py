import copy
import io

from rich.console import Console

from agent.show_neighbours import neighbours

from .recorded import BESIDE


def shown(**changed: object) -> str:
    """The first neighbour's line, with these fields other than recorded."""
    answer = copy.deepcopy(BESIDE)
    answer["neighbours"][0] |= changed
    out = io.StringIO()
    Console(file=out, width=100).print(neighbours(answer))
    return out.getvalue().splitlines()[1]


def test_what_is_idle_is_said_beside_what_it_uses() -> None:
    line = shown(quota_cores=None, idle=True)
    assert line.split()[:6] == ["batch", "slo-b", "1.52", "cores,", "idle", "idle"]


def test_a_quota_counts_for_more_than_being_idle() -> None:
    assert shown(idle=True).split()[:7] == [
        "batch",
        "slo-b",
        "1.52",
        "of",
        "1.50",
        "cores",
        "quota",
    ]
