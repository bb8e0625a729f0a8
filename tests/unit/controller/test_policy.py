"""The policy as a whole: defaults, round trips, and everything that is wrong said at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.kinds import KINDS
from controller.policy import (
    Agent,
    Controller,
    Discovery,
    Engine,
    KnobFloors,
    Limits,
    Match,
    MpsDaemon,
    Neighbour,
    Policy,
    PolicyError,
    Relegation,
    ServiceClass,
    Slo,
    load_policy,
    parse_policy,
    policy_from_json,
    policy_to_json,
)

ENGINE = '[engines.chat]\ncgroup = "/sits/engine"\n'


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p")
    return str(caught.value).split("\n")


def complaint(parse: Callable[[], Policy]) -> list[str]:
    """The lines of the PolicyError that `parse` raises, none if it raises none."""
    try:
        parse()
    except PolicyError as error:
        return str(error).split("\n")
    return []


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


PATHS = st.text("abcé -_.", min_size=1, max_size=20).map(lambda name: Path("/run") / f"x{name}")
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True)


def matches(index: int) -> st.SearchStrategy[Match]:
    """Matches that differ from those of every other index."""
    return st.sampled_from(
        [
            Match("cgroup", f"/t{index}/é x"),
            Match("unit", f"t-{index}@1.service"),
            Match("command", f'serve "t{index}" \\d+'),
            Match("port", 10_000 + index),
        ]
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    names = draw(st.lists(NAMES, unique=True, max_size=5))
    split = draw(st.integers(0, len(names)))
    tick = draw(numbers(1, 1000))
    return Policy(
        mode=draw(st.sampled_from(["observe", "shadow", "control"])),
        agent=draw(
            st.builds(
                Agent,
                metrics_address=st.sampled_from(["[::1]:0", "localhost:1", "10.0.0.1:9464"]),
                admin_socket=PATHS,
                run_dir=PATHS,
                state_dir=PATHS,
                pin_dir=PATHS,
                max_targets=st.integers(5, 1024),
                discovery_interval_ms=st.integers(100, 60_000),
                attach_root=st.booleans(),
                gpu_interval_ms=st.integers(0, 60_000),
                nfd_file=st.sampled_from([None, Path("/etc/nfd/sits")]),
            )
        ),
        controller=draw(
            st.builds(
                Controller,
                scheduler_tick_interval_ms=st.just(tick),
                fast_tick_interval_ms=numbers(1, tick),
                backpressure_threshold=numbers(0, 1),
                lease_ms=st.integers(max(50, int(3 * tick) + 1), 10_000),
                neighbour_pressure=numbers(0, 1),
            )
        ),
        discovery=draw(
            st.builds(
                Discovery, st.booleans(), st.sampled_from([None, "slo-b", "night"]), st.booleans()
            )
        ),
        classes=(
            draw(
                st.builds(
                    ServiceClass,
                    st.just("night"),
                    numbers(0.01, 1),
                    st.integers(0, 5000),
                    st.integers(1, 60_000),
                )
            ),
        ),
        engines=tuple(
            draw(
                st.builds(
                    Engine,
                    name=st.just(name),
                    match=matches(index),
                    admin_socket=st.sampled_from([None, Path(f"/run/engine-{index}.sock")]),
                    version_header=st.sampled_from([None, "x-canary-version"]),
                    service_class=st.sampled_from([None, "slo-a", "night"]),
                    weight=st.integers(0, 10_000),
                    slo=st.builds(
                        Slo,
                        numbers(1, 600_000),
                        numbers(1, 60_000),
                        numbers(0.5, 0.9999),
                        numbers(0, 60_000),
                    ),
                    limits=st.builds(Limits, st.integers(0, 10_000), st.booleans()),
                    knobs=st.builds(KnobFloors, st.integers(1, 10**6), st.integers(1, 10**5)),
                    relegation=st.builds(Relegation, st.integers(0, 3_600_000)),
                )
            )
            for index, name in enumerate(names[:split])
        ),
        neighbours=tuple(
            draw(
                st.builds(
                    Neighbour,
                    name=st.just(name),
                    match=matches(index)
                    | st.sampled_from(
                        [
                            Match("cgroup", f"/t{index}/*"),
                            Match("slice", f"t{index}.slice"),
                        ]
                    ),
                    limit=st.booleans(),
                    min_cores=numbers(0.01, 1024),
                    service_class=st.sampled_from([None, "slo-b", "night"]),
                    weight=st.integers(0, 10_000),
                )
            )
            for index, name in enumerate(names[split:], split)
        ),
        mps=tuple(
            MpsDaemon(name, Path(f"/run/mps-{index}"), draw(st.integers(1, 100)))
            for index, name in enumerate(names[:2])
        ),
    )


def as_toml(policy: Policy) -> str:
    """The policy as TOML, through the fact that JSON's strings and numbers are TOML's too."""

    def inline(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f'"{k}" = {inline(v)}' for k, v in value.items()) + "}"
        return json.dumps(value)

    return "\n".join(f"{key} = {inline(value)}" for key, value in policy.as_dict().items())


@given(policies())
def test_a_policy_survives_json(policy: Policy) -> None:
    assert policy_from_json(policy_to_json(policy)) == policy


@given(policies())
def test_a_policy_survives_toml(policy: Policy) -> None:
    assert parse_policy(as_toml(policy), "p") == policy


def test_an_empty_text_is_the_default_policy() -> None:
    policy = parse_policy("", "p")
    assert policy == Policy()
    assert policy.mode == "observe"
    assert not policy.engines
    assert not policy.neighbours


def test_a_target_needs_no_more_than_a_match() -> None:
    policy = parse_policy(ENGINE + "[neighbours.batch]\nport = 9000\n", "p")
    assert policy.engines == (Engine("chat", Match("cgroup", "/sits/engine")),)
    assert policy.engines[0].slo == Slo(ttft_ms=2000, gap_ms=200, attainment=0.99)
    assert policy.neighbours == (Neighbour("batch", Match("port", 9000)),)


def test_an_mps_daemon_needs_a_directory_of_its_own_and_a_percentage() -> None:
    text = """\
