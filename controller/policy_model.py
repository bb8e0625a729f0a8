"""The policy as frozen dataclasses: every key with its unit, default, range and meaning."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from controller.policy_classes import BUILT_IN, NO_CLASS, Discovery, ServiceClass
from controller.policy_rules import (
    address,
    choice,
    class_name,
    directory,
    file,
    header_table,
    number,
    request_header,
    socket_path,
    split_address,
    switch,
    text,
    text_table,
    url,
    whole,
    word,
)
from controller.policy_tables import Key, plain_fields

Mode = Literal["observe", "shadow", "control"]
MatchKind = Literal["cgroup", "unit", "command", "port", "slice", "qos"]
Tier = Literal["auto", "btf", "bcc"]
LogLevel = Literal["debug", "info", "warning", "error"]
OtlpProtocol = Literal["grpc", "http"]


@dataclass(frozen=True, slots=True)
class Match:
    """How a target is found; `value` is an int for a port and a str for the other kinds."""

    kind: MatchKind
    value: str | int


@dataclass(frozen=True, slots=True)
class Slo:
    """What an engine owes each stream."""

    ttft_ms: Annotated[
        float, Key(number(1, 600_000, "ms"), "Longest time to first token of a good stream.")
    ] = 2000.0
    gap_ms: Annotated[
        float, Key(number(1, 60_000, "ms"), "Longest gap between the chunks of a good stream.")
    ] = 200.0
    attainment: Annotated[
        float, Key(number(0.5, 0.9999), "Share of streams that must be good.")
    ] = 0.99
    jitter_ms: Annotated[
        float,
        Key(
            number(0, 60_000, "ms"),
            "Standard deviation of the gaps that prompts may cause; 0 means that only `gap_ms`"
            " counts.",
        ),
    ] = 0.0
    first_chunk_ms: Annotated[
        float,
        Key(
            number(1, 600_000, "ms"),
            "Deadline for the first chunk that `sits_first_chunk_deadlines_missed_total` counts by;"
            " no part of the SLO.",
        ),
    ] = 300.0


@dataclass(frozen=True, slots=True)
class Relegation:
    """What may happen to requests that can't be answered in time any more."""

    max_deferral_ms: Annotated[
        int,
        Key(
            whole(0, 3_600_000, "ms"),
            "How long a waiting request that will miss its `ttft_ms` may be passed over for those"
            " that can still make it; 0 means never: first come, first served.",
        ),
    ] = 60_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How far the agent may favour an engine."""

    cpu_weight_max: Annotated[
        int,
        Key(
            whole(0, 10_000),
            "Highest CPU weight (cgroup v2 scale, where 100 is normal) that the agent may give the"
            " engine's cgroup; 0 means never touch it.",
        ),
    ] = 10_000
    memory: Annotated[
        bool,
        Key(
            switch(),
            "Whether, when memory runs short, neighbours may be held to what they have"
            " (`memory.high`) and the engine be kept from taking more requests in.",
        ),
    ] = True


@dataclass(frozen=True, slots=True)
class KnobFloors:
    """Values below which no knob is set, whatever the load."""

    min_batched_tokens: Annotated[
        int, Key(whole(1, 1_000_000, "tokens"), "Floor of the token budget of one step.")
    ] = 64
    min_running: Annotated[
        int, Key(whole(1, 100_000, "requests"), "Floor of the number of requests running at once.")
    ] = 1


@dataclass(frozen=True, slots=True)
class Adapter:
    """How an engine without an admin socket is retuned: a process serves one for it.

    Which settings a kind needs and takes is in `controller.adapters.kinds`.
    """

    kind: Annotated[
        str | None,
        Key(text(), "Which adapter: `haproxy`, `triton` or `sglang`. Without it there is none."),
    ] = None
    address: Annotated[
        str | None,
        Key(
            text(),
            "Where the engine's own interface is: the `stats socket` of `haproxy`, the gRPC"
            " endpoint of `triton` (`unix:/path` or `host:port`), `host:port` of `sglang`.",
        ),
    ] = None
    backend: Annotated[
        str | None, Key(text(), "`haproxy`: the backend whose servers are the engine.")
    ] = None
    server: Annotated[
        str | None, Key(text(), "`haproxy`: the one server of the backend; without it, all.")
    ] = None
    gate: Annotated[
        str | None,
        Key(
            text(),
            "`haproxy`: where the names of the variables of its queue's limit begin; without it"
            " `sits`, as in `proc.sits_max_queued`.",
        ),
    ] = None
    model: Annotated[str | None, Key(text(), "`triton`: the model that is retuned.")] = None
    metrics: Annotated[
        str | None, Key(text(), "`triton`: the URL of its metrics; without it fewer figures.")
    ] = None
    key_file: Annotated[
        str | None, Key(text(), "`sglang`: a file with its API key, if it has one.")
    ] = None
    admin_key_file: Annotated[
        str | None, Key(text(), "`sglang`: a file with its admin API key, if it has one.")
    ] = None

    def settings(self) -> dict[str, str]:
        """What is given but the kind."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value for name, value in given.items() if value is not None and name != "kind"
        }


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine: a serving process group, measured and, with `admin_socket`, retuned."""

    name: str
    match: Match
    admin_socket: Annotated[
        Path | None,
        Key(
            socket_path(),
            "The engine's admin socket, or with a `*` in its name those of its ranks; without it"
            " and without `adapter` the engine is measured, not retuned.",
        ),
    ] = None
    version_header: Annotated[
        str | None,
        Key(
            request_header(),
            'The request header that tells versions apart, such as "x-canary-version"; without'
            " it there are no `sits_version_*` metrics.",
        ),
    ] = None
    service_class: Annotated[
        str | None,
        Key(
            class_name(),
            "Its service class: what meeting its SLO is worth beside other engines.",
            name="class",
        ),
    ] = None
    weight: Annotated[
        int,
        Key(
            whole(0, 10_000),
            "Its base CPU weight as a tenant of the machine (100 is normal), which grows to 1.5"
            " times that as its SLO is missed; 0 means that it is left as it is until it is"
            " raised.",
        ),
    ] = 0
    slo: Slo = field(default_factory=Slo)
    limits: Limits = field(default_factory=Limits)
    knobs: KnobFloors = field(default_factory=KnobFloors)
    relegation: Relegation = field(default_factory=Relegation)
    adapter: Adapter = field(default_factory=Adapter)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Something that shares the machine with the engines and may be limited for their sake."""

    name: str
    match: Match
    limit: Annotated[bool, Key(switch(), "Whether it may be limited at all.")] = True
    min_cores: Annotated[
        float, Key(number(0.01, 1024, "cores"), "The smallest CPU quota it is ever held to.")
    ] = 0.05
    service_class: Annotated[
        str | None,
        Key(
            class_name(),
            "Its service class: how far it may be held back, and its part of what is left over.",
            name="class",
        ),
    ] = None
    weight: Annotated[
        int,
        Key(
            whole(0, 10_000),
            "Its base CPU weight as a tenant of the machine (100 is normal), less while it fills"
            " its memory; 0 means that it is left as it is.",
        ),
    ] = 0

    @property
    def each_child(self) -> bool:
        """Whether the match means many cgroups, each a neighbour of its own."""
        if self.match.kind == "cgroup":
            return str(self.match.value).endswith("/*")
        return self.match.kind in {"slice", "qos"}


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """An MPS control daemon for background work, with a pipe directory of its own."""

    name: str
    pipe_directory: Annotated[
        Path,
        Key(
            directory(),
            "Its pipe directory, the `CUDA_MPS_PIPE_DIRECTORY` of the daemon and of its clients;"
            " no engine's.",
        ),
    ]
    active_thread_percent: Annotated[
        int,
        Key(
            whole(1, 100, "percent"),
            "What each of its clients that starts in mode control gets of a GPU's threads at the"
            " most.",
        ),
    ]


