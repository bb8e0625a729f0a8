"""Against a recorded contract, not SGLang: see `sglang_recorded`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.adapters.driver import AdapterError, Driver
from controller.adapters.sglang import connect
from controller.adapters.sglang_figures import MOST_STEPS, Load, load, mean_steps
from tests.unit.controller.adapters.sglang_recorded import Recorded, recorded_sglang


@contextmanager
def sglang(
    settings: dict[str, str] | None = None, **options: Any
) -> Iterator[tuple[Recorded, Driver]]:
    with recorded_sglang(**options) as server:
        yield server, connect({"address": f"127.0.0.1:{server.port}", **(settings or {})})


def test_the_released_server_offers_one_knob_found_by_setting_each_key_to_what_it_is() -> None:
    with sglang() as (server, driver):
        (knob,) = driver.knobs().values()
        assert (knob.name, knob.minimum, knob.start, knob.maximum) == ("max_running", 1, 48, 48)
        assert driver.keep() == {"max_running": "pp_max_micro_batch_size"}
        assert server.states[0]["pp_max_micro_batch_size"] == 48
        assert {"max_running_requests": 48} in server.posted


def test_a_server_that_lets_more_change_offers_more() -> None:
    with sglang(later=True) as (_, driver):
        assert {name: knob.start for name, knob in driver.knobs().items()} == {
            "max_running": 48,
            "max_queued": 500,
            "long_prefill_tokens": 8192,
        }
        assert driver.keep()["max_running"] == "max_running_requests"


def test_a_cap_of_micro_batches_is_none_of_what_runs_where_there_are_several() -> None:
    with sglang(pp_size=2) as (_, driver):
        assert not driver.knobs()


def test_a_knob_is_written_to_every_rank_and_read_back() -> None:
    with sglang(ranks=2) as (server, driver):
        driver.identify()
        driver.knobs()
        driver.write({"max_running": 7})
        assert driver.read() == {"max_running": 7}
        assert [state["pp_max_micro_batch_size"] for state in server.states] == [7, 7]


def test_a_refusal_that_comes_with_http_200_is_an_error_and_changes_nothing() -> None:
    with sglang() as (_, driver):
        driver.identify()
        driver.knobs()
        with pytest.raises(AdapterError, match="refused pp_max_micro_batch_size 49"):
            driver.write({"max_running": 49})
        assert driver.read() == {"max_running": 48}


def test_a_rank_that_refuses_makes_the_write_an_error() -> None:
    with sglang(ranks=2) as (server, driver):
        driver.identify()
        driver.knobs()
        server.refusing = frozenset({1})
        with pytest.raises(AdapterError, match="refused"):
            driver.write({"max_running": 7})


def test_what_is_in_force_already_is_not_sent() -> None:
    with sglang() as (server, driver):
        driver.identify()
        driver.knobs()
        sent = len(server.posted)
        driver.write({"max_running": 48})
        assert len(server.posted) == sent


def test_another_process_goes_on_from_what_was_kept() -> None:
    with sglang() as (server, driver):
        driver.identify()
        driver.knobs()
        driver.write({"max_running": 5})
        other = connect({"address": f"127.0.0.1:{server.port}"})
        other.identify()
        other.recall(driver.keep())
        assert other.read() == {"max_running": 5}
        other.write({"max_running": 48})
        assert driver.read() == {"max_running": 48}


def test_keys_are_read_from_files_and_the_admin_key_changes_state(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("for-all\n")
    (tmp_path / "admin").write_text("for-some\n")
    files = {"key_file": str(tmp_path / "key"), "admin_key_file": str(tmp_path / "admin")}
    with sglang(files, api_key="for-all", admin_api_key="for-some") as (_, driver):
        assert driver.identify().version == "0.5.23"
        driver.knobs()
        driver.write({"max_running": 9})
        assert driver.read() == {"max_running": 9}


def test_a_wrong_key_is_said(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("for-all")
    with (
        sglang({"key_file": str(tmp_path / "key")}, api_key="for-all", admin_api_key="x") as (
            _,
            driver,
        ),
        pytest.raises(AdapterError, match="another API key"),
    ):
        driver.knobs()


def test_a_key_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with (
        sglang({"key_file": str(tmp_path / "none")}) as (_, driver),
        pytest.raises(AdapterError, match="No such file"),
    ):
        driver.identify()


def test_a_server_that_is_gone_is_said() -> None:
    with sglang() as (_, driver):
        driver.identify()
    with pytest.raises(AdapterError, match="could not ask SGLang"):
        driver.read()


def test_figures_are_what_the_ranks_tell() -> None:
    with sglang() as (server, driver):
        driver.figures()
        server.loads[0] |= {
            "num_running_reqs": 6,
            "num_waiting_reqs": 3,
            "num_waiting_uncached_tokens": 700,
            "num_used_tokens": 9000,
            "total_prefill_uncached_tokens": 2000,
            "total_prefill_busy_us": 50_000,
            "decode_moments": [10.0, 60.0, 80_000.0, 360.0, 480_000.0, 60.0],
        }
        shown = driver.figures()
    assert (shown.running, shown.waiting, shown.waiting_tokens) == (6, 3, 700)
    assert (shown.kv_used, shown.kv_total) == (9000, 100_000)
    assert (shown.prompt_tokens_total, shown.generated_tokens_total) == (2700, 60)
    prompts, *decode = shown.ended
    assert (prompts.prefill_tokens, prompts.step_ns) == (2000, 50_000_000)
    assert {(step.decode_seqs, step.step_ns, step.kv_tokens) for step in decode} == {
        (6, 8_000_000, 9000)
    }
    assert len(decode) == 10
    assert shown.steps == decode[-1].index


def test_a_server_without_loads_shows_nothing() -> None:
    with sglang(has_loads=False) as (_, driver):
        assert driver.figures().running is None


def test_no_step_follows_on_one_of_the_look_before() -> None:
    def at(steps: int) -> Load:
        return load([{"decode_moments": [steps, 4 * steps, 1000 * steps, 0, 0, 0]}])

    first = mean_steps(at(0), at(5), 0, 0, 1)
    second = mean_steps(at(5), at(200), first[-1].index, 0, 1)
    assert second[0].index > first[-1].index + 1
    assert len(second) < MOST_STEPS
    assert [step.index for step in second] == list(range(second[0].index, second[-1].index + 1))


def test_an_idle_look_has_no_step() -> None:
    nothing = load([{}])
    assert mean_steps(nothing, nothing, 9, 0, 1) == ()
