"""Agent, controller or engine killed, the socket removed, the disk full: safe, and said so."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.engines.client import call
from tests.engines.reference_process import Running
from tests.kernel.conftest import MakeGroup, TwinGroup

from .rig import Site, Sitsd
from .traffic import engine_in, knobs, long_beside_short
from .waiting import becomes

pytestmark = pytest.mark.kernel

BY_HAND = 7


@pytest.fixture
def group(make_cgroup: MakeGroup) -> TwinGroup:
    return make_cgroup("alone")


@pytest.fixture
def engine(group: TwinGroup, tmp_path: Path) -> Iterator[Running]:
    with engine_in(group, tmp_path) as running:
        yield running


def targets(group: TwinGroup, engine: Running) -> str:
    return f'[engines.chat]\ncgroup = "/{group.cpu.name}"\nadmin_socket = "{engine.admin}"\n'


@pytest.fixture
def sitsd(site: Site, group: TwinGroup, engine: Running) -> Iterator[Sitsd]:
    site.write(targets(group, engine))
    with site.sitsd() as running:
        running.following()
        yield running


def is_by_hand(engine: Running) -> bool:
    now = knobs(engine)
    return bool(now["values"]["max_running"] == BY_HAND and now["owner"] == "sits")


def is_free(engine: Running) -> bool:
    now = knobs(engine)
    return bool(now["values"] == now["start"] and now["owner"] is None)


def admin(sitsd: Sitsd, state: str) -> Mapping[str, Any]:
    """The engine's admin socket once it is in this state."""
    shown = sitsd.engine(lambda engine: engine["admin"]["state"] == state)
    return dict(shown["admin_sockets"][0])


def set_by_hand(sitsd: Sitsd) -> None:
    answer = sitsd.api.set_knobs({"max_running": BY_HAND}, reason="a test")
    assert answer["state"] == "applied"


def test_what_is_set_by_hand_is_shown_kept_and_given_back(sitsd: Sitsd, engine: Running) -> None:
    set_by_hand(sitsd)
    assert is_by_hand(engine)
    shown = sitsd.engine(
        lambda engine: (
            (socket := engine["admin_sockets"][0])["lease"]
            and socket["by_hand"]["state"] == "in force"
        )
    )
    socket = shown["admin_sockets"][0]
    assert socket["by_hand"]["values"] == {"max_running": BY_HAND}
    assert 0 < socket["by_hand"]["left_s"] <= 60
    assert socket["lease"]["ours"]
    decision = becomes(lambda: [d for d in sitsd.decisions() if d["cause"] == "operator"])[0]
    assert decision["reason"] == "a test"
    assert sitsd.api.release()["engines"] == ["chat"]
    becomes(lambda: is_free(engine))
    sitsd.engine(lambda engine: not engine["admin_sockets"][0]["by_hand"])


def test_what_is_set_by_hand_goes_on_from_the_epoch_of_who_held_it_before(
    sitsd: Sitsd, engine: Running
) -> None:
    epoch = knobs(engine)["epoch"] + 40
    values = {"max_running": BY_HAND + 1}
    call(engine.admin, "set", 10, owner="other", epoch=epoch, lease_ms=10_000, values=values)
    # the same look at its page shows who runs
    with long_beside_short(engine):
        sitsd.engine(lambda shown: shown["running"])
    call(engine.admin, "release", 10, owner="other")
    set_by_hand(sitsd)
    assert is_by_hand(engine)
    assert knobs(engine)["epoch"] > epoch


def test_the_controller_killed_the_next_one_goes_on_with_what_was_set_by_hand(
    sitsd: Sitsd, engine: Running
) -> None:
    set_by_hand(sitsd)
    os.kill(sitsd.status(lambda s: s["controller"]["alive"])["controller"]["pid"], signal.SIGKILL)
    sitsd.status(
        lambda status: (
            status["controller"]["alive"]
            and status["controller"]["restarts"] == 1
            and (sockets := status["engines"][0]["admin_sockets"])
            and sockets[0]["by_hand"]
        )
    )
    assert "controller ended with signal 9" in sitsd.log
    assert is_by_hand(engine)
    sitsd.api.release()
    becomes(lambda: is_free(engine))


