import functools
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pytest

from controller.engines.contract import Hello, Knob
from controller.engines.holding import FOREIGN_NS, MOST_LAPSES, RENEW_SHARE
from controller.engines.link import (
    ANSWER_TIMEOUT_NS,
    DEAR_LEASE_MS,
    HELD_RETRY_NS,
    LEFT_ALONE_NS,
    OWNER,
    RETRY_NS,
    STATS_EVERY_NS,
    EngineLink,
)
from controller.engines.page import MAGIC, PAGE_BYTES, EngineNow, PageWriter, Step
from controller.engines.told import Ack, LinkState, Notice, Vote
from controller.reference.engine import Engine
from controller.serving.leases import Leases

from ..peers import PAGELESS, PATIENCE_S, START, STATE, Peer, reference

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
LEASE_MS: Final = 300


class Lab:
    """A link, the peer it talks to, and the time they both go by."""

    def __init__(self, path: Path) -> None:
        self.peer = Peer(path)
        self.page = PageWriter(path.with_name("page"))
        self.hello = replace(PAGELESS, page=str(self.page.path))
        self.link = EngineLink(path, LEASE_MS)
        self.now_ns = 1000 * RETRY_NS
        self.epoch = 0

    def tick(self, after_ns: int = 0) -> None:
        self.now_ns += after_ns
        self.link.tick(self.now_ns)
        self.link.on_writable(self.now_ns)

    def hear(self) -> None:
        """Let the link take in what the peer sent."""
        assert self.link.client is not None
        assert select.select([self.link.client], [], [], PATIENCE_S)[0]
        self.link.on_readable(self.now_ns)

    def answer(self, call: str, **fields: Any) -> dict[str, Any]:
        """Answer the link's next request, which must be `call`; a `set` as if it were applied."""
        request = self.peer.request(call)
        if call == "set" and fields.get("values") is START:
            fields["values"] = START | request["values"]
        self.peer.answer(request, **fields)
        self.hear()
        return request

    def refuse(self, call: str, code: str, **fields: Any) -> dict[str, Any]:
        request = self.peer.request(call)
        self.peer.refuse(request, code, **fields)
        self.hear()
        return request

    def greet(self, hello: Hello | None = None, **state: Any) -> None:
        """Connect, and answer what the link asks first."""
        self.tick()
        self.answer("hello", **(hello or self.hello).as_dict())
        self.answer("get", **(STATE | state))

    def set(self, tag: int = 1, **values: float) -> None:
        assert self.link.set(values, tag, self.now_ns)

    def acks(self) -> list[tuple[int, str]]:
        return [(ack.tag, ack.ack) for ack in self.link.take_acks()]

    def notices(self) -> list[str]:
        return [notice.kind for notice in self.link.take_notices()]

    def close(self) -> None:
        self.link.close()
        self.peer.close()
        self.page.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "e.sock")
    yield made
    made.close()


def test_it_greets_asks_for_the_state_and_is_connected(lab: Lab) -> None:
    assert not lab.link.can_set
    lab.tick()
    request = lab.answer("hello", **PAGELESS.as_dict())
    assert request["protocol"] == [1]
    assert lab.link.state is LinkState.CONNECTED
    assert not lab.link.can_set
    lab.answer("get", **STATE)
    assert lab.link.can_set
    assert lab.link.hello == PAGELESS
    assert lab.link.values == START
    assert lab.link.detail == "test 1.0"
    assert lab.link.take_notices() == [Notice("engine_seen", "test 1.0")]


def test_an_engine_that_is_not_there_is_tried_again_now_and_then(lab: Lab) -> None:
    lab.peer.close()
    lab.tick()
    assert lab.link.client is None
    assert lab.link.state is LinkState.UNREACHABLE
    assert str(lab.link.path) in lab.link.detail
    lab.peer = Peer(lab.peer.path)
    lab.tick(RETRY_NS - 1)
    assert lab.link.client is None
    lab.now_ns += 1
    lab.greet()
    assert lab.link.can_set
    # it was never seen before, so its absence was no news
    assert lab.notices() == ["engine_seen"]


def test_a_silent_engine_is_given_up_after_a_while(lab: Lab) -> None:
    lab.tick()
    lab.tick(ANSWER_TIMEOUT_NS - 1)
    assert lab.link.client is not None
    lab.tick(1)
    assert lab.link.client is None
    assert lab.link.state is LinkState.UNREACHABLE
    assert "did not answer for 500 ms" in lab.link.detail