[mps.a]
pipe_directory = "run/mps"
active_thread_percent = 0
[mps.b]
[mps.c]
pipe_directory = "/run/mps"
active_thread_percent = 30
[mps.d]
pipe_directory = "/run/mps"
active_thread_percent = 30
percent = 3
"""
    assert problems(text) == [
        'p:2: mps.a.pipe_directory: must be an absolute path, not "run/mps"',
        "p:3: mps.a.active_thread_percent: must be a whole number of percent from 1 to 100, not 0",
        "p:4: mps.b: needs pipe_directory and active_thread_percent",
        "p:9: mps.d.pipe_directory: mps.c.pipe_directory is the same directory",
        "p:11: mps.d.percent: unknown key, known here: pipe_directory, active_thread_percent",
    ]


def test_only_a_cgroup_match_that_ends_in_a_star_means_each_child() -> None:
    def each_child(kind: Any, value: str | int) -> bool:
        return Neighbour("n", Match(kind, value)).each_child

    assert each_child("cgroup", "/pods/*")
    assert not each_child("cgroup", "/pods")
    assert not each_child("command", "run /*")


def test_the_metrics_address_comes_apart() -> None:
    assert Policy().agent.metrics_endpoint == ("127.0.0.1", 9464)


def test_with_mode_changes_only_the_mode() -> None:
    policy = parse_policy(ENGINE, "p")
    assert policy.with_mode("control").as_dict() == policy.as_dict() | {"mode": "control"}


def test_a_wrong_value_is_named_with_line_field_and_what_is_allowed() -> None:
    assert problems(ENGINE + '\n[engines.chat.slo]\n# note\ngap_ms = "fast"\n') == [
        'p:6: engines.chat.slo.gap_ms: must be a number of ms from 1 to 60000, not "fast"'
    ]


def test_everything_wrong_is_said_at_once_in_the_order_of_the_text() -> None:
    text = """\
