"""Threads by name: `roles.py NAME…`, one each. Writes "ready", and one line to each line it reads.

`burn NAME MS`: have that thread take so much CPU time. `rename NAME NEW`: give it another name.
`crowd COUNT`: so many threads more, each of a name of its own.
"""

import ctypes
import queue
import sys
import threading
import time

PR_SET_NAME = 15


class Thread:
    def __init__(self, name: str) -> None:
        self.work: queue.Queue[tuple[str, str]] = queue.Queue()
        self.done: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._run, args=(name,), daemon=True).start()
        self.done.get()

    def do(self, what: str, how: str) -> None:
        self.work.put((what, how))
        self.done.get()

    def _run(self, name: str) -> None:
        call_me(name)
        self.done.put(0)
        while True:
            what, how = self.work.get()
            if what == "rename":
                call_me(how)
            else:
                end = time.thread_time_ns() + int(how) * 1_000_000
                while time.thread_time_ns() < end:
                    pass
            self.done.put(0)


def call_me(name: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    threads = {name: Thread(name) for name in sys.argv[1:]}
    print("started", flush=True)
    for line in sys.stdin:
        what, *words = line.split()
        if what == "crowd":
            crowd = [Thread(f"crowd{number}") for number in range(int(words[0]))]
            # names are looked up again after a second
            time.sleep(1.1)
            for each in crowd:
                each.do("burn", "0")
            print("crowded", flush=True)
        else:
            threads[words[0]].do(what, words[1])
            print("done", flush=True)


if __name__ == "__main__":
    main()