def test_a_slow_engine_is_waited_for(lab: Lab) -> None:
    lab.tick()
    line = json.dumps({"id": 1, "ok": True} | PAGELESS.as_dict()).encode() + b"\n"
    for part in (line[:10], line[10:-1], line[-1:]):
        lab.tick(ANSWER_TIMEOUT_NS // 4)
        lab.peer.sock.sendall(part)
        lab.hear()
    assert lab.link.state is LinkState.CONNECTED


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x00\xff\x80\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"[1, 2]\n",
        b"{}\n",
        b'{"id": 99, "ok": true}\n',
        b'{"id": 1, "ok": "yes"}\n',
        b'{"id": null, "ok": false, "error": {"code": "denied", "message": "no"}}\n',
        b"[" * 60_000 + b"\n",
        b"x" * 70_000,
    ],
    ids=lambda raw: repr(raw[:20]),
)
def test_an_engine_that_speaks_nonsense_is_left_and_tried_again(lab: Lab, nonsense: bytes) -> None:
    lab.tick()
    lab.peer.sock.sendall(nonsense)
    while lab.link.client is not None:
        lab.hear()
    assert lab.link.state is LinkState.UNREACHABLE
    assert str(lab.link.path) in lab.link.detail
    lab.peer.hang_up()
    lab.tick(RETRY_NS)
    lab.greet()
    assert lab.link.can_set