def test_the_agent_killed_everything_is_given_back_and_the_next_one_says_so(
    site: Site, group: TwinGroup, engine: Running
) -> None:
    site.write(targets(group, engine))
    with site.sitsd() as sitsd:
        sitsd.following()
        set_by_hand(sitsd)
        sitsd.kill()
        becomes(lambda: is_free(engine))
    with site.sitsd() as sitsd:
        sitsd.following()
        becomes(lambda: sitsd.events("change_over"))
        assert is_free(engine)
        sitsd.engine(lambda engine: not engine["admin_sockets"][0]["by_hand"])


def test_an_engine_killed_is_unreachable_and_the_next_one_begins_as_it_was_started(
    sitsd: Sitsd, group: TwinGroup, engine: Running, tmp_path: Path
) -> None:
    set_by_hand(sitsd)
    engine.process.kill()
    engine.process.wait()
    becomes(lambda: not sitsd.api.engines()["engines"][0]["found"])
    with engine_in(group, tmp_path) as anew:
        sitsd.following()
        assert is_free(anew)
        sitsd.engine(lambda engine: not engine["admin_sockets"][0]["by_hand"])
        becomes(lambda: sitsd.events("change_over"))


def test_a_socket_removed_is_said_and_a_restart_finds_nothing_there(
    sitsd: Sitsd, site: Site, engine: Running
) -> None:
    set_by_hand(sitsd)
    engine.admin.rename(engine.admin.with_name("elsewhere"))
    sitsd.status(lambda status: any("was removed" in each for each in status["problems"]))
    assert admin(sitsd, "connected")["removed"]
    sitsd.api.release()
    moved = Running(engine.process, engine.port, engine.admin.with_name("elsewhere"), engine.page)
    becomes(lambda: is_free(moved))
    assert sitsd.end() == 0
    with site.sitsd() as after:
        assert "no such file" in admin(after, "unreachable")["detail"].lower()


@contextmanager
def tiny(directory: Path) -> Iterator[Path]:
    """A file system with room for little more than the journal's beginning; its filler."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)], check=True)
    try:
        yield directory / "filler"
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(file: Path) -> None:
    """Leave no room at all."""
    with file.open("wb", buffering=0) as full:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    full.write(b"x" * size)
            except OSError:
                continue


def test_on_a_full_disk_it_goes_on_says_so_and_refuses_what_must_be_journalled(
    site: Site, group: TwinGroup, engine: Running
) -> None:
    site.write(targets(group, engine))
    with tiny(site.directory / "state") as filler, site.sitsd() as sitsd:
        sitsd.following()
        fill(filler)
        sitsd.api.set_mode("control", "the disk is full")
        full = sitsd.status(lambda status: any("is full" in each for each in status["problems"]))
        assert full["mode"] == "control"
        assert full["journal"]["dropped"] > 0
        finding = next(f for f in sitsd.api.doctor()["findings"] if f["name"] == "journal")
        assert not finding["ok"]
        answer = sitsd.api.set_knobs({"max_running": BY_HAND}, reason="a test")
        assert answer["state"] == "aborted"
        assert "could not be journalled" in answer["why"]
        assert is_free(engine)
        admin(sitsd, "connected")
        filler.unlink()
        set_by_hand(sitsd)
        sitsd.status(lambda status: not any("is full" in each for each in status["problems"]))


def test_it_starts_with_a_full_disk_too(site: Site, group: TwinGroup, engine: Running) -> None:
    site.write(targets(group, engine))
    with tiny(site.directory / "state") as filler:
        fill(filler)
        with site.sitsd() as sitsd:
            sitsd.following()
            sitsd.status(lambda status: any("journal" in each for each in status["problems"]))
