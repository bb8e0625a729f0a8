"""Other threads' jobs in the main thread, here the test's own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent.main_thread import BusyError, MainThread


def run_until(main: MainThread, done: threading.Event) -> None:
    ends = time.monotonic() + 10
    while not done.is_set() and time.monotonic() < ends:
        main.run()


def test_a_job_is_done_in_the_thread_that_runs_and_its_result_comes_back() -> None:
    woken = threading.Event()
    main = MainThread(woken.set)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(main.call, threading.get_ident)
        assert woken.wait(10)
        main.run()
        assert answer.result(10) == threading.get_ident()


def test_what_a_job_raises_is_raised_in_the_thread_that_asked() -> None:
    woken = threading.Event()
    main = MainThread(woken.set)

    def fails() -> None:
        raise KeyError("this")

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(main.call, fails)
        assert woken.wait(10)
        main.run()
        with pytest.raises(KeyError, match="this"):
            answer.result(10)


def test_a_job_that_was_given_up_is_not_done_later() -> None:
    main, done = MainThread(lambda: None), []
    with pytest.raises(BusyError, match="nothing was done"):
        main.call(lambda: done.append(1), 0.01)
    main.run()
    assert done == []


def test_a_job_that_takes_longer_than_the_wait_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wake() -> None:
        # so it has begun before the wait, however late that is on a busy machine
        assert begun.wait(10)

    def slow() -> str:
        begun.set()
        assert go_on.wait(10)
        return "done"

    main = MainThread(wake)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(main.call, slow, 0)
        runner = pool.submit(run_until, main, begun)
        assert begun.wait(10)
        with pytest.raises(TimeoutError):
            answer.result(0.2)
        go_on.set()
        assert answer.result(10) == "done"
        runner.result(10)


def test_what_is_left_at_the_end_is_refused() -> None:
    woken = threading.Event()
    main = MainThread(woken.set)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(main.call, lambda: None)
        assert woken.wait(10)
        main.close()
        with pytest.raises(BusyError, match="the agent stops"):
            answer.result(10)
