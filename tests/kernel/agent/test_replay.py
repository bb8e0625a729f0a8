"""What a running agent recorded, decided again from its journal alone."""

from contextlib import closing

import pytest

from controller.journal import JournalReader
from controller.recording import inputs_of
from controller.replay import replay, summary_of
from controller.simulate.fitting import fit

from .conftest import Node
from .groups import favoured
from .rig import Site
from .test_knobs import NO_NEIGHBOURS, budgets
from .traffic import long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel


def test_every_decision_of_a_run_is_decided_the_same_again(
    node: Node, site: Site, gap_ms: float
) -> None:
    journal = site.directory / "state" / "journal.db"
    site.write(node.targets(ttft_ms=60_000, gap_ms=gap_ms, more=NO_NEIGHBOURS), "control")
    with site.sitsd() as sitsd:
        sitsd.following()
        with favoured(node.group), long_beside_short(node.engine):
            becomes(lambda: budgets(sitsd))
            with closing(JournalReader(journal)) as reader:
                becomes(lambda: len([each for each in reader.recorded() if each.decision]) >= 2)
                becomes(lambda: len([each for each in reader.recorded() if not each.decision]) > 3)
    with closing(JournalReader(journal)) as reader:
        recorded = list(reader.recorded())
    rows = list(replay(recorded, None))
    assert None not in rows
    assert [row for row in rows if row is not None and not row.equal] == []
    summary = summary_of(row for row in rows if row is not None)
    assert summary.decisions >= 2
    assert summary.ticks > summary.decisions
    spec = fit(inputs_of(each.inputs) for each in recorded)
    assert spec.times.mean_ms(0, 1, 100) > 0
    assert spec.max_batched_tokens == 2048
