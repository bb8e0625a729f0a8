"""Who may read the metrics: names with salted hashes of their passwords, in a file.

One line a user, `NAME:scrypt:LOG2_N:R:P:SALT:HASH`, salt and hash in base64; empty lines and lines
that begin with # say nothing. `sitsctl metrics-user NAME` makes such a line. scrypt is of Python's
own hashlib (RFC 7914); bcrypt, which Prometheus' exporters use, would be one more dependency.
"""

import base64
import hashlib
import hmac
import logging
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.tls import stamp_of
from controller.plain import plain

MAX_USERS_BYTES: Final = 64 * 1024
RETRY_S: Final = 0.5
"""After a wrong password the next unknown one is looked at this much later: guessing is slow, and
takes little of a core. Who has once been let in does not wait."""

WAITING: Final = 4
"""Unknown ones who may wait for that at a time; one more is refused at once, and holds no place."""

_LOG2_N: Final = 14
_R: Final = 8
_P: Final = 1
"""RFC 7914 for interactive log-ins: 16 MiB and some 40 ms a look."""

_HASH_BYTES: Final = 32
_SALT_BYTES: Final = 16
_MAX_MEMORY: Final = 64 << 20
_MAX_KNOWN: Final = 64
_LOG: Final = logging.getLogger("sits.http")
_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_LINE: Final = re.compile(
    r"([A-Za-z0-9_.@-]{1,64}):scrypt:([0-9]{1,2}):([0-9]{1,2}):([0-9])"
    r":([A-Za-z0-9+/=]{8,88}):([A-Za-z0-9+/=]{24,88})"
)


class UsersError(OSError):
    """The users' file can't be used."""


@dataclass(frozen=True, slots=True)
class Hashed:
    """One password as it is kept: scrypt's three costs, the salt and the hash."""

    log2_n: int
    r: int
    p: int
    salt: bytes
    hash: bytes

    def holds(self, password: str) -> bool:
        """Whether this is the password; takes the same time either way."""
        made = _scrypt(password, self.salt, self.log2_n, self.r, self.p, len(self.hash))
        return hmac.compare_digest(made, self.hash)


def user_line(name: str, password: str) -> str:
    """The line of a user in the file; `ValueError` if the name can't stand in one."""
    if not _NAME.fullmatch(name):
        raise ValueError("a user's name is 1 to 64 letters, digits, _, ., @ and -")
    salt = os.urandom(_SALT_BYTES)
    made = _scrypt(password, salt, _LOG2_N, _R, _P, _HASH_BYTES)
    texts = (base64.b64encode(each).decode() for each in (salt, made))
    return f"{name}:scrypt:{_LOG2_N}:{_R}:{_P}:{':'.join(texts)}"


def read_users(path: Path) -> Mapping[str, Hashed]:
    """The users in a file; `UsersError` names the line that does not hold. Never quotes a line."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_USERS_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsersError(plain(f"could not read users '{path}': {why}")) from None
    if len(content) > MAX_USERS_BYTES:
        raise UsersError(plain(f"could not read users '{path}': over {MAX_USERS_BYTES} bytes"))
    users: dict[str, Hashed] = {}
    for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        user = _user(text)
        if user is None or user[0] in users:
            what = "the same user again" if user else "not NAME:scrypt:LOG2_N:R:P:SALT:HASH"
            raise UsersError(plain(f"could not read users '{path}': line {number}: {what}"))
        users[user[0]] = user[1]
    if not users:
        raise UsersError(plain(f"could not read users '{path}': nobody is in it"))
    return users


class Users:
    """Tells who may come in, by the file as it is now. From any thread."""

    def __init__(self, path: Path) -> None:
        """`UsersError` if the file can't be used now."""
        self._path = path
        self._stamp = stamp_of(path)
        self._users = read_users(path)
        self._lock = threading.Lock()
        self._key = os.urandom(32)
        self._known: set[bytes] = set()
        self._not_before_s = 0.0
        self._looks = threading.BoundedSemaphore(WAITING)

    def admits(self, header: str) -> bool:
        """Whether an `Authorization` header (RFC 7617) is of somebody who may come in."""
        pair = _name_and_password(header)
        if pair is None:
            return False
        mark = hmac.digest(self._key, "\0".join(pair).encode(errors="replace"), "sha256")
        self._look()
        if mark in self._known:
            return True
        if not self._looks.acquire(blocking=False):
            return False
        try:
            with self._lock:
                return self._try(*pair, mark)
        finally:
            self._looks.release()

    def _try(self, name: str, password: str, mark: bytes) -> bool:
        time.sleep(max(0.0, self._not_before_s - time.monotonic()))
        # an unknown name costs as much as a known one, so that time does not tell them apart
        kept = self._users.get(name) or next(iter(self._users.values()))
        if not (kept.holds(password) and name in self._users):
            self._not_before_s = time.monotonic() + RETRY_S
            return False
        if len(self._known) >= _MAX_KNOWN:
            self._known = set()
        self._known = self._known | {mark}
        return True

    def _look(self) -> None:
        """Read the file again if it changed; one that does not hold leaves things as they were."""
        if stamp_of(self._path) == self._stamp:
            return
        with self._lock:
            self._stamp = stamp_of(self._path)
            try:
                self._users = read_users(self._path)
                self._known = set()
            except UsersError as error:
                _LOG.error("the old users of the metrics stay in force: %s", error)


def _user(line: str) -> tuple[str, Hashed] | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    name, *numbers, salt, made = found.groups()
    log2_n, r, p = (int(each) for each in numbers)
    try:
        kept = Hashed(
            log2_n, r, p, *(base64.b64decode(each, validate=True) for each in (salt, made))
        )
    except ValueError:
        return None
    # within what a look may cost, and no weaker than what we would write
    bounded = _LOG2_N <= log2_n <= 16 and 1 <= p <= 4 and 128 * r * (1 << log2_n) < _MAX_MEMORY
    return (name, kept) if bounded and r >= _R and len(kept.hash) >= 16 else None


def _name_and_password(header: str) -> tuple[str, str] | None:
    kind, _, content = header.partition(" ")
    if kind.lower() != "basic" or len(content) > 1024:
        return None
    try:
        text = base64.b64decode(content.strip(), validate=True).decode()
    except ValueError:
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon else None


def _scrypt(password: str, salt: bytes, log2_n: int, r: int, p: int, length: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=1 << log2_n, r=r, p=p, maxmem=2 * _MAX_MEMORY, dklen=length
    )
