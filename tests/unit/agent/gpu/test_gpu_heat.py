from agent.gpu_heat import KEPT, MOST_ROWS, OTHERS, STEP_S, HeatMaps


def rows(maps: HeatMaps) -> dict[str, list[float | None]]:
    (answer,) = maps.answer()
    return {row["name"]: row["sm_percent"] for row in answer["rows"]}


def test_a_cell_is_the_mean_of_its_step_and_one_that_nobody_saw_is_null() -> None:
    maps = HeatMaps()
    maps.take(1000, "0", {"all": 10, "chat": 4})
    maps.take(1001, "0", {"all": 20, "chat": None})
    maps.take(1000 + 2 * STEP_S, "0", {"all": 50})
    assert rows(maps) == {"all": [15, None, 50], "chat": [4, None, None]}
    assert maps.answer()[0]["from_s"] == 1000


def test_half_an_hour_is_kept() -> None:
    maps = HeatMaps()
    for step in range(KEPT + 50):
        maps.take(step * STEP_S, "0", {"all": step})
    cells = rows(maps)["all"]
    assert (len(cells), cells[0], cells[-1]) == (KEPT, 50, KEPT + 49)


def test_rows_are_bounded_and_the_rest_is_added_up() -> None:
    maps = HeatMaps()
    maps.take(0, "0", {f"p{number}": 1.0 for number in range(MOST_ROWS + 20)})
    found = rows(maps)
    assert len(found) <= MOST_ROWS + 1
    assert found[OTHERS] == [MOST_ROWS + 20 - (len(found) - 2)]


def test_devices_are_apart_and_one_that_is_gone_for_long_is_dropped() -> None:
    maps = HeatMaps()
    maps.take(0, "0", {"all": 1.0})
    maps.take(0, "1", {"all": 2.0})
    assert [each["device"] for each in maps.answer()] == ["0", "1"]
    later_s = (KEPT + 2) * STEP_S
    maps.take(later_s, "1", {"all": 2.0})
    maps.forget_old(later_s)
    assert [each["device"] for each in maps.answer()] == ["1"]


def test_a_clock_that_goes_back_spoils_nothing() -> None:
    maps = HeatMaps()
    maps.take(1000, "0", {"all": 10})
    maps.take(500, "0", {"all": 30})
    assert rows(maps) == {"all": [20]}
