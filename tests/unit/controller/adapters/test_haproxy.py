import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.driver import AdapterError
from controller.adapters.haproxy import Base, HaproxyDriver, connect, parse_stat

HEAD = (
    "# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,dreq,dresp,ereq,econ,eresp,wretr,"
    "wredis,status,weight,act,bck,cli_abrt,srv_abrt,last_chk,"
)
"""Columns as HAProxy 2.6 has them, those between left out."""


def row(name: str, **fields: object) -> str:
    known = {"qcur": 0, "scur": 0, "slim": 4, "stot": 0, "econ": 0, "eresp": 0, "cli_abrt": 0}
    known |= {"srv_abrt": 0, "weight": 1, "bck": 0, "act": 1}
    values = {"pxname": "engines", "svname": name, "status": "UP", **known, **fields}
    names = HEAD.removeprefix("# ").split(",")
    return ",".join(str(values.get(column, "")) for column in names)


def stat(*rows: str) -> str:
    return "\n".join([HEAD, *rows, "", ""])


bases = st.lists(st.integers(1, 200), min_size=1, max_size=8).flatmap(
    lambda most: st.builds(
        lambda counted: Base(
            {str(index): each for index, each in enumerate(most)},
            tuple(str(index) for index in sorted(counted)),
            None,
        ),
        st.sets(st.integers(0, len(most) - 1), min_size=1),
    )
)


@given(bases, st.data())
def test_shares_add_up_keep_their_proportion_and_leave_nobody_without(
    base: Base, data: st.DataObject
) -> None:
    running = data.draw(st.integers(len(base.serving), base.max_running))
    parts = base.shares(running)
    assert sum(parts[name] for name in base.serving) == running
    assert min(parts.values()) >= 1
    exact = {name: most * running / base.max_running for name, most in base.maxconn.items()}
    small = sum(1 for part in exact.values() if part < 1)
    for name, part in parts.items():
        assert part <= max(1, exact[name] + 1)
        assert part >= exact[name] - 1 - small


def test_all_of_max_running_is_each_server_s_own() -> None:
    base = Base({"a": 5, "b": 2, "standby": 3}, ("a", "b"), None)
    assert base.shares(base.max_running) == base.maxconn


def test_the_backups_serve_when_no_other_can() -> None:
    up, backup = row("a"), row("b", bck=1, act=0)
    assert parse_stat(stat(up, backup)).serving() == ("a",)
    for gone in ({"status": "DOWN"}, {"status": "MAINT"}, {"status": "DRAIN", "weight": 0}):
        assert parse_stat(stat(row("a", **gone), backup)).serving() == ("b",)
    nobody = stat(row("a", status="DOWN"), row("b", bck=1, act=0, status="DOWN"))
    assert parse_stat(nobody).serving() == ("a",)


def test_a_server_s_figures_are_read() -> None:
    busy = row("a", slim=8, qcur=2, scur=5, stot=30, cli_abrt=1, srv_abrt=2, econ=3, eresp=4)
    total = row("BACKEND", qcur=7, slim=200)
    backend = parse_stat(stat(busy, total))
    server = backend.servers["a"]
    assert (server.maxconn, server.queued, server.running, server.sessions) == (8, 2, 5, 30)
    assert server.finished == 30 - 5 - 10
    assert backend.queued == 7


def test_a_server_without_a_limit_has_none() -> None:
    assert parse_stat(stat(row("a", slim=""))).servers["a"].maxconn == 0


@given(st.text(max_size=200) | st.text(max_size=60).map(stat))
def test_what_is_no_statistics_is_said_to_be_none(text: str) -> None:
    with contextlib.suppress(AdapterError):
        parse_stat(text)


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"maxconn": {"a": 4}, "serving": [], "max_queued": None},
        {"maxconn": {"a": 4}, "serving": ["b"], "max_queued": None},
        {"maxconn": {"a": -3}, "serving": ["a"], "max_queued": None},
        {"maxconn": {"a": "4"}, "serving": ["a"], "max_queued": None},
        {"maxconn": {"a": 4}, "serving": ["a"], "max_queued": "5"},
    ],
)
def test_an_undo_file_that_makes_no_sense_is_refused(kept: dict[str, object]) -> None:
    driver = connect({"address": "/nowhere", "backend": "engines"})
    with pytest.raises(AdapterError):
        driver.recall(kept)


def test_what_was_kept_is_recalled() -> None:
    kept = {"maxconn": {"a": 4, "b": 2}, "serving": ["a"], "max_queued": 9}
    driver = HaproxyDriver("/nowhere", "engines", None, "sits")
    driver.recall(kept)
    assert driver.keep() == kept


def test_nobody_at_the_address_is_an_error_that_names_it(tmp_path: object) -> None:
    driver = connect({"address": f"{tmp_path}/none.sock", "backend": "engines"})
    with pytest.raises(AdapterError, match=r"could not talk to HAProxy at '.*none.sock'"):
        driver.identify()
