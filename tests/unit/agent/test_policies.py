"""How the policy changes: whole or not at all, and what is told of it."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from agent.api import ApiError, JsonObject
from agent.main_thread import MainThread
from agent.policies import JOURNALLED, Policies
from controller.policy import load_policy, parse_policy
from controller.policy_model import Mode, Policy

BASE = 'mode = "shadow"\n[engines.chat]\nport = 8000\nslo.gap_ms = 120\n'
NEW = BASE.replace("120", "80")


class Desk:
    """Policies with a main thread of their own; keeps what was enforced and journalled."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "policy.toml"
        self.file.write_text(BASE)
        self.enforced: list[tuple[Policy, Mode | None, Collection[str]]] = []
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self._asked, self._stopped = Event(), False
        self.main = MainThread(self._asked.set)
        self.policies = Policies(
            load_policy(self.file), self.file, self.main, self._enforce, self._note
        )
        self._thread = Thread(target=self._run)
        self._thread.start()

    def apply(self, text: str, temporary: bool = False) -> JsonObject:
        return self.policies.apply(text, "new.toml", temporary)

    def refused(self, text: str, status: int) -> str:
        """The refusal of a policy, which changed nothing at all."""
        before = (self.policies.policy, self.policies.source, self.policies.in_file)
        with pytest.raises(ApiError) as caught:
            self.apply(text)
        assert caught.value.status == status
        now = (self.policies.policy, self.policies.source, self.policies.in_file)
        assert (now, self.enforced, self.events) == (before, [], [])
        assert self.file.read_text() == BASE
        assert not self.file.with_name("policy.toml.previous").exists()
        return str(caught.value)

    def close(self) -> None:
        self._stopped = True
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._asked.wait()
            self._asked.clear()
            self.main.run()

    def _enforce(self, policy: Policy, mode: Mode | None, afresh: Collection[str]) -> None:
        self.enforced.append((policy, mode, afresh))

    def _note(self, kind: str, subject: str, detail: Mapping[str, Any]) -> None:
        self.events.append((kind, subject, dict(detail)))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def test_a_policy_that_is_applied_is_enforced_written_and_journalled(desk: Desk) -> None:
    answer = desk.apply(NEW)
    previous = desk.file.with_name("policy.toml.previous")
    assert answer == {
        "source": "new.toml",
        "changes": [{"key": "engines.chat.slo.gap_ms", "from": 120.0, "to": 80.0, "live": True}],
        "file": str(desk.file),
        "in_file": True,
        "previous": str(previous),
    }
    ((policy, mode, afresh),) = desk.enforced
    assert policy == desk.policies.policy == load_policy(desk.file)
    assert (mode, list(afresh)) == (None, [])
    assert previous.read_text() == BASE
    assert desk.events == [
        (
            "policy",
            str(desk.file),
            {"by": "apply", "changed": ["engines.chat.slo.gap_ms 120 → 80"]},
        )
    ]


def test_what_is_temporary_is_not_written(desk: Desk) -> None:
    answer = desk.apply(NEW, temporary=True)
    assert (answer["in_file"], answer["previous"]) == (False, None)
    assert desk.file.read_text() == BASE
    assert desk.policies.source == "new.toml"
    assert desk.policies.reload()["in_file"] is True
    assert desk.policies.policy == load_policy(desk.file)


def test_a_mode_is_set_where_the_policies_differ_in_it(desk: Desk) -> None:
    desk.apply(BASE.replace("shadow", "control"))
    desk.apply(NEW.replace("shadow", "control"))
    assert [mode for _, mode, _ in desk.enforced] == ["control", None]


def test_a_policy_that_does_not_hold_changes_nothing_and_names_each_line(desk: Desk) -> None:
    said = desk.refused('mode = "x"\n[engines.chat]\nport = 0\n', 422)
    first, second = said.split("\n")
    assert first.startswith("new.toml:1: mode: must be")
    assert second.startswith("new.toml:3: engines.chat.port: must be")


def test_a_policy_that_needs_a_restart_changes_nothing_and_names_each_key(desk: Desk) -> None:
    said = desk.refused(NEW + "[agent]\nmax_targets = 7\n[otel]\nmax_queue = 7\n", 409)
    assert said.split("\n") == [
        "new.toml:6: agent.max_targets 64 → 7: needs a restart",
        "new.toml:8: otel.max_queue 2048 → 7: needs a restart",
        "nothing was changed",
    ]


def test_a_key_that_is_gone_has_no_line(desk: Desk) -> None:
    desk.policies.policy = parse_policy(BASE + "[otel]\nmax_queue = 7\n", "before")
    assert desk.refused(BASE, 409).split("\n")[0] == (
        "new.toml: otel.max_queue 7 → 2048: needs a restart"
    )


def test_a_file_that_can_t_be_written_changes_nothing(desk: Desk) -> None:
    (desk.file.parent / ".policy.toml.previous.new").mkdir()
    said = desk.refused(NEW, 409)
    assert said.startswith(f"could not write '{desk.file}': is a directory; nothing was changed")


def test_the_same_policy_again_is_not_enforced(desk: Desk) -> None:
    assert desk.apply(BASE + "# the same\n")["changes"] == []
    assert desk.enforced == []
    assert desk.file.read_text() == BASE + "# the same\n"


def test_a_reload_takes_what_the_file_says_now(desk: Desk) -> None:
    desk.file.write_text(NEW)
    answer = desk.policies.reload()
    assert [change["key"] for change in answer["changes"]] == ["engines.chat.slo.gap_ms"]
    assert desk.policies.policy == load_policy(desk.file)
    assert desk.events[0][2]["by"] == "reload"


def test_a_reload_of_what_does_not_hold_changes_nothing_and_says_so(desk: Desk) -> None:
    before = desk.policies.policy
    for text, why in (("mode = 1", ":1: mode: must be"), ("[agent]\nmax_targets = 7", "restart")):
        desk.file.write_text(text)
        with pytest.raises(ApiError, match=why):
            desk.policies.reload()
    desk.file.unlink()
    with pytest.raises(ApiError, match="no such file"):
        desk.policies.reload()
    assert (desk.policies.policy, desk.enforced) == (before, [])


def test_a_signal_reloads_or_tells_why_not(desk: Desk) -> None:
    desk.file.write_text(NEW)
    assert desk.policies.reload_here() == ""
    desk.file.write_text("mode = 1")
    why = desk.policies.reload_here()
    assert why.startswith(f"the policy file was not read again: {desk.file}:1: mode: must be")
    kind, subject, detail = desk.events[-1]
    assert (kind, subject) == ("policy", str(desk.file))
    assert detail["refused"].startswith(f"{desk.file}:1: mode")


def test_a_diff_changes_nothing(desk: Desk) -> None:
    text = NEW + "[agent]\nmax_targets = 7\n"
    changes = desk.policies.diff(text, "new.toml")["changes"]
    assert {change["key"]: change["live"] for change in changes} == {
        "agent.max_targets": False,
        "engines.chat.slo.gap_ms": True,
    }
    assert (desk.enforced, desk.events, desk.file.read_text()) == ([], [], BASE)


def test_an_event_names_a_bounded_number_of_keys(desk: Desk) -> None:
    many = "".join(f"[engines.e{n}]\nport = {n + 1}\n" for n in range(30))
    desk.apply(BASE + many)
    detail = desk.events[0][2]
    assert len(detail["changed"]) == JOURNALLED
    assert detail["more"] > 100
