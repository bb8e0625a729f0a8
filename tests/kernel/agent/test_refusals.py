"""Starts that can't be: each says why, and leaves nothing."""

import socket
import sqlite3
from contextlib import closing

import pytest

from .conftest import Node
from .rig import Site

pytestmark = pytest.mark.kernel


def left_behind(site: Site) -> set[str]:
    """What a start made: pins, and files beside the policy and its log."""
    pins = {str(site.pin_dir)} if site.pin_dir.exists() else set()
    run = site.directory / "run"
    return pins | {each.name for each in run.glob("*") if each.is_socket()}


def test_a_wrong_policy_names_file_line_field_and_what_is_allowed(node: Node, site: Site) -> None:
    site.write(node.targets().replace("gap_ms = 30000", 'gap_ms = "soon"'), "contol")
    line = 1 + site.policy.read_text().splitlines().index(
        next(line for line in site.policy.read_text().splitlines() if "soon" in line)
    )
    done = site.run()
    assert done.returncode == 1
    assert f"{site.policy}:1: mode: " in done.stderr
    assert 'must be one of "observe", "shadow", "control", not "contol"' in done.stderr
    assert f"{site.policy}:{line}: engines.chat.slo.gap_ms: " in done.stderr
    assert 'must be a number of ms from 1 to 60000, not "soon"' in done.stderr
    assert "Traceback" not in done.stderr
    assert left_behind(site) == set()
    assert not (site.directory / "run").exists()
    assert site.run("--check").returncode == 1


def test_a_good_policy_is_checked_without_a_start(node: Node, site: Site) -> None:
    site.write(node.targets())
    done = site.run("--check")
    assert (done.returncode, done.stdout) == (0, f"{site.policy}: good\n")
    assert left_behind(site) == set()


def test_no_policy_at_all_is_said(site: Site) -> None:
    done = site.run()
    assert done.returncode == 1
    assert f"could not load policy '{site.policy}': no such file or directory" in done.stderr


def test_a_run_directory_that_can_not_be_made_is_named(node: Node, site: Site) -> None:
    (site.directory / "run").write_text("a file is in the way")
    site.write(node.targets())
    done = site.run()
    assert done.returncode == 1
    assert f"could not make directory {site.directory / 'run'}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not site.pin_dir.exists()


def test_a_second_agent_is_refused_with_the_process_of_the_first(node: Node, site: Site) -> None:
    site.write(node.targets())
    with site.sitsd() as first:
        second = site.run()
        assert second.returncode == 1
        assert f"another sitsd runs already (process {first.process.pid}, " in second.stderr
        assert first.api.status()["mode"] == "observe"


def test_a_metrics_port_in_use_is_named_and_nothing_stays(node: Node, site: Site) -> None:
    site.write(node.targets())
    with socket.create_server(("127.0.0.1", site.metrics_port)):
        done = site.run()
    assert done.returncode == 1
    assert f"could not listen on '127.0.0.1:{site.metrics_port}'" in done.stderr
    assert "Traceback" not in done.stderr
    assert left_behind(site) == set()


def test_an_admin_socket_that_others_listen_on_is_left_alone(node: Node, site: Site) -> None:
    site.write(node.targets())
    site.admin_socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(site.admin_socket))
        other.listen()
        done = site.run()
    assert done.returncode == 1
    assert f"could not listen on '{site.admin_socket}'" in done.stderr
    assert not site.pin_dir.exists()


def test_a_journal_of_a_newer_version_is_not_touched(node: Node, site: Site) -> None:
    site.write(node.targets())
    path = site.directory / "state" / "journal.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as journal:
        journal.execute("pragma user_version = 99")
    content = path.read_bytes()
    done = site.run()
    assert done.returncode == 1
    assert str(path) in done.stderr
    assert "version 99" in done.stderr
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == content
    assert not site.pin_dir.exists()
