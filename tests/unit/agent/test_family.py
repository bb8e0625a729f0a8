import os
import subprocess
import threading
from pathlib import Path

import psutil

from agent.family import family_of

NEST = "sleep 60 & echo $!; sh -c 'sleep 60 & echo $!; wait' & echo $!; wait"


def test_all_that_a_process_started_is_found_at_any_depth() -> None:
    with subprocess.Popen(["sh", "-c", NEST], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            started = {int(process.stdout.readline()) for _ in range(3)}
            assert family_of(process.pid) == {process.pid, *started}
        finally:
            for each in psutil.Process(process.pid).children(recursive=True):
                each.kill()


def test_what_another_thread_started_belongs_to_the_process_too() -> None:
    started: list[subprocess.Popen[bytes]] = []
    begun, done = threading.Event(), threading.Event()

    def start() -> None:
        started.append(subprocess.Popen(["sleep", "60"]))
        begun.set()
        done.wait()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        assert begun.wait(60)
        assert started[0].pid in family_of(os.getpid())
    finally:
        done.set()
        thread.join()
        for each in started:
            each.kill()
            each.wait()


def test_a_process_that_is_gone_has_none() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert family_of(process.pid) == frozenset()


def test_a_kernel_without_the_list_is_asked_the_long_way(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert family_of(os.getpid(), proc=tmp_path) >= {os.getpid(), process.pid}
        finally:
            process.kill()
