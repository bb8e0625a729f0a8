from pathlib import Path

from controller.engines.page import EngineNow, PageWriter, Step
from tests.bench.slo.watch import PageWatch

MS = 1_000_000


def test_it_keeps_the_smallest_knobs_and_counts_their_changes(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    watch = PageWatch(tmp_path / "page")
    for at, (budget, running) in enumerate([(2048, 64), (512, 64), (512, 64), (1024, 16)]):
        writer.write(EngineNow(updated_ns=at, max_batched_tokens=budget, max_running=running))
        watch.look()
    assert (watch.seen.min_batched_tokens, watch.seen.min_running) == (512, 16)
    assert watch.seen.knob_changes == 2
    watch.close()
    writer.close()


def test_who_waits_for_the_running_cap_alone_is_counted(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    watch = PageWatch(tmp_path / "page")
    for waiting, running, cap in [(0, 8, 8), (3, 8, 8), (3, 7, 8), (1, 9, 8)]:
        writer.write(EngineNow(waiting=waiting, running=running, max_running=cap))
        watch.look()
    assert (watch.seen.looks, watch.seen.capped) == (4, 2)
    watch.close()
    writer.close()


def test_it_keeps_the_steps_of_the_last_second(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    watch = PageWatch(tmp_path / "page")
    for index in range(1, 21):
        end_ns = index * 100 * MS
        writer.write(
            EngineNow(updated_ns=end_ns, steps=index), Step(index, end_ns, 100 * MS, 0, 1, 0)
        )
        if index % 5 == 0:
            watch.look()
    assert [step.index for step in watch.steps] == list(range(10, 21))
    watch.close()
    writer.close()


def test_deferrals_are_counted_from_the_first_look_on(tmp_path: Path) -> None:
    writer = PageWriter(tmp_path / "page")
    watch = PageWatch(tmp_path / "page")
    for total, longest_ms in ((100, 0), (103, 40), (103, 90), (104, 0)):
        writer.write(EngineNow(deferred_total=total, longest_deferral_ms=longest_ms))
        watch.look()
    assert (watch.seen.deferred, watch.seen.longest_deferral_ms) == (4, 90)
    watch.close()
    writer.close()