WRONG: Final[dict[str, dict[str, Any]]] = {
    "protocol 2 only": {"protocol": [2]},
    "no protocol": {"protocol": None},
    "no instance": {"instance": None},
    "a pid in words": {"pid": "one"},
    "knobs in a list": {"knobs": []},
    "min above max": {
        "knobs": {"max_running": {"min": 9, "max": 8, "start": 8, "unit": "requests"}}
    },
    "start above max": {
        "knobs": {"max_running": {"min": 1, "max": 8, "start": 9, "unit": "requests"}}
    },
    "a knob without a start": {"knobs": {"max_running": {"min": 1, "max": 8}}},
    "a knob that is no number": {
        "knobs": {"max_running": {"min": 1, "max": float("nan"), "start": 1}}
    },
    "graph sizes that are none": {"graph_sizes": ["big"]},
    "an endless lease": {"max_lease_ms": float("inf")},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_engine_whose_hello_is_wrong_is_not_used(lab: Lab, wrong: str) -> None:
    lab.tick()
    lab.answer("hello", **(PAGELESS.as_dict() | WRONG[wrong]))
    assert lab.link.client is None
    assert not lab.link.can_set
    assert lab.link.hello is None
    assert "broke the contract in hello" in lab.link.detail


def test_a_hello_that_is_refused_is_news_once(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.peer.hang_up()
    lab.hear()
    assert lab.notices() == ["engine_lost"]
    for _ in range(5):
        lab.tick(RETRY_NS)
        lab.refuse("hello", "bad_request")
        assert lab.link.state is LinkState.REFUSED
        assert "refused hello: because of bad_request" in lab.link.detail
        lab.peer.hang_up()
    assert lab.notices() == ["engine_lost"]


def test_a_set_is_applied_under_a_lease(lab: Lab) -> None:
    lab.greet(epoch=7)
    lab.set(5, max_running=16, max_batched_tokens=512.0)
    lab.now_ns += 3 * MS
    request = lab.answer("set", **STATE | {"values": START | {"max_running": 16}, "epoch": 8})
    assert request["owner"] == OWNER
    assert request["epoch"] == 8
    assert request["lease_ms"] == LEASE_MS
    assert request["values"] == {"max_running": 16, "max_batched_tokens": 512}
    assert lab.link.take_acks() == [Ack(5, "applied", 3 * MS)]
    assert lab.link.values["max_running"] == 16
    assert lab.link.held == {"max_running": 16, "max_batched_tokens": 512}


def test_nothing_is_set_before_the_engine_told_its_state(lab: Lab) -> None:
    assert not lab.link.set({"max_running": 1}, 1, lab.now_ns)
    lab.tick()
    assert not lab.link.set({"max_running": 1}, 1, lab.now_ns)
    lab.answer("hello", **PAGELESS.as_dict())
    assert not lab.link.set({"max_running": 1}, 1, lab.now_ns)
    assert lab.link.held == {}
    assert lab.acks() == []


def test_a_lease_is_never_longer_than_the_engine_allows(lab: Lab) -> None:
    lab.greet(replace(lab.hello, max_lease_ms=90))
    lab.set(max_running=16)
    assert lab.answer("set", **STATE)["lease_ms"] == 90
    lab.tick(30 * MS)
    assert lab.answer("set", **STATE)["lease_ms"] == 90


def test_the_lease_is_renewed_with_its_values_at_a_third_of_it(lab: Lab) -> None:
    lab.greet()
    lab.set(max_running=16)
    epochs = [lab.answer("set", **STATE)["epoch"]]
    for _ in range(3):
        lab.tick(LEASE_MS * MS // 3 - 1)
        assert lab.peer.asks_nothing()
        lab.tick(1)
        request = lab.answer("set", **STATE)
        assert request["values"] == {"max_running": 16}
        epochs.append(request["epoch"])
    assert epochs == [1, 2, 3, 4]
    # a renewal is no decision: it has no answer in the journal
    assert lab.acks() == [(1, "applied")]


def test_a_lease_given_back_is_renewed_no_more(lab: Lab) -> None:
    lab.greet()
    lab.set(max_running=16)
    lab.answer("set", **STATE)
    assert lab.link.release(2, lab.now_ns)
    assert lab.link.held == {}
    assert lab.answer("release", released=True, **STATE)["owner"] == OWNER
    assert lab.acks() == [(1, "applied"), (2, "applied")]
    lab.tick(LEASE_MS * MS)
    assert lab.peer.asks_nothing()


def test_without_a_connection_there_is_nothing_to_give_back(lab: Lab) -> None:
    assert not lab.link.release(1, lab.now_ns)
    assert lab.acks() == []


def test_a_lease_that_a_dead_agent_left_is_given_back_first(lab: Lab) -> None:
    lab.greet(owner=OWNER, epoch=40, values=START | {"max_running": 3})
    lab.answer("release", released=True, **STATE | {"epoch": 40})
    assert lab.link.values == START
    lab.set(max_running=16)
    assert lab.answer("set", **STATE)["epoch"] == 41


def test_what_waits_for_a_step_is_applied_when_the_page_shows_it(lab: Lab) -> None:
    lab.greet()
    lab.set(1, max_running=16)
    lab.set(2, max_running=8)
    for _ in range(2):
        lab.answer("set", **STATE | {"state": "pending"})
    lab.link.read_page()
    assert lab.acks() == [(1, "pending"), (2, "pending")]
    lab.page.write(EngineNow(epoch=1))
    lab.link.read_page()
    assert lab.acks() == [(1, "applied")]
    lab.page.write(EngineNow(epoch=2))
    lab.link.read_page()
    assert lab.acks() == [(2, "applied")]


def test_the_time_that_counts_is_the_answers(lab: Lab) -> None:
    lab.greet(PAGELESS)
    lab.set(1, max_running=16)
    lab.now_ns += 2 * MS
    lab.answer("set", **STATE | {"state": "pending"})
    lab.tick()
    lab.answer("stats", now=asdict(EngineNow(epoch=1, updated_ns=lab.now_ns + 210 * MS)))
    assert lab.link.take_acks() == [
        Ack(1, "pending", 2 * MS),
        Ack(1, "applied", 2 * MS, "in force after 212 ms"),
    ]
    assert lab.link.change_ns == 212 * MS


def test_a_lease_over_a_knob_that_costs_a_reload_outlives_a_pause_of_the_agent(lab: Lab) -> None:
    dear = Knob("batch_window_ms", 0, 200, 2.5, "ms", "reload")
    lab.greet(replace(PAGELESS, knobs={**PAGELESS.knobs, dear.name: dear}))
    lab.set(1, max_running=16)
    assert lab.answer("set", **STATE)["lease_ms"] == LEASE_MS
    lab.set(2, batch_window_ms=20)
    assert lab.answer("set", **STATE)["lease_ms"] == DEAR_LEASE_MS


def test_what_a_reload_took_is_told(lab: Lab) -> None:
    dear = Knob("batch_window_ms", 0, 200, 2.5, "ms", "reload")
    lab.greet(replace(PAGELESS, knobs={**PAGELESS.knobs, dear.name: dear}))
    lab.notices()
    lab.set(1, batch_window_ms=20)
    lab.answer("set", **STATE | {"state": "pending"})
    lab.tick()
    lab.answer("stats", now=asdict(EngineNow(epoch=1, updated_ns=lab.now_ns + 210 * MS)))
    told = "batch_window_ms: in force after 210 ms"
    assert lab.link.take_notices() == [Notice("engine_reloaded", told)]


def test_what_waits_for_a_step_is_lost_when_the_lease_is_given_back(lab: Lab) -> None:
    lab.greet()
    lab.set(1, max_running=16)
    lab.answer("set", **STATE | {"state": "pending"})
    lab.link.release(2, lab.now_ns)
    assert lab.acks() == [(1, "pending"), (1, "lost")]


def test_a_refused_value_is_told_and_not_tried_again_at_once(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.set(1, max_running=16)
    lab.refuse("set", "out_of_range")
    assert lab.acks() == [(1, "refused")]
    assert lab.link.state is LinkState.REFUSED
    assert "refused set: because of out_of_range" in lab.link.detail
    assert lab.link.held == {}
    assert not lab.link.can_set
    assert lab.notices() == ["set_refused"]
    lab.tick(HELD_RETRY_NS)
    lab.answer("hello", **lab.hello.as_dict())
    lab.answer("get", **STATE)
    assert lab.link.can_set
    assert lab.notices() == ["engine_seen"]


def test_an_engine_that_refuses_what_it_offered_is_asked_what_it_offers_now(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.set(1, max_running=16)
    lab.refuse("set", "out_of_range")
    smaller = {"max_running": replace(PAGELESS.knobs["max_running"], maximum=8.0, start=8.0)}
    lab.tick(HELD_RETRY_NS)
    lab.answer("hello", **replace(lab.hello, knobs=smaller).as_dict())
    assert not lab.link.can_set
    lab.answer("get", **STATE | {"values": {"max_running": 8}})
    assert lab.notices() == ["set_refused", "engine_changed", "engine_seen"]
    assert lab.link.hello is not None
    assert lab.link.hello.knobs == smaller


def look(lab: Lab, for_ns: int, beyond: int = 0, **shown: int) -> None:
    """As the loop does, for so long: the lease is renewed, the page shows its epoch and `shown`."""
    for _ in range(for_ns // (20 * MS)):
        lab.link.read_page()
        lab.tick(20 * MS)
        if lab.link.held and not lab.peer.asks_nothing():
            lab.epoch = lab.answer("set", **STATE)["epoch"]
        lab.page.write(EngineNow(epoch=lab.epoch + beyond, **shown))


def hold(lab: Lab) -> None:
    """Bring the link to hold a knob."""
    lab.greet()
    lab.set(1, max_running=16)
    lab.epoch = lab.answer("set", **STATE)["epoch"]
    lab.acks()
    lab.notices()


@pytest.mark.parametrize(
    "shown",
    [
        {"max_running": 20},
        {"max_running": 16, "max_batched_tokens": 7},
        {"max_running": 16, "beyond": 1},
    ],
    ids=["another value", "a knob we do not hold", "an epoch that is not ours"],
)
def test_what_somebody_else_set_is_left_alone_and_told_of(lab: Lab, shown: dict[str, int]) -> None:
    hold(lab)
    look(lab, SECOND, max_running=16, max_batched_tokens=2048)
    assert lab.notices() == []
    look(lab, SECOND, **shown)
    assert lab.notices() == ["foreign_write"]
    assert lab.link.held == {}
    assert lab.link.state is LinkState.HELD
    assert not lab.link.can_set
    # not even the lease is given back: what that would undo is not ours
    assert lab.peer.asks_nothing()


def test_a_renewal_that_is_stale_says_that_another_sets_in_our_name(lab: Lab) -> None:
    hold(lab)
    lab.tick(LEASE_MS * MS // RENEW_SHARE)
    lab.refuse("set", "stale_epoch", epoch=70)
    assert lab.link.take_notices() == [
        Notice("foreign_write", "knobs were set under epoch 70, and our last is 2")
    ]
    assert lab.link.state is LinkState.HELD
    lab.tick(LEFT_ALONE_NS - 1)
    assert lab.peer.asks_nothing()


def test_a_renewal_that_is_stale_after_the_lease_ran_out_is_sent_again(lab: Lab) -> None:
    hold(lab)
    lab.page.write(EngineNow())
    lab.link.read_page()
    lab.page.write(EngineNow(lease_expiries_total=1))
    lab.link.read_page()
    lab.tick(LEASE_MS * MS // RENEW_SHARE)
    lab.refuse("set", "stale_epoch", epoch=70)
    assert lab.answer("set", **STATE)["epoch"] == 71
    assert lab.notices() == ["lease_lost"]


def test_what_others_wrote_since_the_greeting_is_known_by_the_page(lab: Lab) -> None:
    lab.greet()
    assert lab.link.last_epoch < 40
    lab.page.write(EngineNow(epoch=40))
    lab.link.read_page()
    assert lab.link.last_epoch == 40
    # without a lease the page shows none, and epochs go on
    lab.page.write(EngineNow(epoch=0))
    lab.link.read_page()
    assert lab.link.last_epoch == 40


def test_a_change_that_only_an_answer_shows_is_seen_too(lab: Lab) -> None:
    hold(lab)
    lab.tick(LEASE_MS * MS // RENEW_SHARE)
    lab.answer("set", **STATE | {"values": START | {"max_running": 16, "max_queued": 3}})
    lab.tick()
    lab.tick(FOREIGN_NS)
    assert lab.link.take_notices() == [Notice("foreign_write", "max_queued is 3, and we set 100")]


def test_a_difference_that_goes_by_itself_is_nobodys(lab: Lab) -> None:
    hold(lab)
    for shown in (20, 16, 20, 16):
        look(lab, FOREIGN_NS * 3 // 4, max_running=shown)
    assert lab.notices() == []


def test_an_engine_that_drains_is_not_blamed(lab: Lab) -> None:
    hold(lab)
    for running in range(30, 15, -1):
        look(lab, FOREIGN_NS, max_running=running, running=running)
    assert lab.notices() == []


def left_alone(lab: Lab) -> None:
    """Bring the link to leave the engine's knobs alone."""
    hold(lab)
    look(lab, SECOND, max_running=20)
    lab.notices()
    assert lab.link.state is LinkState.HELD


def test_knobs_left_alone_are_taken_again_once_they_are_at_their_start(lab: Lab) -> None:
    left_alone(lab)
    lab.tick(LEFT_ALONE_NS - SECOND)
    assert lab.peer.asks_nothing()
    lab.tick(SECOND)
    lab.answer("get", **STATE | {"values": START | {"max_running": 20}})
    assert lab.link.state is LinkState.HELD
    assert lab.link.detail == "max_running changed by other means than a lease"
    lab.tick(HELD_RETRY_NS)
    lab.answer("get", **STATE | {"owner": OWNER})
    # another agent of our name holds it; one that died would not for so long
    assert lab.peer.asks_nothing()
    assert lab.link.detail == f"the lease is held by {OWNER!r}"
    lab.tick(HELD_RETRY_NS)
    lab.answer("get", **STATE)
    assert lab.link.can_set
    assert lab.notices() == ["engine_seen"]


def test_a_lease_that_another_holds_is_waited_for(lab: Lab) -> None:
    lab.greet()
    lab.set(1, max_running=16)
    lab.refuse("set", "held")
    assert lab.acks() == [(1, "refused")]
    assert lab.link.state is LinkState.HELD
    assert lab.link.held == {}
    assert not lab.link.can_set
    lab.tick(HELD_RETRY_NS - 1)
    assert lab.peer.asks_nothing()
    lab.tick(1)
    lab.answer("get", **STATE | {"owner": "somebody"})
    assert lab.link.state is LinkState.HELD


def test_a_lease_that_another_let_go_can_be_taken(lab: Lab) -> None:
    lab.greet()
    lab.set(1, max_running=16)
    lab.refuse("set", "held")
    lab.tick(HELD_RETRY_NS)
    lab.answer("get", **STATE | {"epoch": 30})
    assert lab.link.state is LinkState.CONNECTED
    lab.set(2, max_running=16)


def test_after_a_stale_epoch_it_goes_on_from_the_engines(lab: Lab) -> None:
    lab.greet()
    lab.set(1, max_running=16)
    lab.refuse("set", "stale_epoch", epoch=70)
    assert lab.acks() == []
    request = lab.answer("set", **STATE | {"epoch": 71})
    assert (request["epoch"], request["values"]) == (71, {"max_running": 16})
    assert lab.acks() == [(1, "applied")]
    assert lab.link.held == {"max_running": 16}


@pytest.mark.parametrize("epoch", [None, "70", 0, 10**400, 70])
def test_an_engine_that_finds_every_epoch_stale_is_not_asked_for_ever(
    lab: Lab, epoch: object
) -> None:
    lab.greet()
    lab.set(1, max_running=16)
    for _ in range(2):
        lab.refuse("set", "stale_epoch", epoch=epoch)
    assert lab.acks() == [(1, "refused")]
    assert not lab.link.can_set
    lab.tick()
    assert lab.peer.asks_nothing()


def test_an_engine_that_closes_in_mid_answer_loses_what_was_asked(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.set(1, max_running=16)
    request = lab.peer.request("set")
    lab.peer.sock.sendall(json.dumps({"id": request["id"], "ok": True}).encode()[:-4])
    lab.peer.hang_up()
    while lab.link.client is not None:
        lab.hear()
    assert lab.acks() == [(1, "lost")]
    assert lab.link.held == {}
    assert lab.link.values == {}
    assert "closed the connection" in lab.link.detail
    assert lab.notices() == ["engine_lost"]


def test_a_set_without_an_answer_is_lost(lab: Lab) -> None:
    lab.greet()
    lab.set(1, max_running=16)
    lab.tick(ANSWER_TIMEOUT_NS)
    assert lab.acks() == [(1, "lost")]
    assert lab.link.state is LinkState.UNREACHABLE


def test_a_restarted_engine_is_told_from_one_that_was_away(lab: Lab) -> None:
    lab.greet(epoch=50)
    lab.notices()
    for instance, restarted in (("first", []), ("second", ["engine_restarted"])):
        lab.peer.hang_up()
        lab.hear()
        lab.now_ns += RETRY_NS
        lab.greet(replace(lab.hello, instance=instance), epoch=0)
        assert lab.notices() == ["engine_lost", *restarted, "engine_seen"]
    lab.set(1, max_running=16)
    # epochs begin again with the instance
    assert lab.answer("set", **STATE)["epoch"] == 1


def test_an_engine_that_came_back_is_asked_nothing_before_it_said_who_it_is(lab: Lab) -> None:
    lab.greet(PAGELESS)
    lab.peer.hang_up()
    lab.hear()
    lab.tick(RETRY_NS)
    lab.tick(STATS_EVERY_NS)
    lab.answer("hello", **PAGELESS.as_dict())
    lab.answer("get", **STATE)
    lab.tick(STATS_EVERY_NS)
    lab.answer("stats", now={"steps": 5})
    assert lab.link.now == EngineNow(steps=5)


def test_steps_of_a_restarted_engine_are_read_from_its_first(lab: Lab) -> None:
    first, ninetieth = (Step(index, 10, 5, 1, 1, 1) for index in (1, 90))
    lab.greet()
    lab.page.write(EngineNow(steps=90), ninetieth)
    assert lab.link.read_page()[-1] == ninetieth
    assert lab.link.read_page() == []
    lab.peer.hang_up()
    lab.hear()
    assert lab.link.read_page() == ()
    assert lab.link.now is None
    lab.page.write(EngineNow(steps=1), first)
    lab.now_ns += RETRY_NS
    lab.greet(replace(lab.hello, instance="second"))
    assert lab.link.read_page() == [first]


@contextmanager
def no_page(path: Path) -> Iterator[str]:
    yield str(path)


@contextmanager
def wrong_magic(path: Path) -> Iterator[str]:
    path.write_bytes(b"OTHERPGE" + bytes(PAGE_BYTES - 8))
    yield str(path)


@contextmanager
def wrong_version(path: Path) -> Iterator[str]:
    path.write_bytes(MAGIC + struct.pack("<II", 9, PAGE_BYTES) + bytes(PAGE_BYTES - 16))
    yield str(path)


@contextmanager
def short_page(path: Path) -> Iterator[str]:
    path.write_bytes(MAGIC)
    yield str(path)


@contextmanager
def pipe(path: Path) -> Iterator[str]:
    os.mkfifo(path)
    yield str(path)


@contextmanager
def directory(path: Path) -> Iterator[str]:
    path.mkdir()
    yield str(path)


@contextmanager
def no_path(path: Path) -> Iterator[str]:
    yield f"{path}\0more"


@pytest.mark.parametrize(
    "made", [no_page, wrong_magic, wrong_version, short_page, pipe, directory, no_path]
)
def test_an_engine_whose_page_is_no_use_is_asked_for_stats(
    lab: Lab, tmp_path: Path, made: Callable[[Path], Any]
) -> None:
    with made(tmp_path / "other") as page:
        lab.greet(replace(PAGELESS, page=page))
    assert lab.link.can_set
    assert lab.notices() == ["engine_page", "engine_seen"]
    assert lab.link.read_page() == ()
    lab.tick()
    lab.answer("stats", now=asdict(EngineNow(running=5, waiting=2)))
    assert lab.link.now == EngineNow(running=5, waiting=2)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (None, "stats are None"),
        ([], "stats are []"),
        ("x", "stats are 'x'"),
        ({"running": "five"}, "running is 'five'"),
        ({"running": -5}, "running is -5"),
        ({"running": True}, "running is True"),
        ({"running": float("nan")}, "running is nan"),
        ({"running": float("inf")}, "running is inf"),
        ({"running": 10**400}, "running is 10000"),
        ({"running": 65}, "running is 65, and max_running never above 64"),
        ({"kv_used": 8, "kv_total": 7}, "kv_used is 8 of a kv_total of 7"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_figures_that_are_none_are_not_taken(lab: Lab, wrong: object, why: str) -> None:
    lab.greet(PAGELESS)
    lab.tick()
    lab.answer("stats", now={"running": 5, "steps": 9})
    lab.tick(STATS_EVERY_NS)
    lab.answer("stats", now=wrong)
    assert lab.link.now == EngineNow(running=5, steps=9)
    assert lab.link.nonsense.startswith(why)
    assert len(lab.link.nonsense) < 100
    assert lab.link.state is LinkState.CONNECTED
    lab.tick(STATS_EVERY_NS)
    lab.answer("stats", now={"running": 6, "steps": 9})
    assert (lab.link.now, lab.link.nonsense) == (EngineNow(running=6, steps=9), "")


def test_values_too_large_for_a_float_are_left_out(lab: Lab) -> None:
    lab.greet(PAGELESS, values=START | {"max_running": 10**400, "max_queued": float("nan")})
    assert lab.link.values.keys() == {"max_batched_tokens", "long_prefill_tokens"}


def test_a_page_that_another_took_the_place_of_is_read_when_looked_for_anew(lab: Lab) -> None:
    lab.greet()
    lab.page.write(EngineNow(steps=90))
    lab.link.read_page()
    other = PageWriter(lab.page.path)
    other.write(EngineNow(steps=3, running=1))
    lab.link.read_page()
    assert lab.link.now == EngineNow(steps=90)
    lab.link.look_anew()
    lab.link.read_page()
    assert lab.link.now == EngineNow(steps=3, running=1)


def test_counters_that_went_back_are_believed_when_looked_at_anew(lab: Lab) -> None:
    lab.greet()
    lab.page.write(EngineNow(steps=90))
    lab.link.read_page()
    lab.page.write(EngineNow(steps=3))
    lab.link.read_page()
    assert lab.link.nonsense == "steps went back from 90 to 3"
    assert lab.link.now == EngineNow(steps=90)
    lab.link.look_anew()
    lab.link.read_page()
    assert (lab.link.now, lab.link.nonsense) == (EngineNow(steps=3), "")


def test_a_page_that_is_gone_when_looked_for_anew_leaves_the_socket(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.page.path.unlink()
    lab.link.look_anew()
    assert lab.notices() == ["engine_page"]
    lab.tick()
    lab.answer("stats", now={"steps": 5})
    assert lab.link.now == EngineNow(steps=5)


def test_a_lease_that_ran_out_is_told_and_taken_again(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.page.write(EngineNow(lease_expiries_total=3))
    lab.link.read_page()
    lab.set(1, max_running=16)
    lab.answer("set", **STATE | {"state": "pending"})
    lab.page.write(EngineNow(lease_expiries_total=4))
    lab.link.read_page()
    assert lab.notices() == ["lease_lost"]
    assert lab.acks() == [(1, "pending"), (1, "lost")]
    lab.tick(LEASE_MS * MS // RENEW_SHARE)
    assert lab.answer("set", **STATE)["values"] == {"max_running": 16}


def test_leases_that_end_early_are_taken_again_no_sooner_and_in_the_end_not_at_all(
    lab: Lab,
) -> None:
    lab.greet()
    lab.notices()
    lab.page.write(EngineNow())
    lab.link.read_page()
    lab.set(1, max_running=16)
    lab.answer("set", **STATE)
    asked = 0
    for tick in range(200):
        lab.page.write(EngineNow(lease_expiries_total=tick))
        lab.link.read_page()
        lab.tick(5 * MS)
        if lab.link.state is LinkState.HELD:
            break
        if not lab.peer.asks_nothing():
            lab.answer("set", **STATE)
            asked += 1
    assert asked == MOST_LAPSES - 1
    assert lab.notices() == ["lease_lost"] * MOST_LAPSES + ["lease_given_up"]
    assert tick == MOST_LAPSES * LEASE_MS // RENEW_SHARE // 5 - 1
    lab.tick(LEFT_ALONE_NS)
    lab.answer("get", **STATE)
    assert lab.link.can_set


def test_after_a_pause_of_ours_the_lease_is_taken_again_and_answers_are_waited_for(
    lab: Lab,
) -> None:
    lab.greet()
    lab.notices()
    lab.set(1, max_running=16)
    lab.now_ns += 100 * SECOND
    lab.link.resume(lab.now_ns)
    lab.tick()
    assert lab.notices() == ["lease_lost"]
    assert lab.link.client is not None
    for epoch in (1, 2):
        request = lab.answer("set", **STATE)
        assert (request["epoch"], request["values"]) == (epoch, {"max_running": 16})
    assert lab.acks() == [(1, "applied")]
    lab.tick(ANSWER_TIMEOUT_NS)
    lab.tick(ANSWER_TIMEOUT_NS)
    assert lab.link.state is LinkState.UNREACHABLE


def test_a_pause_while_nothing_is_held_is_no_news(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.link.resume(lab.now_ns)
    assert lab.notices() == []


def test_leases_that_ran_out_before_ours_are_no_news(lab: Lab) -> None:
    lab.greet()
    lab.notices()
    lab.page.write(EngineNow(lease_expiries_total=3))
    lab.link.read_page()
    lab.page.write(EngineNow(lease_expiries_total=4))
    lab.link.read_page()
    assert lab.notices() == []


def test_an_engine_that_reads_nothing_never_blocks_the_caller(lab: Lab) -> None:
    lab.greet()
    asked = 0

    def use() -> None:
        nonlocal asked
        while lab.link.set({"max_running": 16}, asked + 1, lab.now_ns):
            asked += 1
            lab.tick(MS)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert lab.link.state is LinkState.UNREACHABLE
    # every decision has its one answer
    assert sorted(lab.acks()) == [(tag, "lost") for tag in range(1, asked + 1)]


def test_an_engine_that_accepts_no_connection_is_unreachable(tmp_path: Path) -> None:
    path = tmp_path / "full.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(0)
        links = [EngineLink(path, LEASE_MS) for _ in range(4)]
        for link in links:
            link.tick(RETRY_NS)
        assert links[-1].client is None
        assert "does not accept connections" in links[-1].detail
        for link in links:
            link.close()


def test_closing_ends_the_connection_and_asks_nothing_more(lab: Lab) -> None:
    lab.greet()
    lab.link.close()
    assert lab.link.client is None
    assert lab.peer.sock.recv(100) == b""


def runs_at_most(engine: Engine, most: int) -> bool:
    return engine.now().max_running == most


def take_for_another(leases: Leases) -> dict[str, Any]:
    leases.set(time.monotonic_ns(), "somebody", 1, 10_000, {"max_running": 5})
    return {}


def pump(link: EngineLink, done: Callable[[], bool]) -> None:
    """Drive the link as the loop does, in real time, until `done`."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, (link.state, link.detail)
        link.tick(time.monotonic_ns())
        if link.client is not None and select.select([link.client], [], [], 0.005)[0]:
            link.on_readable(time.monotonic_ns())
        link.read_page()


def test_the_reference_engine_is_set_held_and_given_back(tmp_path: Path) -> None:
    link = EngineLink(tmp_path / "e.sock", LEASE_MS)
    with reference(tmp_path) as engine:
        pump(link, lambda: link.can_set)
        link.set({"max_running": 7}, 1, time.monotonic_ns())
        pump(link, lambda: engine.now().max_running == 7)
        pump(link, lambda: [ack.ack for ack in link.take_acks()] == ["applied"])
        renewed = engine.now().epoch + 5
        pump(link, lambda: engine.now().epoch >= renewed)
        assert (engine.now().max_running, engine.now().lease_expiries_total) == (7, 0)
        link.release(2, time.monotonic_ns())
        pump(link, lambda: [ack.ack for ack in link.take_acks()] == ["applied"])
        assert engine.now().max_running == 64
        link.close()


def test_the_reference_engine_goes_back_by_itself_and_is_set_again(tmp_path: Path) -> None:
    link = EngineLink(tmp_path / "e.sock", 50)
    with reference(tmp_path) as engine:
        pump(link, lambda: link.can_set)
        link.set({"max_running": 7}, 1, time.monotonic_ns())
        pump(link, lambda: link.now is not None and link.now.max_running == 7)
        # this process hangs: nobody renews
        while engine.now().max_running != 64:
            time.sleep(0.01)
        pump(link, lambda: engine.now().max_running == 7)
        pump(link, lambda: "lease_lost" in {notice.kind for notice in link.take_notices()})
        link.close()


def test_two_owners_of_the_reference_engine_do_not_fight(tmp_path: Path) -> None:
    link = EngineLink(tmp_path / "e.sock", LEASE_MS)
    with reference(tmp_path) as engine:
        pump(link, lambda: link.can_set)
        engine.with_leases(take_for_another)
        link.set({"max_running": 7}, 1, time.monotonic_ns())
        pump(link, lambda: link.state is LinkState.HELD)
        assert [ack.ack for ack in link.take_acks()] == ["refused"]
        assert engine.now().max_running == 5
        link.close()


def test_a_reference_engine_that_starts_anew_is_set_anew(tmp_path: Path) -> None:
    link = EngineLink(tmp_path / "e.sock", LEASE_MS)
    for instance in ("first", "second"):
        with reference(tmp_path, instance) as engine:
            pump(link, lambda: link.can_set)
            link.set({"max_running": 7}, 1, time.monotonic_ns())
            pump(link, functools.partial(runs_at_most, engine, 7))
        pump(link, lambda: link.client is None)
        assert link.held == {}
    assert "engine_restarted" in {notice.kind for notice in link.take_notices()}
    link.close()


TERM_MS: Final = 5000


def prepare(lab: Lab, **values: float) -> dict[str, Any]:
    epoch = lab.link.last_epoch + 1
    assert lab.link.prepare(values, epoch, LEASE_MS, TERM_MS, lab.now_ns)
    return lab.answer("prepare", **STATE | {"epoch": epoch})


def test_a_change_is_promised_and_then_held_as_if_it_had_been_set(lab: Lab) -> None:
    lab.greet(epoch=7)
    request = prepare(lab, max_running=8)
    assert request["values"] == {"max_running": 8}
    assert (request["epoch"], request["term_ms"], request["lease_ms"]) == (8, TERM_MS, LEASE_MS)
    assert lab.link.held == {}
    assert lab.link.commit({"max_running": 8}, 8, LEASE_MS, 3, lab.now_ns)
    assert lab.answer("commit", **STATE | {"epoch": 8})["epoch"] == 8
    assert lab.link.take_votes() == [Vote("prepare", 8), Vote("commit", 8)]
    assert lab.acks() == [(3, "applied")]
    assert lab.link.held == {"max_running": 8}
    lab.tick(LEASE_MS * MS // RENEW_SHARE)
    assert lab.answer("set", **STATE | {"epoch": 9})["values"] == {"max_running": 8}


def test_while_a_change_is_promised_the_lease_is_renewed_without_values(lab: Lab) -> None:
    lab.greet()
    lab.set(max_running=32)
    lab.answer("set", **STATE | {"epoch": 1})
    prepare(lab, max_running=8)
    lab.tick(LEASE_MS * MS // RENEW_SHARE)
    assert lab.answer("set", **STATE | {"epoch": 3})["values"] == {}
    assert lab.link.abort(2, lab.now_ns)
    lab.answer("abort", **STATE | {"epoch": 3}, aborted=True)
    # should the lease have run out meanwhile, its values are taken again
    assert lab.answer("set", **STATE | {"epoch": 4})["values"] == {"max_running": 32}
    assert lab.link.take_votes() == [Vote("prepare", 2), Vote("abort", 2)]


@pytest.mark.parametrize("call", ["prepare", "commit"])
def test_a_vote_against_says_why(lab: Lab, call: str) -> None:
    lab.greet()
    if call == "prepare":
        assert lab.link.prepare({"max_running": 8}, 1, LEASE_MS, TERM_MS, lab.now_ns)
    else:
        assert lab.link.commit({"max_running": 8}, 1, LEASE_MS, 0, lab.now_ns)
    lab.refuse(call, "not_prepared")
    assert lab.link.take_votes() == [Vote(call, 1, "not_prepared", "because of not_prepared")]
    assert lab.link.held == {}


def test_a_lease_of_our_name_that_is_to_be_kept_is_not_given_back(lab: Lab) -> None:
    lab.link.keeps = True
    lab.greet(owner=OWNER, epoch=4, lease_ms_left=900)
    assert lab.peer.asks_nothing()
    assert lab.link.lease is not None
    assert lab.link.lease.owner == OWNER
    assert lab.link.lease.ends_ns == lab.now_ns + 900 * MS


def test_nothing_is_promised_over_a_connection_that_is_not_there(lab: Lab) -> None:
    assert not lab.link.prepare({}, 1, LEASE_MS, TERM_MS, lab.now_ns)
    assert not lab.link.commit({}, 1, LEASE_MS, 0, lab.now_ns)
    assert not lab.link.abort(1, lab.now_ns)
