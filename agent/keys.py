"""Keys one by one from a terminal, and a terminal as it was afterwards."""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits some seconds for keys or a new size of the window; "" for no key.

    Meanwhile the terminal gives keys one by one, and an end by SIGTERM restores it too.
    """
    with ExitStack() as undo:
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        undo.callback(os.close, woken)
        undo.callback(os.close, wake)
        undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake, warn_on_full_buffer=False))
        for number, handler in (
            (signal.SIGWINCH, lambda *_: None),
            (signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)),
            (signal.SIGHUP, lambda *_: sys.exit(128 + signal.SIGHUP)),
        ):
            undo.callback(signal.signal, number, signal.signal(number, handler))
        watched = [woken]
        if sys.stdin.isatty():
            keyboard = sys.stdin.fileno()
            before = termios.tcgetattr(keyboard)
            undo.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, before)
            tty.setcbreak(keyboard)
            watched.append(keyboard)

        def wait(seconds: float) -> str:
            ready, _, _ = select.select(watched, [], [], seconds)
            if woken in ready:
                os.read(woken, 4096)
            if not ready or ready == [woken]:
                return ""
            # At the end of the input there will be no key ever again; Ctrl-C still ends it.
            pressed = os.read(watched[-1], 4096)
            if not pressed:
                watched.pop()
            return pressed.decode("latin-1")

        yield wait
