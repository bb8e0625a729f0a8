"""One adapter's life with an engine: undo what is left, serve; again when the engine changed."""

import logging
import secrets
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.adapters.bridge import MAX_LEASE_MS, Bridge
from controller.adapters.driver import AdapterError, Driver, EngineChangedError
from controller.adapters.kinds import connect
from controller.adapters.undo import Undo, UndoError, UndoFile, restore
from controller.engines.contract import Hello
from controller.engines.page import PageError, PageWriter
from controller.serving.calls import Calls
from controller.serving.server import AdminServer

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 0.25
LAST_RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """What is served, and where: the contract's socket and page, and the undo file."""

    kind: str
    settings: Mapping[str, str]
    admin_socket: Path
    page: Path | None
    undo_file: Path
    admin_gid: int | None = None


Tell = Callable[[str, str], None]
"""Takes the adapter's state, `serving`, `unreachable` or `stopped`, and a sentence about it."""


def serve(place: Place, stops: list[int], tell: Tell) -> bool:
    """Serve until one of the descriptors `stops` is readable; False if something is left to undo.

    `UndoError` if another process serves this engine already.
    """
    with closing(UndoFile(place.undo_file)) as undo:
        retry_s = FIRST_RETRY_S
        while True:
            began_s = time.monotonic()
            try:
                _begin(place, undo)
                with _serving(place, undo, tell) as bridge:
                    _work(bridge, stops)
                    tell("stopped", "")
                    return True
            except EngineChangedError as changed:
                why = str(changed)
                log.info("%s", changed)
            except (AdapterError, UndoError, PageError, OSError) as error:
                why = str(error)
            tell("unreachable", why)
            if time.monotonic() - began_s > LAST_RETRY_S:
                retry_s = FIRST_RETRY_S
            if select.select(stops, [], [], retry_s)[0]:
                return _left_behind(undo, tell)
            retry_s = min(LAST_RETRY_S, 2 * retry_s)


def undo_left(undo: UndoFile) -> str:
    """Write back what an adapter left behind; says what it did, nothing if nothing was left.

    `AdapterError` or `UndoError` if that can't be done; the file stays for another time then.
    """
    left = undo.load()
    if left is None:
        return ""
    try:
        driver = connect(left.kind, left.settings)
    except ValueError as error:
        raise UndoError(f"could not undo what '{undo.path}' names: {error}") from error
    with closing(driver):
        said = restore(left, driver)
    undo.clear()
    log.warning("an adapter was ended before it could give back: %s", said)
    return said


def _begin(place: Place, undo: UndoFile) -> None:
    """Undo what is left, if it can be: an engine that moved may never answer where it was."""
    left = undo.load()
    try:
        undo_left(undo)
    except AdapterError as error:
        if left is None or (left.kind, dict(left.settings)) == (place.kind, dict(place.settings)):
            raise
        log.warning("gave up undoing at %s: %s", dict(left.settings), error)
        undo.set_aside()


@contextmanager
def _serving(place: Place, undo: UndoFile, tell: Tell) -> Iterator[Bridge]:
    """A bridge to the engine as it is now, with its page and socket; given back at the end."""
    with ExitStack() as stack:
        driver: Driver = stack.enter_context(closing(connect(place.kind, place.settings)))
        identity, knobs = driver.identify(), driver.knobs()
        start = {name: knob.start for name, knob in knobs.items()}
        record = Undo(
            place.kind, place.settings, identity.instance, driver.keep(), start, start, None
        )
        page = PageWriter(place.page) if place.page is not None else None
        if page is not None:
            stack.callback(page.close)
        bridge = stack.enter_context(closing(Bridge(driver, identity, knobs, undo, record, page)))
        hello = Hello(
            engine=identity.engine,
            version=identity.version,
            # epochs begin again with each bridge
            instance=f"{identity.instance}-{secrets.token_hex(4)}",
            pid=identity.pid,
            knobs=knobs,
            page=None if place.page is None else str(place.page.absolute()),
            max_lease_ms=MAX_LEASE_MS,
        )
        bridge.work()
        with ExitStack() as door:
            admin = AdminServer(place.admin_socket, bridge, Calls(bridge, hello), place.admin_gid)
            door.callback(admin.stop)
            bridge.on_knobs(admin.wake)
            admin.start()
            tell("serving", f"{identity.engine} {identity.version}: {', '.join(knobs)}")
            yield bridge
        # only now that nobody can set anything any more
        bridge.stop()


def _work(bridge: Bridge, stops: list[int]) -> None:
    while True:
        timeout_s = bridge.work()
        readable, _, _ = select.select([bridge.wake, *stops], [], [], timeout_s)
        if any(fd in readable for fd in stops):
            return


def _left_behind(undo: UndoFile, tell: Tell) -> bool:
    """A last try; whether nothing is left."""
    try:
        undo_left(undo)
    except (AdapterError, EngineChangedError, UndoError) as error:
        tell("stopped", f"the start values could not be written back: {error}")
        return False
    tell("stopped", "")
    return True
