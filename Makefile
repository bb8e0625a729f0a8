# Every target does its own set-up; `make test` and `make demo` need nothing but root on Debian 12.
SHELL := /bin/bash
PYTHON ?= $(shell command -v /usr/bin/python3 || command -v python3)
VENV := .venv
# As many as there are cores.
UNIT_PROCESSES ?= logical
MINUTES ?= 60
PREFIX ?= /opt/sits
DESTDIR ?=
export ENABLE PURGE
BIN := $(VENV)/bin
CLANG ?= clang
OBJECTS := $(patsubst bpf/%.bpf.c,bpf/objects/%.bpf.o,$(wildcard bpf/*.bpf.c))
PACKAGES := clang libbpf-dev libbpf1 python3-venv iproute2 util-linux openssl
# The page is looked at in a real browser.
SLOW_PACKAGES := chromium fonts-dejavu-core groff-base
# Others that measure run-queue delay, to compare costs with.
BENCH_PACKAGES := libbpf-tools bpfcc-tools bpftrace
# tritonserver's Python backend is linked with libpython.
ENGINE_PACKAGES := libpython3.11
MULTIARCH := $(shell uname -m)-linux-gnu
ARCH := $(shell uname -m | sed 's/x86_64/x86/;s/aarch64/arm64/')

.PHONY: all setup objects lint format test test-unit test-real test-slow test-engines engines test-vm fuzz wheels install uninstall deb demo bench bench-accuracy bench-causes bench-plugin bench-predict bench-relegation bench-slo clean bench-backfill man drawing walk walk-bare screenshots bench-scale gate gate-record soak

all: setup

# The system packages, only when one is missing.
build/.packages: Makefile
	@mkdir -p build
	@dpkg -s $(PACKAGES) >/dev/null 2>&1 || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >build/apt.log 2>&1 || \
	    { cat build/apt.log; exit 1; }; }
	@touch $@

$(BIN)/python: build/.packages setup.cfg pyproject.toml
	@test -x $@ || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check -e '.[test]'
	@touch $@

bpf/objects/%.bpf.o: bpf/%.bpf.c $(wildcard bpf/*.h) build/.packages
	@mkdir -p bpf/objects
	$(CLANG) -g -O2 -Wall -Werror -target bpf -D__TARGET_ARCH_$(ARCH) -I/usr/include/$(MULTIARCH) -c $< -o $@

objects: $(OBJECTS)
setup: $(BIN)/python objects

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# What the code costs in instructions, which no other load on the machine changes: BPF programs and hot
# paths of Python against tests/gate/recorded.json. `gate-record` writes that anew.
gate: build/.valgrind
	@$(BIN)/python -m tests.gate

gate-record: build/.valgrind
	@$(BIN)/python -m tests.gate --record

build/.valgrind: setup
	@command -v valgrind >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends valgrind >/dev/null; }
	@touch $@

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Everything that needs no other kernel: unit tests, real BPF and cgroups (root), real engines.
# Both parts run, whatever becomes of the first.
test: setup
	@failed=0; $(MAKE) --no-print-directory test-unit || failed=1; \
	  $(MAKE) --no-print-directory test-real || failed=1; exit $$failed

# A process a core. What measures or limits the machine (test-real) goes one after another.
test-unit: setup
	$(BIN)/pytest -q -n $(UNIT_PROCESSES) tests/unit tests/bench

test-real: setup
	$(BIN)/pytest -q tests/kernel tests/engines

# The proofs that take longer: every cause named, spans in a real receiver, metrics in a real Prometheus,
# the page in a real browser. A file's tests stay in one process: two that build a package in one folder
# take each other's files away.
test-slow: setup build/prometheus
	@dpkg -s $(SLOW_PACKAGES) >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(SLOW_PACKAGES) >/dev/null; }
	@export PATH="$(CURDIR)/build/prometheus/usr/bin:$$PATH"; failed=0; \
	  $(BIN)/pytest -q -m slow -n $(UNIT_PROCESSES) --dist loadfile tests/unit || failed=1; \
	  $(BIN)/pytest -q -m slow tests/kernel tests/engines || failed=1; exit $$failed

# Bytes that nobody would send, to each of our readers of other people's bytes: 8 s a reader.
fuzz: setup
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install -q --disable-pip-version-check 'atheris>=3,<4'
	$(BIN)/python -m tests.fuzz.run $(FUZZ_OPTIONS)

# Real engines of others, kept in $SITS_CACHE (/var/cache/sits): what is missing there is downloaded.
test-engines: engines
	$(BIN)/pytest -q -m engines

engines: setup build/.engine-packages
	$(BIN)/python -m tests.engines.haproxy.install
	$(BIN)/python -m tests.engines.triton.install
	$(BIN)/python -m tests.engines.vllm.install

build/.engine-packages: setup
	@dpkg -s $(ENGINE_PACKAGES) >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(ENGINE_PACKAGES) >/dev/null; }
	@touch $@

# Debian's Prometheus, unpacked and not installed: its package would start a service.
build/prometheus:
	@mkdir -p build && rm -rf $@.new && mkdir $@.new
	@cd $@.new && apt-get update -qq && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb .
	@mv $@.new $@

# The same on Debian's kernels 5.10, 6.1, 6.12 and the newest, in QEMU; on 6.1 the bcc tier too.
test-vm: deb
	$(BIN)/python -m tests.vm.run --bcc $(VM_OPTIONS)

# The project's wheel and those of what it needs. setuptools keeps what it once packed in build/lib.
wheels: setup
	@rm -rf build/wheels build/lib build/bdist.*
	@$(BIN)/pip wheel -q --disable-pip-version-check --wheel-dir build/wheels .
	@rm -rf build/lib build/bdist.*

# Into PREFIX, with the unit; started only with ENABLE=1. What is configured is kept, also by
# uninstall, which removes it with PURGE=1. DESTDIR stands for / where the files are to be packed.
install: wheels
	@PYTHON=$(PYTHON) deploy/install.sh install "$(DESTDIR)" "$(PREFIX)"

uninstall:
	@deploy/install.sh uninstall "$(DESTDIR)" "$(PREFIX)"

# build/sits_VERSION_ARCH.deb
deb: wheels
	@PYTHON=$(PYTHON) deploy/deb.sh $(VERSION)

# One node, one engine, a real trace and six bad neighbours: first watched, then controlled.
demo: setup
	$(BIN)/python -m demo $(DEMO_OPTIONS)

# Manual pages of every command, from its help, and the drawing of the packages.
man: setup
	$(BIN)/python docs/man.py build/man

drawing: setup
	$(BIN)/python docs/structure.py

# A fault, and how it is found with sitsctl and on the page: every step of it in build/walk.
walk: setup
	$(BIN)/python -m tests.walk $(WALK_OPTIONS)

# The first of the README's commands on a bare Debian 12, made for it, from a fresh clone.
walk-bare:
	tests/walk/bare.sh

# The README's pictures, taken of such a walk; needs chromium, as `make test-slow` does.
screenshots: setup
	$(BIN)/python -m tests.walk --images

# What it costs, against its budgets and the best peers: build/bench.json, and every run behind it in
# build/bench-runs.json. Up to twelve minutes; BENCH_OPTIONS=--quick takes three. A peer that is not
# to be had, or can't attach here, is told in the table.
bench: setup build/node-exporter
	@for package in $(BENCH_PACKAGES); do \
	  dpkg -s $$package >/dev/null 2>&1 || \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$package >/dev/null || true; \
	done
	$(BIN)/python -m tests.bench.cost $(BENCH_OPTIONS)

# Debian's node_exporter, unpacked and not installed: its package would start a service.
build/node-exporter:
	@mkdir -p build && rm -rf $@.new && mkdir $@.new
	@cd $@.new && { apt-get update -qq && apt-get download -qq prometheus-node-exporter && \
	  dpkg-deb -x prometheus-node-exporter_*.deb . || echo "no node_exporter: it is told in the table"; }
	@mv $@.new $@

# How exact the kernel's account is: 10,000 streams, times, waits, losses, kills; build/accuracy.json.
bench-accuracy: setup
	@test -x /usr/sbin/runqlat || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends libbpf-tools >/dev/null; }
	$(BIN)/python -m tests.bench.accuracy $(BENCH_OPTIONS)

# What background work gets beside a loaded engine, against the best static quota; about five minutes;
# build/backfill.json.
bench-backfill: setup
	$(BIN)/python -m tests.bench.backfill $(BENCH_OPTIONS)

# Whether each cause is named right, injection by injection; build/causes.json.
bench-causes: setup
	$(BIN)/python -m tests.bench.cause_matrix $(BENCH_OPTIONS)

# Goodput against fixed settings and an AIMD on the same arrivals; build/slo.json. A full run takes
# up to 40 minutes; BENCH_OPTIONS=--quick takes 4. What was run is kept: run it again to go on.
bench-slo: setup
	$(BIN)/python -m tests.bench.slo $(BENCH_OPTIONS)

# What the vLLM plug-in adds to a step, the page and all; build/plugin.json.
bench-plugin: setup
	$(BIN)/python -m tests.engines.vllm.cost

# Which requests to defer, and what those that waited long get, simulated; build/relegation.json.
bench-relegation: setup
	$(BIN)/python -m tests.bench.relegation

# How well each predictor foresees the load of two real traces; build/predict.json.
bench-predict: setup
	$(BIN)/python -m tests.bench.predict $(BENCH_OPTIONS)

# What grows with streams, cgroups, targets, churn and CPUs, and where it stops: build/scale.json and
# docs/performance-*.svg; up to four minutes.
bench-scale: setup
	$(BIN)/python -m tests.bench.scale $(BENCH_OPTIONS)

# An hour under load, in which nothing that sitsd has may grow; build/soak.json.
soak: setup
	$(BIN)/python -m tests.bench.soak --minutes $(MINUTES)

clean:
	rm -rf build $(VENV) bpf/objects *.egg-info