def adapters_dir(run_dir: Path) -> Path:
    """Where adapters have their sockets, pages and undo files, in the agent's own directory."""
    return run_dir / "adapters"


def adapter_socket(directory: Path, engine: str) -> Path:
    """Where the adapter of an engine serves the contract, in the directory of adapters."""
    return directory / f"{engine}.sock"


@dataclass(frozen=True, slots=True)
class Agent:
    """The service itself."""

    metrics_address: Annotated[str, Key(address(), "Where Prometheus metrics are served.")] = (
        "127.0.0.1:9464"
    )
    metrics_tls_cert: Annotated[
        Path | None,
        Key(file(), "PEM file with the certificate, and its chain, that metrics are served with."),
    ] = None
    metrics_tls_key: Annotated[Path | None, Key(file(), "PEM file with its key.")] = None
    metrics_tls_client_ca: Annotated[
        Path | None,
        Key(
            file(),
            "PEM file with the authority that signed the certificates of those who may read the"
            " metrics.",
        ),
    ] = None
    metrics_users: Annotated[
        Path | None,
        Key(
            file(),
            "File with those who may read the metrics, a name and a hashed password a line, as"
            " `sitsctl metrics-user` makes them.",
        ),
    ] = None
    admin_socket: Annotated[Path, Key(socket_path(), "The socket that sitsctl talks to.")] = Path(
        "/run/sits/admin.sock"
    )
    operators: Annotated[
        str | None,
        Key(
            word("-."),
            "The group whose members may also change what the agent does, over its socket; without"
            " it only root may. Members of group sits read.",
        ),
    ] = None
    log_level: Annotated[
        LogLevel,
        Key(choice("debug", "info", "warning", "error"), "What is told in the log at the least."),
    ] = "info"
    run_dir: Annotated[
        Path, Key(directory(), "Where the undo list and the agent's own sockets live.")
    ] = Path("/run/sits")
    state_dir: Annotated[Path, Key(directory(), "Where the journal lives.")] = Path("/var/lib/sits")
    pin_dir: Annotated[
        Path,
        Key(directory(), "Where BPF maps and links are pinned; must be on a BPF file system."),
    ] = Path("/sys/fs/bpf/sits")
    tier: Annotated[
        Tier,
        Key(
            choice("auto", "btf", "bcc"),
            "Which programs measure: those that need the kernel's BTF, those that bcc compiles"
            " against its headers, or the first that can be.",
        ),
    ] = "auto"
    max_targets: Annotated[
        int, Key(whole(1, 1024), "How many engines and neighbours are followed at once.")
    ] = 64
    discovery_interval_ms: Annotated[
        int, Key(whole(100, 60_000, "ms"), "How often the agent looks for its targets.")
    ] = 1000
    attach_root: Annotated[
        bool,
        Key(
            switch(),
            "Whether stream programs may attach to the root cgroup, for an engine that has none of"
            " its own.",
        ),
    ] = False
    gpu_interval_ms: Annotated[
        int,
        Key(
            whole(0, 60_000, "ms"),
            "How often the GPUs are looked at through NVML; 0 means never.",
        ),
    ] = 1000
    nfd_file: Annotated[
        Path | None,
        Key(
            file(),
            "A file in which Kubernetes' node-feature-discovery finds the node's labels; without it"
            " none is written.",
        ),
    ] = None

    @property
    def adapters_dir(self) -> Path:
        """Where adapters have their sockets, pages and undo files."""
        return adapters_dir(self.run_dir)

    @property
    def mps_dir(self) -> Path:
        """Where the undo files of MPS limits live."""
        return self.run_dir / "mps"

    @property
    def metrics_endpoint(self) -> tuple[str, int]:
        """`metrics_address` as host (without brackets) and port."""
        return split_address(self.metrics_address)


