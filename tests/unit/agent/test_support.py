"""The support bundle: what is in it, and above all what is not."""

import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from agent.sitsctl import main
from agent.support import HIDDEN, cleaned

from .recorded import RecordedView, served


def bundle(tmp_path: Path, view: RecordedView) -> dict[str, str]:
    path = tmp_path / "bundle.tar.gz"
    with served(view, tmp_path / "admin.sock") as socket_path:
        done = CliRunner().invoke(main, ["support", "-o", str(path), "--socket", str(socket_path)])
    assert done.exit_code == 0, done.output
    return unpacked(path)


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as file:
        found = {}
        for each in file.getmembers():
            content = file.extractfile(each)
            assert content is not None
            found[each.name.removeprefix("sits-support/")] = content.read().decode()
        return found


def test_it_has_every_answer_as_json(tmp_path: Path) -> None:
    files = bundle(tmp_path, RecordedView())
    assert "Look before you send it" in files.pop("README")
    assert {name: type(json.loads(text)) for name, text in files.items()} == {
        "machine.json": dict,
        "status.json": dict,
        "doctor.json": dict,
        "policy.json": dict,
        "policy-status.json": dict,
        "journal.json": dict,
        "worst.json": dict,
        "streams.json": dict,
        "explain.json": dict,
        "stages.json": dict,
    }


def test_clients_unknown_paths_and_secrets_are_not_in_it(tmp_path: Path) -> None:
    view = RecordedView()
    view.ended[0] |= {"path": "/tell/me/about/my/illness", "remote": "10.0.3.17:51234"}
    view.state["problems"] = ["collector refused: authorization: Bearer abc123 from 10.1.2.3:4317"]
    view.events[0]["detail"] = {"api_key=": "x", "why": "password=hunter2 was wrong"}
    together = "".join(bundle(tmp_path, view).values())
    for secret in ("illness", "10.0.3.17", "51234", "abc123", "10.1.2.3", "hunter2"):
        assert secret not in together, secret
    assert "/v1/chat/completions" in together


def test_it_is_for_its_owner_and_never_takes_a_files_place(tmp_path: Path) -> None:
    bundle(tmp_path, RecordedView())
    path = tmp_path / "bundle.tar.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    done = CliRunner().invoke(main, ["support", "-o", str(path)])
    assert (done.exit_code, path.read_bytes()) == (1, before)
    assert "file exists" in done.stderr


def test_without_an_agent_it_has_what_this_process_sees(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    nobody = str(tmp_path / "nobody.sock")
    done = CliRunner().invoke(main, ["support", "-o", str(path), "--socket", nobody])
    assert done.exit_code == 0
    files = unpacked(path)
    assert "could not reach sitsd" in json.loads(files["status.json"])["error"]
    assert json.loads(files["machine.json"])["findings"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("token=abc", f"token={HIDDEN}"),
        ("Authorization: xyz", f"Authorization: {HIDDEN}"),
        ("from [2001:db8::1]:443", f"from {HIDDEN}"),
        ("from 192.0.2.1", f"from {HIDDEN}"),
        ("max_batched_tokens 2048 → 412", "max_batched_tokens 2048 → 412"),
        ("sits 0.1.0", "sits 0.1.0"),
        ("6.1.0-28-amd64", "6.1.0-28-amd64"),
    ],
)
def test_texts_lose_addresses_and_secrets_only(text: str, shown: str) -> None:
    assert cleaned(text) == shown


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_whatever_it_is_the_shape_stays(answer: Any) -> None:
    json.dumps(cleaned(answer))
    assert cleaned(cleaned(answer)) == cleaned(answer)
