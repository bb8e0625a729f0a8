import math
import time

import pytest

from .conftest import Node
from .groups import favoured
from .rig import Site
from .traffic import load

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

CHAT = (("engine", "chat"),)


def test_a_known_load_on_a_known_engine_is_advised_on(node: Node, site: Site) -> None:
    site.write(node.targets())
    with favoured(node.group), site.sitsd() as sitsd:
        sitsd.following()
        assert not [name for name, _ in sitsd.metrics() if name == "sits_advice_load_ratio"]
        with load(node.engine) as traffic:
            deadline = time.monotonic() + 90
            while ("sits_advice_load_ratio", CHAT) not in (seen := sitsd.metrics()):
                assert time.monotonic() < deadline, sitsd.api.engines()
                time.sleep(0.5)
        assert traffic.failures == []
        ratio = seen["sits_advice_load_ratio", CHAT]
        # the load of one client at a time is far from what the engine holds
        assert 0 < ratio < 1
        by_capacity = ("engine", "chat"), ("formula", "capacity")
        assert seen["sits_advice_instances", by_capacity] == math.ceil(ratio)
        assert seen["sits_advice_trigger", (*CHAT, ("trigger", "queue"))] == 0
        assert seen["sits_advice_warm_replicas", CHAT] == 0
