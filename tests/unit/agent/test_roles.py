"""Who may only read and who may operate, by real users at the other end of a real socket."""

import grp
import json
import logging
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.agent_view import ApiError
from agent.api import admin_app
from agent.http import unix_server
from agent.peers import PEER, Peer
from agent.roles import may_operate, operators_only
from tests.unit.agent.recorded import RecordedView

ASK = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.sendall(sys.argv[2].encode())
print(sock.makefile().read())
"""
GET = "GET /v1/status HTTP/1.0\r\n\r\n"
BODY = json.dumps({"mode": "shadow"})
POST = f"POST /v1/mode HTTP/1.0\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
NOBODY = pwd.getpwnam("nobody")
OPERATORS = grp.getgrnam("audio")
OTHERS = grp.getgrnam("games")

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@dataclass(slots=True)
class Agent:
    """The API at a socket that anybody may connect to."""

    path: Path
    view: RecordedView
    operators: str | None = None

    def ask(self, request: str, uid: int, gid: int, groups: Sequence[int] = ()) -> tuple[int, Any]:
        """The status and what is answered to a process of that user and these groups."""
        done = subprocess.run(
            [sys.executable, "-IS", "-c", ASK, str(self.path), request],
            user=uid,
            group=gid,
            extra_groups=groups,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        head, _, content = done.stdout.partition("\n\n")
        return int(head.split(" ")[1]), json.loads(content)


@pytest.fixture
def agent() -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        made = Agent(Path(directory) / "admin.sock", RecordedView())
        app = admin_app(made.view, operators_only(lambda: made.operators))
        with unix_server(made.path, app):
            made.path.chmod(0o666)
            yield made


@root
def test_who_may_connect_may_read(agent: Agent) -> None:
    status, answer = agent.ask(GET, NOBODY.pw_uid, NOBODY.pw_gid)
    assert (status, answer["mode"]) == (200, "control")


@root
def test_who_may_only_read_changes_nothing_and_is_told_why(agent: Agent) -> None:
    status, answer = agent.ask(POST, NOBODY.pw_uid, NOBODY.pw_gid)
    assert status == 403
    assert answer["error"] == (
        "/v1/mode changes what the agent does: that takes root (the policy names no"
        f" agent.operators), and you are 'nobody' (uid {NOBODY.pw_uid}); what only reads is open"
        " to you"
    )
    assert agent.view.asked == []


@root
def test_root_operates_without_being_in_any_group(agent: Agent) -> None:
    assert agent.ask(POST, 0, NOBODY.pw_gid)[0] == 200
    assert len(agent.view.asked) == 1


@root
@pytest.mark.parametrize("own", [True, False])
def test_a_member_of_the_operators_group_operates(agent: Agent, own: bool) -> None:
    agent.operators = OPERATORS.gr_name
    gid, more = (OPERATORS.gr_gid, []) if own else (NOBODY.pw_gid, [1, OPERATORS.gr_gid])
    assert agent.ask(POST, NOBODY.pw_uid, gid, more)[0] == 200


@root
def test_a_member_of_another_group_is_told_which_one_it_takes(agent: Agent) -> None:
    agent.operators = OPERATORS.gr_name
    status, answer = agent.ask(POST, NOBODY.pw_uid, NOBODY.pw_gid, [OTHERS.gr_gid])
    assert status == 403
    assert "that takes root or a member of group 'audio' (agent.operators of" in answer["error"]


@root
def test_a_group_that_does_not_exist_lets_nobody_in(agent: Agent) -> None:
    agent.operators = "no-such-group"
    assert agent.ask(POST, NOBODY.pw_uid, NOBODY.pw_gid)[0] == 403


@root
def test_another_group_counts_from_the_next_request_on(agent: Agent) -> None:
    agent.operators = OPERATORS.gr_name
    assert agent.ask(POST, NOBODY.pw_uid, NOBODY.pw_gid, [OTHERS.gr_gid])[0] == 403
    agent.operators = OTHERS.gr_name
    assert agent.ask(POST, NOBODY.pw_uid, NOBODY.pw_gid, [OTHERS.gr_gid])[0] == 200


@root
def test_every_change_and_every_refusal_is_logged_with_who_asked(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sits.api")
    agent.ask(POST, NOBODY.pw_uid, NOBODY.pw_gid)
    agent.ask(POST, 0, 0)
    said = [
        (each.levelname, each.getMessage().partition(", process")[0]) for each in caplog.records
    ]
    assert said == [
        ("WARNING", f"/v1/mode was refused to uid {NOBODY.pw_uid}"),
        ("INFO", "/v1/mode by uid 0"),
    ]


def test_the_user_that_the_agent_runs_as_operates() -> None:
    assert may_operate(Peer(1, 1000, frozenset()), own_uid=1000, operators=None)
    assert not may_operate(Peer(1, 1001, frozenset()), own_uid=1000, operators=None)


def test_nobody_known_may_change_nothing() -> None:
    with pytest.raises(ApiError, match="who asks is not known"):
        operators_only(lambda: None)({"PATH_INFO": "/v1/mode"})


def test_a_user_without_a_name_is_called_by_number() -> None:
    who = Peer(1, 3_999_999_999, frozenset())
    with pytest.raises(ApiError, match="and you are uid 3999999999;"):
        operators_only(lambda: None)({"PATH_INFO": "/v1/mode", PEER: who})
