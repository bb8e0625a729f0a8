"""What listens where an engine should, and misbehaves."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

Behaviour = Callable[[socket.socket], None]


def talks_nonsense(peer: socket.socket) -> None:
    peer.sendall(b"\x00\xffHTTP/1.1 200 OK\r\n\r\n")
    peer.recv(4096)


def never_ends_its_line(peer: socket.socket) -> None:
    while True:
        peer.sendall(b"[" * 65_536)


def answers_with_wrong_types(peer: socket.socket) -> None:
    for line in peer.makefile("rb"):
        made = {"protocol": [1], "engine": 7, "version": None, "knobs": [], "instance": {}}
        peer.sendall(json.dumps({"id": json.loads(line)["id"], "ok": True} | made).encode() + b"\n")


def answers_no_one(peer: socket.socket) -> None:
    while peer.recv(4096):
        pass


@contextmanager
def peer_at(path: Path, behave: Behaviour) -> Iterator[None]:
    """What listens where an engine should."""
    stopping = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                peer, _ = listener.accept()
                with peer:
                    if stopping.is_set():
                        return
                    try:
                        behave(peer)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.connect(str(path))
            thread.join()


PEERS: Final[dict[str, tuple[Behaviour | None, str]]] = {
    "absent": (None, "No such file or directory"),
    "nonsense": (talks_nonsense, "not a line of JSON"),
    "endless": (never_ends_its_line, "sent a line of more than 65536 bytes"),
    "wrong": (answers_with_wrong_types, "broke the contract in hello"),
    "silent": (answers_no_one, "did not answer for 500 ms"),
}