mode = "on"
[agent]
max_targets = 0
[engines.chat]
port = 0
slo = { gap_ms = 0, ttft_ms = 10, attainment = 1 }
limits = 3
[controller]
lease_ms = 20.0
[neighbours.x]
"""
    assert [line.split(": ")[:2] for line in problems(text)] == [
        ["p:1", "mode"],
        ["p:3", "agent.max_targets"],
        ["p:5", "engines.chat.port"],
        ["p:6", "engines.chat.slo.gap_ms"],
        ["p:6", "engines.chat.slo.attainment"],
        ["p:7", "engines.chat.limits"],
        ["p:9", "controller.lease_ms"],
        ["p:10", "neighbours.x"],
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('Mode = "x"', 'p:1: Mode: unknown key, did you mean "mode"?'),
        ("[engine.a]\nport = 1", 'p:1: engine: unknown key, did you mean "engines"?'),
        (
            ENGINE + "slo.gap = 5",
            'p:3: engines.chat.slo.gap: unknown key, did you mean "gap_ms"?',
        ),
        (
            ENGINE + "slo.zz = 5",
            "p:3: engines.chat.slo.zz: unknown key,"
            " known here: ttft_ms, gap_ms, attainment, jitter_ms, first_chunk_ms",
        ),
        (
            ENGINE + "socket = 1",
            'p:3: engines.chat.socket: unknown key, did you mean "admin_socket"?',
        ),
        (
            ENGINE + "cgrop = 1",
            'p:3: engines.chat.cgrop: unknown key, did you mean "cgroup"?',
        ),
        (
            ENGINE + 'name = "x"',
            "p:3: engines.chat.name: unknown key, known here: admin_socket, version_header,"
            " class, weight, slo, limits, knobs, relegation, adapter, cgroup, unit, command, port",
        ),
    ],
)
def test_an_unknown_key_is_an_error_that_names_a_near_one(text: str, problem: str) -> None:
    assert problems(text) == [problem]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("engines = 1", "p:1: engines: must be a table, not 1"),
        ("[[engines]]", "p:1: engines: must be a table, not an array"),
        ("[engines]\nchat = 8000", "p:2: engines.chat: must be a table, not 8000"),
        (
            "[engines.chat]",
            "p:1: engines.chat: needs exactly one of cgroup, unit, command, port, has none",
        ),
        (
            ENGINE + "port = 1",
            "p:1: engines.chat: needs exactly one of cgroup, unit, command, port,"
            " has cgroup and port",
        ),
        (
            "[engines.Chat]\nport = 1",
            "p:1: engines.Chat: a name is 1 to 63 of a-z, 0-9, - and _, and starts with a-z or 0-9",
        ),
        (
            '[engines."a\\n\\u001b"]\nport = 1',
            'p:1: engines."a\\n\\u001b": a name is 1 to 63 of a-z, 0-9, - and _,'
            " and starts with a-z or 0-9",
        ),
        (
            '[engines.a]\ncommand = "(x"',
            "p:2: engines.a.command: must be a regular expression that does not match an empty"
            ' command line, not "(x": missing ), unterminated subpattern at position 0',
        ),
        (
            '[engines.a]\ncgroup = "/pods/*"',
            "p:2: engines.a.cgroup: must be a cgroup path from the mount, such as"
            ' "/sits/engine", not "/pods/*"',
        ),
    ],
)
def test_a_target_that_is_not_one_is_refused(text: str, problem: str) -> None:
    assert problems(text) == [problem]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            ENGINE + "[neighbours.chat]\nport = 1",
            "p:3: neighbours.chat: engines.chat has the same name",
        ),
        (
            ENGINE + '[engines.b]\ncgroup = "/sits/engine"',
            "p:4: engines.b.cgroup: engines.chat is found the same way",
        ),
        (
            "[engines.a]\nport = 1\n[neighbours.b]\nport = 1",
            "p:4: neighbours.b.port: engines.a is found the same way",
        ),
        (
            "[controller]\nfast_tick_interval_ms = 18",
            "p:2: controller.fast_tick_interval_ms: must be at most scheduler_tick_interval_ms,"
            " 17, not 18",
        ),
        (
            "[controller]\n# the default of the other is 9\nscheduler_tick_interval_ms = 8",
            "p:3: controller.fast_tick_interval_ms: must be at most scheduler_tick_interval_ms,"
            " 8, not 9",
        ),
        (
            "[controller]\nscheduler_tick_interval_ms = 20\nlease_ms = 59",
            "p:3: controller.lease_ms: must be at least 3 × scheduler_tick_interval_ms, 60, not 59",
        ),
        (
            "[agent]\nmax_targets = 1\n[engines.a]\nport = 1\n[neighbours.b]\nport = 2",
            "p:2: agent.max_targets: must be at least the number of engines and neighbours, 2,"
            " not 1",
        ),
        (
            "[engines.a]\nport = 9464",
            "p:2: engines.a.port: agent.metrics_address has the same port",
        ),
        (
            "[engines.a]\nport = 1\nadmin_socket = '/run/sits/admin.sock'",
            "p:3: engines.a.admin_socket: agent.admin_socket is the same socket",
        ),
        (
            "[engines.a]\nport = 1\nadmin_socket = '/a'\n"
            "[engines.b]\nport = 2\nadmin_socket = '/a'",
            "p:6: engines.b.admin_socket: engines.a.admin_socket is the same socket",
        ),
        (
            "[engines.a]\ncgroup = '/'",
            "p:2: engines.a.cgroup: the root cgroup needs agent.attach_root = true",
        ),
        (
            ENGINE + "[neighbours.b]\ncgroup = '/sits'",
            "p:4: neighbours.b.cgroup: engines.chat runs inside it and would be limited with it",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(text: str, problem: str) -> None:
    assert problems(text) == [problem]


@pytest.mark.parametrize(
    "text",
    [
        "[controller]\nscheduler_tick_interval_ms = 9\nlease_ms = 50",
        "[engines.a]\ncgroup = '/'\n[agent]\nattach_root = true",
        ENGINE + "[neighbours.b]\ncgroup = '/sits'\nlimit = false",
        ENGINE + "[neighbours.b]\ncgroup = '/sits/*'",
        ENGINE + "[neighbours.b]\ncgroup = '/sits/eng'",
        "[agent]\nmax_targets = 1\n[engines.a]\nport = 1",
        "[engines.a]\nport = 1\n[engines.b]\ncgroup = '/a'\n[engines.c]\ncommand = '/a'",
    ],
)
def test_what_is_just_consistent_is_taken(text: str) -> None:
    assert parse_policy(text, "p").as_dict()


def test_what_follows_from_a_wrong_value_is_not_reported_too() -> None:
    (only,) = problems("[controller]\nfast_tick_interval_ms = 12\nscheduler_tick_interval_ms = 0")
    assert only.startswith("p:3: controller.scheduler_tick_interval_ms: ")
    (only,) = problems("agent = 1\n[engines.a]\ncgroup = '/'")
    assert only == "p:1: agent: must be a table, not 1"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a = ", "p:1:5: not TOML: invalid value"),
        ('a = 1\r\nb = "x\r\n', "p:2:7: not TOML: illegal character '\\n'"),
        ("a = 1\n[x", "p:2:3: not TOML: expected ']' at the end of a table declaration"),
        ('a = "', "p:1:6: not TOML: unterminated string"),
        ("a = 1\na = 2", "p:2:6: not TOML: cannot overwrite a value"),
        ("a = " + "[" * 100_000, "p: not TOML: nested too deeply"),
        ("a = \x1b[2J", "p:1:5: not TOML: invalid value"),
    ],
)
def test_what_is_not_toml_is_named_with_line_and_column(text: str, problem: str) -> None:
    assert problems(text) == [problem]


def test_a_number_too_long_for_python_is_refused() -> None:
    (problem,) = problems("[agent]\nmax_targets = " + "9" * 5000)
    assert problem.startswith("p: not TOML: ")


@given(st.text(max_size=60))
def test_no_text_raises_anything_but_a_policy_error(text: str) -> None:
    said = complaint(lambda: parse_policy(text, "p"))
    assert all(line.startswith("p:") and line.isprintable() for line in said)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    ["mode", "agent", "engines", "chat", "slo", "port", "gap_ms", "x\n"]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_no_json_raises_anything_but_a_policy_error(value: Any) -> None:
    said = complaint(lambda: policy_from_json(json.dumps(value), "agent"))
    assert all(line.startswith("agent: ") and line.isprintable() for line in said)


@pytest.mark.parametrize("text", ["", "[", "[]", "1", b"\xff", "[" * 100_000, '{"mode": 1}'])
def test_what_is_not_a_policy_in_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(PolicyError, match=r"^agent: "):
        policy_from_json(text, "agent")


def test_a_file_is_read_with_its_path_as_the_source(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(ENGINE)
    assert load_policy(path) == parse_policy(ENGINE, "p")
    path.write_text("\n" + ENGINE + "prt = 1\n")
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert str(caught.value) == f'{path}:4: engines.chat.prt: unknown key, did you mean "port"?'


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('mode = "shadow"', encoding="utf-8-sig")
    assert load_policy(path).mode == "shadow"


def test_a_file_that_can_t_be_read_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(PolicyError) as caught:
        load_policy(missing)
    assert str(caught.value) == f"could not load policy '{missing}': no such file or directory"
    with pytest.raises(PolicyError) as caught:
        load_policy(tmp_path)
    assert str(caught.value) == f"could not load policy '{tmp_path}': is a directory"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(PolicyError, match="too many levels of symbolic links"):
        load_policy(loop)


def test_a_file_that_is_not_utf_8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(b"# one\n# caf\xe9\n")
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    assert str(caught.value) == f"{path}:2: not UTF-8: byte 0xe9"


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(PolicyError, match="over 1048576 bytes"):
        load_policy(Path("/dev/zero"))


def test_a_hostile_path_cannot_forge_a_line(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(tmp_path / "x\n\x1b[2J")
    assert str(caught.value).isprintable()


def test_an_adapter_serves_its_engine_in_the_run_directory() -> None:
    policy = parse_policy(
        ENGINE + 'adapter = { kind = "haproxy", address = "/run/h.sock", backend = "b" }', "p"
    )
    (engine,) = policy.engines
    assert policy.socket_of(engine) == Path("/run/sits/adapters/chat.sock")
    assert engine.adapter.settings() == {"address": "/run/h.sock", "backend": "b"}
    assert policy_from_json(policy_to_json(policy)) == policy


@pytest.mark.parametrize(
    ("adapter", "problem"),
    [
        ('{ address = "/run/h.sock" }', "adapter.kind: an adapter needs it"),
        ('{ kind = "nginx" }', 'adapter.kind: must be one of {kinds}, not "nginx"'),
        (
            '{ kind = "haproxy", address = "/run/h.sock" }',
            "adapter.backend: an adapter of kind haproxy needs it",
        ),
        (
            '{ kind = "haproxy", address = "h.sock", backend = "b" }',
            'adapter.address: must be an absolute path of at most 107 bytes, not "h.sock"',
        ),
        (
            '{ kind = "haproxy", address = "/run/h.sock", backend = "b; c" }',
            'adapter.backend: must be 1 to 100 letters, digits and _ . : -, not "b; c"',
        ),
    ],
)
def test_an_adapter_that_lacks_something_is_refused(adapter: str, problem: str) -> None:
    expected = problem.format(kinds=", ".join(KINDS))
    assert problems(f"{ENGINE}adapter = {adapter}") == [f"p:3: engines.chat.{expected}"]


def test_an_engine_with_an_adapter_has_no_socket_of_its_own() -> None:
    text = ENGINE + 'admin_socket = "/run/e.sock"\n'
    text += 'adapter = { kind = "haproxy", address = "/run/h.sock", backend = "b" }'
    assert problems(text) == [
        "p:3: engines.chat.admin_socket: an engine with an adapter has the adapter's socket"
    ]


def test_two_classes_need_no_table() -> None:
    policy = parse_policy("[neighbours.n]\nport = 1\nclass = 'slo-b'", "p")
    assert policy.class_of(policy.neighbours[0].service_class) == ServiceClass(
        "slo-b", 0.25, 800, 200
    )
    assert policy.class_of("slo-a") == ServiceClass("slo-a", 0.7, 200, 50)


def test_a_table_of_a_built_in_class_changes_what_it_says_and_leaves_the_rest() -> None:
    policy = parse_policy("[classes.slo-a]\nfreeze_ms = 0", "p")
    assert policy.class_of("slo-a") == ServiceClass("slo-a", 0.7, 0, 50)


def test_what_has_no_class_is_never_frozen() -> None:
    assert parse_policy("", "p").class_of(None).freeze_ms == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[engines.e]\nport = 1\nclass = 'gold'",
            'p:3: engines.e.class: there is no class "gold", only "slo-a", "slo-b"',
        ),
        (
            "[classes.night]\n[discovery]\nfound_class = 'day'",
            'p:3: discovery.found_class: there is no class "day", only "slo-a", "slo-b", "night"',
        ),
        (
            "[classes.slo-a]\nfreeze_ms = 60000",
            "p:2: classes.slo-a.freeze_ms: must be a whole number of ms from 0 to 5000, not 60000",
        ),
        (
            "[classes.x]\ncpu_share = 0",
            "p:2: classes.x.cpu_share: must be a number from 0.01 to 1, not 0",
        ),
        (
            "[classes.X]",
            "p:1: classes.X: a name is 1 to 63 of a-z, 0-9, - and _, and starts with a-z or 0-9",
        ),
        ("classes = 1", "p:1: classes: must be a table, not 1"),
        (
            "[neighbours.n]\nslice = 'batch.service'",
            'p:2: neighbours.n.slice: must be the name of a systemd slice, such as "batch.slice",'
            ' not "batch.service"',
        ),
        (
            "[neighbours.n]\nqos = 'guaranteed'",
            'p:2: neighbours.n.qos: must be one of "besteffort", "burstable", not "guaranteed"',
        ),
    ],
)
def test_classes_and_what_names_them_are_checked(text: str, problem: str) -> None:
    assert problems(text) == [problem]
