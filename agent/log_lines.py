"""Decisions and events as lines of the log, with fields that journald can be asked by.

`journalctl SITS_ENGINE=chat SITS_CAUSE=neighbour_cpu`, say. The journal of sits keeps more.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

_LOG: Final = logging.getLogger("sits.decisions")
_EVENTS: Final = logging.getLogger("sits.events")

_WARNINGS: Final = ("_lost", "_refused", "_lapsed", "_nonsense", "_stale", "_given_up")
"""How the kinds of events end that somebody should look at."""

_MORE_WARNINGS: Final = frozenset({"foreign_write"})


def log_decision(message: Mapping[str, Any]) -> None:
    """Tell of a controller's `decision` message; of one that is only thought at the level debug."""
    changes = ", ".join(
        f"{each['target']} {each['knob']} {each['from']} → {each['to']}"
        for each in message["action"]
    )
    _LOG.log(
        logging.INFO if message["mode"] == "control" else logging.DEBUG,
        "%s: %s: %s (%s)",
        message["engine"],
        message["cause"],
        changes or "nothing",
        message["reason"],
        extra={
            "fields": {
                "SITS_ENGINE": message["engine"],
                "SITS_CAUSE": message["cause"],
                "SITS_MODE": message["mode"],
                "SITS_ACK": message["ack"],
            }
        },
    )


def log_event(kind: str, subject: str, detail: Mapping[str, Any]) -> None:
    """Tell of a change of state."""
    bad = kind.endswith(_WARNINGS) or kind in _MORE_WARNINGS
    _EVENTS.log(
        logging.WARNING if bad else logging.INFO,
        "%s: %s%s",
        kind,
        subject,
        "".join(f", {name} {value}" for name, value in detail.items()),
        extra={"fields": {"SITS_EVENT": kind, "SITS_SUBJECT": subject}},
    )
