from bpf.libbpf import Runs
from tests.bench.cost.counting import Counts, fields, of_fields, since

PROGRAM = """pos:\t0
flags:\t02000002
prog_type:\t26
prog_id:\t{id}
run_time_ns:\t{ns}
run_cnt:\t{count}
recursion_misses:\t0
"""
LINK = """link_type:\traw_tracepoint
link_id:\t7
prog_tag:\t0123456789abcdef
prog_id:\t{id}
tp_name:\t{tracepoint}
"""


def shown(*programs: tuple[int, str, int, int]) -> Counts:
    texts = [PROGRAM.format(id=id_, ns=ns, count=count) for id_, _, count, ns in programs]
    texts += [LINK.format(id=id_, tracepoint=name) for id_, name, _, _ in programs if name]
    return of_fields(map(fields, [*texts, "pos:\t0\nflags:\t02\n"]))


def test_a_program_is_known_by_the_tracepoint_of_its_link() -> None:
    assert shown((5, "sched_switch", 10, 900), (6, "", 1, 2)) == {
        5: ("sched_switch", Runs(10, 900)),
        6: ("", Runs(1, 2)),
    }


def test_only_what_ran_between_two_looks_counts() -> None:
    before = shown((5, "sched_switch", 10, 900), (6, "sched_wakeup", 100, 50))
    after = shown((5, "sched_switch", 30, 2900), (6, "sched_wakeup", 100, 50))
    found = since(before, after)
    assert found.ns("sched_switch") == 100
    assert found.ns("sched_wakeup") is None, "it did not run"
    assert found.ns("sched_waking") is None, "there is none"


def test_programs_that_no_link_names_are_told_together_by_the_one_that_ran_most() -> None:
    found = since({}, shown((5, "", 100, 30_000), (6, "", 50, 10_000)))
    assert found.by_tracepoint == {}
    assert found.ns_of_all == 400
    assert since({}, {}).ns_of_all is None