@dataclass(frozen=True, slots=True)
class Controller:
    """The fast loop."""

    scheduler_tick_interval_ms: Annotated[
        float, Key(number(1, 1000, "ms"), "Period of the loop while backpressure is low.")
    ] = 17.0
    fast_tick_interval_ms: Annotated[
        float, Key(number(1, 1000, "ms"), "Period of the loop under backpressure.")
    ] = 9.0
    backpressure_threshold: Annotated[
        float, Key(number(0, 1), "Backpressure above which the loop runs at its fast period.")
    ] = 0.7
    lease_ms: Annotated[
        int,
        Key(
            whole(50, 10_000, "ms"),
            "How long an engine keeps a value that the agent no longer renews.",
        ),
    ] = 500
    neighbour_pressure: Annotated[
        float,
        Key(
            number(0, 1),
            "Share of the engine's runnable time lost to neighbours above which they are the"
            " cause.",
        ),
    ] = 0.10


@dataclass(frozen=True, slots=True)
class Otel:
    """Where spans of requests and decisions go, as OTLP."""

    endpoint: Annotated[
        str | None,
        Key(
            url(), "The collector; over HTTP, `/v1/traces` is added. Without it there are no spans."
        ),
    ] = None
    protocol: Annotated[OtlpProtocol, Key(choice("grpc", "http"), "How OTLP is carried.")] = "grpc"
    sample_ratio: Annotated[
        float,
        Key(
            number(0, 1),
            "Share of the good streams whose callers don't say whether to sample them that get a"
            " span; streams that miss their SLO always do.",
        ),
    ] = 0.05
    max_queue: Annotated[
        int, Key(whole(1, 100_000, "spans"), "How many spans may wait for the collector.")
    ] = 2048
    timeout_ms: Annotated[int, Key(whole(100, 60_000, "ms"), "How long one export may take.")] = (
        5000
    )
    headers: Annotated[
        Mapping[str, str],
        Key(
            header_table(),
            "HTTP headers or gRPC metadata sent with every export; their values are never shown.",
            secret=True,
        ),
    ] = field(default_factory=dict, repr=False)
    resource: Annotated[
        Mapping[str, str], Key(text_table(), "More attributes of the resource that spans are of.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy; `Policy()` is the default, which watches nothing."""

    mode: Annotated[
        Mode,
        Key(
            choice("observe", "shadow", "control"),
            "What the agent does: measure; decide and journal as well; or act on it too.",
        ),
    ] = "observe"
    agent: Agent = field(default_factory=Agent)
    controller: Controller = field(default_factory=Controller)
    otel: Otel = field(default_factory=Otel)
    discovery: Discovery = field(default_factory=Discovery)
    classes: tuple[ServiceClass, ...] = ()
    engines: tuple[Engine, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    mps: tuple[MpsDaemon, ...] = ()

    def as_dict(self, *, secrets: bool = False) -> dict[str, Any]:
        """The policy in the shape of its file, every default written out, for JSON.

        Without `secrets`, what is secret is hidden.
        """
        return plain_fields(self, secrets=secrets) | {
            "classes": {item.name: plain_fields(item) for item in self.classes},
            "engines": {item.name: _target_fields(item) for item in self.engines},
            "neighbours": {item.name: _target_fields(item) for item in self.neighbours},
            "mps": {item.name: plain_fields(item) for item in self.mps},
        }

    def socket_of(self, engine: Engine) -> Path | None:
        """Where the engine contract is served for `engine`: by itself or by its adapter."""
        if engine.adapter.kind is not None:
            return adapter_socket(self.agent.adapters_dir, engine.name)
        return engine.admin_socket

    @property
    def all_classes(self) -> Mapping[str, ServiceClass]:
        """Every class there is by name: those built in, and the policy's own in their place."""
        return {**BUILT_IN, **{each.name: each for each in self.classes}}

    def class_of(self, name: str | None) -> ServiceClass:
        """The class of that name; that of nobody where there is none."""
        return self.all_classes.get(name or "", NO_CLASS)

    def with_mode(self, mode: Mode) -> "Policy":
        """This policy in another mode."""
        return replace(self, mode=mode)


def _target_fields(target: Engine | Neighbour) -> dict[str, Any]:
    return {target.match.kind: target.match.value} | plain_fields(target)
