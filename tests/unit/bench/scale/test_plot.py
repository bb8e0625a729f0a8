import re
from xml.etree import ElementTree

import pytest

from tests.bench.scale.plot import HEIGHT, WIDTH, Panel, nice, short, svg

SVG = "{http://www.w3.org/2000/svg}"
LINES = {"one": [(10, 1.0), (100, 2.0), (1000, 4.0)], "two & more": [(10, 4.0), (1000, 0.5)]}


@pytest.mark.parametrize(
    ("value", "end"), [(0, 1), (0.3, 0.4), (1, 1), (1.1, 2), (9, 10), (80, 80), (4100, 8000)]
)
def test_an_axis_ends_at_a_round_number_at_or_above(value: float, end: float) -> None:
    assert nice(value) == pytest.approx(end)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (2, "2"), (0.254, "0.25"), (12.4, "12"), (10_000, "10,000")]
)
def test_numbers_take_few_characters(value: float, text: str) -> None:
    assert short(value) == text


def test_every_point_is_drawn_inside_its_panel_and_higher_values_higher() -> None:
    drawing = ElementTree.fromstring(svg([Panel("a", "x", LINES)]))
    circles = drawing.findall(f".//{SVG}circle")
    at = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in circles]
    assert len(at) == 5
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in at)
    assert at[0][0] < at[1][0] < at[2][0]
    assert at[0][1] > at[1][1] > at[2][1]
    assert (at[0][0], at[2][1]) == (at[3][0], at[3][1])


def test_an_axis_is_logarithmic() -> None:
    drawing = ElementTree.fromstring(svg([Panel("a", "x", LINES)]))
    first, second, third = [
        float(each.attrib["cx"]) for each in drawing.findall(f".//{SVG}circle")[:3]
    ]
    assert second - first == pytest.approx(third - second, abs=0.2)


def test_panels_stand_beside_each_other_and_names_are_escaped() -> None:
    text = svg([Panel("a < b", "x", LINES), Panel("c", "x", {"one": [(5, 3.0)]})])
    drawing = ElementTree.fromstring(text)
    assert drawing.attrib["viewBox"] == f"0 0 {2 * WIDTH} {HEIGHT}"
    assert {each.text for each in drawing.iter(f"{SVG}text")} >= {"a < b", "two & more", "one", "c"}
    assert re.findall(r"translate\((\d+),0\)", text) == ["0", str(WIDTH)]


def test_a_panel_without_points_is_drawn_empty() -> None:
    drawing = ElementTree.fromstring(svg([Panel("a", "x", {"none": []})]))
    assert not drawing.findall(f".//{SVG}circle")
