from agent.growth import KEPT, MOST, Growth


def grown(*looks: dict[str, tuple[int, ...]]) -> Growth[str]:
    growth: Growth[str] = Growth()
    for at, totals in enumerate(looks):
        growth.take(at, totals)
    return growth


def test_what_was_counted_before_the_first_look_is_of_no_window() -> None:
    assert grown({"a": (100, 5)}).window(-1) == {}


def test_a_window_is_what_came_after_its_beginning_most_first() -> None:
    growth = grown({"a": (9, 1)}, {"a": (10, 2), "b": (5, 1)}, {"a": (13, 4), "b": (50, 3)})
    assert growth.window(0) == {"b": (50, 3), "a": (4, 3)}
    assert list(growth.window(0)) == ["b", "a"]
    assert growth.window(1) == {"b": (45, 2), "a": (3, 2)}
    assert growth.window(2) == {}


def test_what_shrank_has_begun_again() -> None:
    assert grown({"a": (100, 9)}, {"a": (7, 2)}).window(0) == {"a": (7, 2)}


def test_what_is_gone_and_comes_back_counts_anew() -> None:
    assert grown({"a": (100, 9)}, {}, {"a": (7, 2)}).window(0) == {"a": (7, 2)}


def test_what_did_not_grow_is_not_named() -> None:
    assert grown({"a": (5, 1)}, {"a": (5, 1)}).window(0) == {}


def test_of_one_look_those_that_grew_most_are_kept() -> None:
    growth = grown({}, {str(n): (n, 1) for n in range(1, 3 * MOST)})
    kept = growth.window(0)
    assert len(kept) == MOST
    assert min(figures[0] for figures in kept.values()) == 2 * MOST


def test_old_looks_are_forgotten() -> None:
    looks: list[dict[str, tuple[int, ...]]] = [{"a": (n, 1)} for n in range(KEPT + 50)]
    growth = grown(*looks)
    assert growth.window(-1) == {"a": (KEPT, 0)}
