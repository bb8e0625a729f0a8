"""What every test relies on, however the run was started."""

import signal


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start: a run in the background inherits it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
