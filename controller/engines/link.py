"""One engine's admin socket as the loop uses it: connects, greets, leases, renews, reads the page.

Never blocks and never raises for what an engine does: it is in one of the states of `LinkState`,
with a sentence that says why, and what happened is returned as `Ack` and `Notice`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from controller.engines.client import EngineClient, EngineError, Event, Response
from controller.engines.contract import RELOAD, ContractError, Hello, parse_hello
from controller.engines.holding import Holding, difference
from controller.engines.page import Allocator, EngineNow, Step
from controller.engines.showing import Showing
from controller.engines.told import Ack, LeaseSeen, LinkState, Notice, Vote
from controller.engines.values import MOST, numbers, whole

OWNER: Final = "sits"
"""One name for every agent on this machine: a new one goes on where a dead one stopped."""

ANSWER_TIMEOUT_NS: Final = 500_000_000
RETRY_NS: Final = 1_000_000_000
HELD_RETRY_NS: Final = 5_000_000_000
LEFT_ALONE_NS: Final = 60_000_000_000
"""How long knobs are left alone that somebody else changed, or that kept going back."""

STATS_EVERY_NS: Final = 100_000_000

DEAR_LEASE_MS: Final = 5_000
"""A lease over a knob that costs a reload is no shorter: else a pause of the agent costs two."""

_VOTED: Final = frozenset({"prepare", "commit", "abort"})
_NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class _Sent:
    """A call that changes something on its way.

    `again` if a stale epoch was the reason to send it again. `values` and `lease_ms` are what a
    `commit` puts in force.
    """

    tag: int
    at_ns: int
    epoch: int
    again: bool = False
    took_ns: int = 0
    values: Mapping[str, float] | None = None
    lease_ms: int = 0


class EngineLink:
    """The connection to one engine, over restarts of either side."""

    def __init__(self, path: Path, lease_ms: int) -> None:
        """Nothing is opened before the first `tick`."""
        self.path = path
        self.state = LinkState.UNREACHABLE
        self.detail = "not tried yet"
        self.hello: Hello | None = None
        self.values: dict[str, float] = {}
        self.writes = 0
        """Calls of `set` and `commit` that the engine acknowledged."""
        self.change_ns = 0
        """How long the last change that was pending took to be in force."""
        self.keeps = False
        """Whether a lease of our name that is found is taken up again, and not released."""
        self.lease: LeaseSeen | None = None
        """Whose lease it was when the engine last said."""
        self.pending: Mapping[str, float] = {}
        self.last_ack = ""
        """What became of the last write, in words."""
        self._lease_ms = lease_ms
        self._hand_lease_ms: int | None = None
        self._promised: int | None = None
        self._votes: list[Vote] = []
        self._client: EngineClient | None = None
        self._showing = Showing()
        self._retry_ns = 0
        self._epoch = self._shown_epoch = 0
        self._holding = Holding()
        self._answered_values: Mapping[str, float] = {}
        self._is_greeted = False
        self._greeting_get = False
        self._stats_ns = 0
        self._sent: dict[int, _Sent] = {}
        self._unapplied: list[_Sent] = []
        self._acks: list[Ack] = []
        self._notices: list[Notice] = []

    @property
    def client(self) -> EngineClient | None:
        """What to register for reading, None while there is no connection."""
        return self._client

    @property
    def now(self) -> EngineNow | None:
        """What the engine last showed that may be true."""
        return self._showing.now

    @property
    def nonsense(self) -> str:
        """Why what the engine last showed was not taken; empty if it was."""
        return self._showing.nonsense

    @property
    def can_set(self) -> bool:
        """Whether knobs may be written now."""
        return self.state is LinkState.CONNECTED and self.hello is not None and bool(self.values)

    @property
    def is_new(self) -> bool:
        """Whether it has knobs, and what they are set to is still on its way."""
        return self.hello is not None and bool(self.hello.knobs) and not self.values

    @property
    def held(self) -> Mapping[str, float]:
        """The knobs we hold under the lease."""
        return self._holding.values

    def tick(self, now_ns: int) -> None:
        """Connect, renew and give up what is overdue, as far as it is time for it."""
        if self._client is None:
            if now_ns >= self._retry_ns:
                self._connect(now_ns)
            return
        if self._client.overdue(now_ns, ANSWER_TIMEOUT_NS):
            self._lose(now_ns, f"did not answer for {ANSWER_TIMEOUT_NS // _NS_PER_MS} ms")
            return
        if self.state in {LinkState.HELD, LinkState.REFUSED} and now_ns >= self._retry_ns:
            # an engine that refuses what it offered may offer something else by now
            self._request("get" if self.state is LinkState.HELD else "hello", now_ns)
            self._retry_ns = now_ns + HELD_RETRY_NS
        self._look_for_others(now_ns)
        if self._holding.is_due(now_ns):
            if self._holding.lapses_too_often(now_ns):
                self._leave(now_ns, "lease_given_up", "its leases end before their time")
            else:
                # with the values: should the lease have run out, this takes the same one again;
                # but values would replace what is prepared
                self._send_set(self.held if self._promised is None else {}, 0, now_ns)
        if self._is_greeted and not self._showing.has_page and now_ns >= self._stats_ns:
            self._stats_ns = now_ns + STATS_EVERY_NS
            self._request("stats", now_ns)

    def set(self, values: Mapping[str, float], tag: int, now_ns: int) -> bool:
        """Write knobs under the lease; False when that can't be done now, else an `Ack` follows."""
        if not self.can_set:
            return False
        self._holding.hold(values)
        self._send_set(values, tag, now_ns)
        return True

    @property
    def last_epoch(self) -> int:
        """The last epoch the engine took, as far as is known; the next write's is above it.

        Its page tells also of what others wrote, until they give it back.
        """
        return max(self._epoch, self._shown_epoch)

    def prepare(
        self, values: Mapping[str, float], epoch: int, lease_ms: int, term_ms: int, now_ns: int
    ) -> bool:
        """Have the engine promise a change; False when it can't be asked now, else a `Vote`."""
        if not self.can_set:
            return False
        self._epoch = max(self._epoch, epoch)
        request = self._request(
            "prepare",
            now_ns,
            owner=OWNER,
            epoch=epoch,
            lease_ms=lease_ms,
            term_ms=term_ms,
            values=whole(values),
        )
        if request is not None:
            self._promised = epoch
            self._sent[request] = _Sent(0, now_ns, epoch)
        return request is not None

    def commit(
        self, values: Mapping[str, float], epoch: int, lease_ms: int, tag: int, now_ns: int
    ) -> bool:
        """Have what was prepared under `epoch` made; it is then held as if it had been set.

        `values` and `lease_ms` are those of the `prepare`. False and `Vote` as in `prepare`.
        """
        if not self.can_set:
            return False
        request = self._request("commit", now_ns, owner=OWNER, epoch=epoch)
        if request is not None:
            self._epoch = max(self._epoch, epoch)
            self._promised = epoch
            self._sent[request] = _Sent(tag, now_ns, epoch, values=values, lease_ms=lease_ms)
        return request is not None

    def abort(self, epoch: int, now_ns: int) -> bool:
        """Drop what is prepared under `epoch`; False and `Vote` as in `prepare`."""
        if self._client is None or self.hello is None:
            return False
        request = self._request("abort", now_ns, owner=OWNER, epoch=epoch)
        if request is not None:
            self._sent[request] = _Sent(0, now_ns, epoch)
        return request is not None

    def take_votes(self) -> list[Vote]:
        """The answers to `prepare`, `commit` and `abort` since the last call."""
        votes, self._votes = self._votes, []
        return votes

    def set_lease(self, lease_ms: int) -> None:
        """Ask for leases of this length from the next write or renewal on."""
        self._lease_ms = lease_ms

    def release(self, tag: int, now_ns: int) -> bool:
        """Give the lease back; False when there is no connection (the lease then runs out)."""
        self._let_go()
        self._give_up_unapplied("given back before it was in force")
        if self._client is None or self.hello is None:
            return False
        request = self._request("release", now_ns, owner=OWNER)
        if request is not None:
            self._sent[request] = _Sent(tag, now_ns, 0)
        return request is not None

    def resume(self, now_ns: int) -> None:
        """Nobody looked for a while: the lease is gone, and answers may have waited as long."""
        if self._client is not None:
            self._client.excuse(now_ns)
        self._lapse("the lease was not renewed for too long")

    def on_readable(self, now_ns: int) -> None:
        """Take in what the engine sent."""
        if self._client is None:
            return
        try:
            messages = self._client.on_readable()
        except EngineError as error:
            self._lose(now_ns, str(error))
            return
        for message in messages:
            # an answer may have ended the connection: what came after it counts no more
            if self._client is not None and not isinstance(message, Event):
                self._answered(message, now_ns)

    def on_writable(self, now_ns: int) -> None:
        """Send more of what is queued."""
        try:
            if self._client is not None:
                self._client.on_writable()
        except EngineError as error:
            self._lose(now_ns, str(error))

    def allocator(self) -> Allocator | None:
        """How the engine's allocator stands, where its page says it."""
        return self._showing.allocator()

    def read_page(self) -> Sequence[Step]:
        """Refresh `now` from the page; returns the steps that ended since the last look."""
        before = self.now
        steps = self._showing.read()
        self._compare(before)
        return steps

    def look_anew(self) -> None:
        """Open the page again, and take for new what is then shown."""
        self._tell_of_page(self._showing.look_anew())

    def take_acks(self) -> list[Ack]:
        """The answers since the last call."""
        acks, self._acks = self._acks, []
        return acks

    def take_notices(self) -> list[Notice]:
        """The changes of state since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def close(self) -> None:
        """Close the connection; a lease runs out by itself."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._showing.end()

    def _connect(self, now_ns: int) -> None:
        self._retry_ns = now_ns + RETRY_NS
        client = EngineClient(self.path)
        try:
            client.connect()
            self._client = client
            self._request("hello", now_ns, protocol=[1])
        except EngineError as error:
            client.close()
            self._client = None
            self._become(LinkState.UNREACHABLE, str(error))

    def _request(self, call: str, now_ns: int, **fields: Any) -> int | None:
        if self._client is None:
            return None
        try:
            return self._client.request(call, now_ns, **fields)
        except EngineError as error:
            self._lose(now_ns, str(error))
            return None

    def _send_set(
        self, values: Mapping[str, float], tag: int, now_ns: int, again: bool = False
    ) -> None:
        self._epoch += 1
        lease_ms = self._hand_lease_ms or self._lease_ms
        if self.hello is not None:
            if self._dear(values):
                lease_ms = max(lease_ms, DEAR_LEASE_MS)
            lease_ms = min(lease_ms, self.hello.max_lease_ms)
        sent = _Sent(tag, now_ns, self._epoch, again)
        request = self._request(
            "set", now_ns, owner=OWNER, epoch=sent.epoch, lease_ms=lease_ms, values=whole(values)
        )
        self._holding.asked(now_ns, lease_ms * _NS_PER_MS)
        if request is not None:
            self._sent[request] = sent
        elif tag:
            self._acks.append(Ack(tag, "lost", 0, "the engine takes no more requests"))

    def _answered(self, response: Response, now_ns: int) -> None:
        call = response.request.call
        sent = self._sent.pop(response.request.id, None)
        if response.refusal is not None:
            self._refused(response, sent, now_ns)
        elif call == "hello":
            self._greeted(response, now_ns)
        elif call == "stats":
            before = self.now
            self._showing.hear(response.fields.get("now"))
            self._compare(before)
        else:
            self._take_state(response.fields, now_ns)
            writes = call in {"set", "commit"}
            pending = response.fields.get("state") == "pending" and writes
            if call in _VOTED:
                self._done(call, sent, now_ns)
            if writes:
                self.writes += 1
                self._holding.confirmed()
                self._answered_values = {} if pending else self.values
            if call == "get":
                self._take_owner(response.fields, now_ns)
            if sent is not None and sent.tag:
                sent.took_ns = now_ns - sent.at_ns
                self._ack(Ack(sent.tag, "pending" if pending else "applied", sent.took_ns))
                if pending:
                    self._unapplied.append(sent)

    def _done(self, call: str, sent: _Sent | None, now_ns: int) -> None:
        """The engine did what belongs to a change that spans engines."""
        assert sent is not None
        self._votes.append(Vote(call, sent.epoch))
        if call == "commit" and sent.values is not None:
            self._promised = None
            self._holding.hold(sent.values)
            self._holding.asked(sent.at_ns, sent.lease_ms * _NS_PER_MS)
            self._hand_lease_ms = sent.lease_ms
        elif call == "abort" and self._promised == sent.epoch:
            self._promised = None
            if self.held:
                # renewals went without values meanwhile: had the lease run out, they are gone
                self._send_set(self.held, 0, now_ns)

    def _refused(self, response: Response, sent: _Sent | None, now_ns: int) -> None:
        refusal, call = response.refusal, response.request.call
        assert refusal is not None
        if call in _VOTED and sent is not None:
            stale = refusal.code == "stale_epoch"
            why = "others have written to it since it was greeted: ask again" if stale else ""
            self._votes.append(Vote(call, sent.epoch, refusal.code, why or refusal.message))
            self._promised = None
        text = f"engine at '{self.path}' refused {call}: {refusal.message}"
        if refusal.code == "stale_epoch":
            ours = self._epoch
            self._take_epoch(response.fields)
            if self._holding.is_lease:
                # nobody could have set anything meanwhile, but in our name
                why = f"knobs were set under epoch {self._epoch}, and our last is {ours}"
                self._leave(now_ns, "foreign_write", why)
            elif sent is not None and self.held and not sent.again:
                self._send_set(self.held, sent.tag, now_ns, again=True)
                return
        if sent is not None and sent.tag:
            self._ack(Ack(sent.tag, "refused", now_ns - sent.at_ns, refusal.message))
        if call == "hello" or refusal.code == "denied":
            self._lose(now_ns, text, LinkState.REFUSED)
        elif self.held if call == "set" else refusal.code == "held":
            self._let_go()
            self._give_up_unapplied(refusal.message)
            self._retry_ns = now_ns + HELD_RETRY_NS
            if refusal.code == "held":
                self._become(LinkState.HELD, text, "lease_held")
            else:
                self._become(LinkState.REFUSED, text, "set_refused")

    def _greeted(self, response: Response, now_ns: int) -> None:
        try:
            hello = parse_hello(response.fields)
        except ContractError as error:
            self._lose(now_ns, f"engine at '{self.path}' broke the contract in hello: {error}")
            return
        restarted = self.hello is not None and self.hello.instance != hello.instance
        if restarted:
            self._notices.append(Notice("engine_restarted", f"{hello.engine} {hello.version}"))
            self._epoch = self._shown_epoch = 0
        elif self.hello is not None and self.hello.knobs != hello.knobs:
            self._notices.append(Notice("engine_changed", "it offers other knobs than before"))
        self.hello = hello
        self.values = {}
        self._is_greeted = self._greeting_get = True
        self._tell_of_page(self._showing.begin(hello, restarted=restarted))
        self._become(LinkState.CONNECTED, self._greeting)
        self._request("get", now_ns)

    def _tell_of_page(self, why: str) -> None:
        if why:
            self._notices.append(Notice("engine_page", why))

    @property
    def _greeting(self) -> str:
        return "" if self.hello is None else f"{self.hello.engine} {self.hello.version}"

    def _take_state(self, fields: Mapping[str, Any], now_ns: int) -> None:
        values = fields.get("values")
        if isinstance(values, dict):
            self.values = numbers(values)
        pending = fields.get("pending")
        self.pending = numbers(pending) if isinstance(pending, dict) else {}
        owner, left_ms = fields.get("owner"), fields.get("lease_ms_left")
        self.lease = None
        if isinstance(owner, str):
            known_ms = left_ms if type(left_ms) is int and 0 <= left_ms <= MOST else 0
            self.lease = LeaseSeen(owner, now_ns + known_ms * _NS_PER_MS)
        self._take_epoch(fields)

    def _take_epoch(self, fields: Mapping[str, Any]) -> None:
        epoch = fields.get("epoch")
        if type(epoch) is int and epoch < MOST:
            self._epoch = max(self._epoch, epoch)

    def _take_owner(self, fields: Mapping[str, Any], now_ns: int) -> None:
        owner, greeting = fields.get("owner"), self._greeting_get
        self._greeting_get = False
        if greeting and owner == OWNER and not self.held and not self.keeps:
            # an agent before us died with it: begin from the start values
            self._request("release", now_ns, owner=OWNER)
        if self.state is not LinkState.HELD:
            return
        changed = self._changed_without_a_lease()
        if owner is None and not changed:
            self._become(LinkState.CONNECTED, self._greeting)
        elif owner is not None:
            self.detail = f"the lease is held by {owner!r:.40}"
        else:
            self.detail = f"{', '.join(changed)} changed by other means than a lease"

    def _changed_without_a_lease(self) -> list[str]:
        knobs = self.hello.knobs if self.hello is not None else {}
        return [
            name for name in knobs if self.values.get(name, knobs[name].start) != knobs[name].start
        ]

    def _look_for_others(self, now_ns: int) -> None:
        """Yield to whoever changes what we hold."""
        if not self.held or self._sent or self._unapplied or self.hello is None:
            return
        if self._promised is not None:
            return
        what = difference(self.hello.knobs, self.held, self._epoch, self._answered_values, self.now)
        if self._holding.is_foreign(now_ns, what):
            self._leave(now_ns, "foreign_write", what)

    def _leave(self, now_ns: int, kind: str, why: str) -> None:
        """Let the lease run out, and leave the knobs alone for a while."""
        self._let_go()
        self._give_up_unapplied(why)
        self._retry_ns = now_ns + LEFT_ALONE_NS
        self._become(LinkState.HELD, why, kind)

    def _let_go(self) -> None:
        self._holding.let_go()
        self._hand_lease_ms = self._promised = None

    def _ack(self, ack: Ack) -> None:
        self.last_ack = f"{ack.ack}{f': {ack.detail}' if ack.detail else ''}"
        self._acks.append(ack)

    def _lapse(self, why: str) -> None:
        if self._holding.lapse():
            self._notices.append(Notice("lease_lost", why))
            self._give_up_unapplied("the lease ran out")

    def _compare(self, before: EngineNow | None) -> None:
        """See what came of leases and pending values since the look before."""
        now = self.now
        if now is None or now is before:
            return
        self._shown_epoch = max(self._shown_epoch, now.epoch)
        expiries = before.lease_expiries_total if before is not None else now.lease_expiries_total
        if now.lease_expiries_total > expiries:
            self._lapse("the lease ran out before it was renewed")
        done = [sent for sent in self._unapplied if sent.epoch <= now.epoch]
        self._unapplied = [sent for sent in self._unapplied if sent.epoch > now.epoch]
        for sent in done:
            self.change_ns = max(0, now.updated_ns - sent.at_ns)
            after = f"in force after {self.change_ns / 1e6:.0f} ms"
            self._ack(Ack(sent.tag, "applied", sent.took_ns, after))
            dear = self._dear(self.held)
            if dear:
                self._notices.append(Notice("engine_reloaded", f"{', '.join(dear)}: {after}"))

    def _dear(self, values: Iterable[str]) -> list[str]:
        """Those of the knobs whose change is a reload."""
        knobs = self.hello.knobs if self.hello is not None else {}
        return [name for name in values if name in knobs and knobs[name].cost == RELOAD]

    def _give_up_unapplied(self, why: str) -> None:
        for sent in self._unapplied:
            self._ack(Ack(sent.tag, "lost", sent.took_ns, why))
        self._unapplied.clear()

    def _lose(self, now_ns: int, why: str, state: LinkState = LinkState.UNREACHABLE) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        for sent in self._sent.values():
            if sent.tag:
                self._ack(Ack(sent.tag, "lost", 0, why))
        self._sent.clear()
        self._give_up_unapplied(why)
        self._let_go()
        self._showing.end()
        self._is_greeted = False
        self.values, self.pending = {}, {}
        self.lease = None
        self._retry_ns = now_ns + RETRY_NS
        self._become(state, why)

    def _become(self, state: LinkState, detail: str, kind: str = "engine_lost") -> None:
        if state is not self.state:
            kind = "engine_seen" if state is LinkState.CONNECTED else kind
            self._notices.append(Notice(kind, detail))
        self.state, self.detail = state, detail
