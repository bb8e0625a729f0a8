"""Who may do what over the admin socket, by who the kernel says is at its other end.

Whoever can connect may read. What changes something is for those who operate: root, the user that
the agent runs as, and the members of one group that the policy names.
"""

import grp
import logging
import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from wsgiref.types import WSGIEnvironment

from agent.agent_view import ApiError
from agent.api import Gate
from agent.peers import PEER, Peer
from controller.plain import plain

_LOG: Final = logging.getLogger("sits.api")


def may_operate(who: Peer, own_uid: int, operators: int | None) -> bool:
    """Whether `who` may change what the agent does; `operators` is a group's id."""
    return who.uid in {0, own_uid} or (operators is not None and operators in who.groups)


def operators_only(group: Callable[[], str | None]) -> Gate:
    """A gate for changes: `ApiError` 403 says who may make them. `group` names the operators.

    Each change is logged with who asked for it, and so is each refusal.
    """

    def gate(environ: WSGIEnvironment) -> None:
        path, who, name = str(environ.get("PATH_INFO", "")), environ.get(PEER), group()
        if not isinstance(who, Peer):
            raise ApiError(403, f"{path} changes what the agent does, and who asks is not known")
        fields = {"SITS_CALL": path, "SITS_PEER_UID": who.uid, "SITS_PEER_PID": who.pid}
        if may_operate(who, os.geteuid(), _group_id(name)):
            _LOG.info("%s by uid %d, process %d", path, who.uid, who.pid, extra={"fields": fields})
            return
        _LOG.warning(
            "%s was refused to uid %d, process %d", path, who.uid, who.pid, extra={"fields": fields}
        )
        others = (
            "(the policy names no agent.operators)"
            if name is None
            else f"or a member of group '{name}' (agent.operators of the policy)"
        )
        raise ApiError(
            403,
            f"{path} changes what the agent does: that takes root {others}, and you are"
            f" {_user(who.uid)}; what only reads is open to you",
        )

    return gate


def _group_id(name: str | None) -> int | None:
    """The group's id; None for no group, or one that does not exist."""
    with suppress(KeyError):
        return None if name is None else grp.getgrnam(name).gr_gid
    return None


def _user(uid: int) -> str:
    try:
        return f"'{plain(pwd.getpwuid(uid).pw_name)}' (uid {uid})"
    except KeyError:
        return f"uid {uid}"
