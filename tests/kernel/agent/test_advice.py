import math
import time

import pytest

from .conftest import Node
from .groups import favoured
from .rig import Site
from .traffic import load

pytestmark = [pytest.mark.kernel, pytest.mark.slow]


def test_a_known_load_on_a_known_engine_is_advised_on(node: Node, site: Site) -> None:
    site.write(node.targets())
    with favoured(node.group), site.sitsd() as sitsd:
        sitsd.following()
        assert not [name for name, _ in sitsd.metrics() if name == "sits_advice_load_ratio"]
        with load(node.engine) as traffic:
            deadline = time.monotonic() + 90
            while not (
                found := {
                    labels: value
                    for (name, labels), value in sitsd.metrics().items()
                    if name == "sits_advice_load_ratio"
                }
            ):
                assert time.monotonic() < deadline, sitsd.api.engines()
                time.sleep(0.5)
        assert traffic.failures == []
        (ratio,) = found.values()
        # the load of one client at a time is far from what the engine holds
        assert 0 < ratio < 1
        by_capacity = sitsd.metric("sits_advice_instances", engine="chat", formula="capacity")
        assert by_capacity == math.ceil(ratio)
        assert sitsd.metric("sits_advice_trigger", engine="chat", trigger="queue") == 0
        assert sitsd.metric("sits_advice_warm_replicas", engine="chat") == 0
