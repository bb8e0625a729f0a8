import math

from hypothesis import given
from hypothesis import strategies as st

from controller.limits.order import Step, in_order

PATHS = ("/a", "/a/b", "/a/b/c", "/a/d", "/a/b/e", "/f", "/f/g")
limits = st.one_of(st.none(), st.integers(1, 8).map(float))


def parents(path: str) -> list[str]:
    return [each for each in PATHS if path.startswith(f"{each}/")]


def obeys(limits: dict[str, float | None]) -> bool:
    """cgroup v1's rule: who has a limit has no more than any parent that has one."""
    return all(
        limit is None or limit <= min((limits[up] or math.inf for up in parents(path)), default=8)
        for path, limit in limits.items()
    )


@st.composite
def trees(draw: st.DrawFn) -> dict[str, float | None]:
    """A tree of limits that obeys the rule."""
    tree: dict[str, float | None] = {}
    for path in PATHS:
        limit, room = draw(limits), min((tree[up] or math.inf for up in parents(path)), default=8)
        tree[path] = None if limit is None else min(limit, room)
    return tree


@given(trees(), trees(), st.permutations(PATHS))
def test_no_child_exceeds_its_parent_at_any_moment_of_a_change(
    old: dict[str, float | None], new: dict[str, float | None], paths: list[str]
) -> None:
    assert obeys(old)
    assert obeys(new)
    now = dict(old)
    for step in in_order(Step(path, old[path], new[path]) for path in paths):
        now[step.path] = step.new
        assert obeys(now), step
    assert now == new


def test_what_is_lifted_comes_first_then_cuts_up_the_tree_then_raises_down_it() -> None:
    cuts = [Step("/a", 4, 1), Step("/a/b", 3, 0.5)]
    raises = [Step("/f/g", 1, 2), Step("/f", 1, 4), Step("/f/g/h", None, 1)]
    lifts = [Step("/f/i", 1, None)]
    order = [step.path for step in in_order(raises + cuts + lifts)]
    assert order == ["/f/i", "/a/b", "/a", "/f", "/f/g", "/f/g/h"]
