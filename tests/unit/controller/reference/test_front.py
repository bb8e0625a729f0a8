import math

import pytest

from controller.reference.front import retry_after_s


@pytest.mark.parametrize(
    ("drain_s", "told_s"),
    [(math.nan, 1), (0.0, 1), (0.2, 1), (3.2, 4), (60.0, 60), (1e9, 60), (math.inf, 60)],
)
def test_a_refused_client_is_told_how_long_the_queue_will_take(drain_s: float, told_s: int) -> None:
    assert retry_after_s(drain_s) == told_s
