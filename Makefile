# Everything a person needs; `make help` lists it. Builds are cached outside the checkout (STELE_CACHE, ~/.cache/stele).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PY := .venv/bin/python
# A registry that is slow or resets once must not end a run of an hour.
export PIP_RETRIES ?= 10
export PIP_TIMEOUT ?= 60
# Tests and benchmarks start hundreds of processes, which would all compile the same modules.
export PYTHONDONTWRITEBYTECODE :=
DATA ?=
DEMO ?=
SEEDS ?= 200
SEED ?=
FIRST ?= 0
PROFILE ?= swarm
WITHOUT ?=
UNTIL ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
AUDIT_ARGS ?=
VERSION ?=
RELEASE_ARGS ?=
SECONDS ?= 300

# Benchmarks measure what images have: some modules are compiled (setup.py).
AS_IN_IMAGES = folder=$$($(PY) -m e2e.cluster compiled); PYTHONPATH="$$folder"

# Three at once, also on two cores: many tests wait for leases and disks, and leave the processor to others.
TESTS := $(PY) -m tests.run
FAST_TESTS := $(TESTS) -n 3 --dist worksteal -m 'not control_plane and not cluster and not long'

.PHONY: help setup playground test test-fast test-long lint release docs storm demo check-demo demo-down bench-planning bench-master bench-scale bench-member bench-copy bench-seed bench-steady bench-security bench-newcomer bench-page cluster images locks audit crds simulate clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: .venv/.stamp ## Make .venv with all that people and tests need

.venv/.stamp: pyproject.toml $(shell find native -type f)
	@command -v python3 >/dev/null || { echo "python3 (3.11 or newer) is needed: apt-get install python3 python3-venv"; exit 2; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, this is $$(python3 --version)"; exit 2; }
	@test -x $(PY) && $(PY) -m pip --version >/dev/null 2>&1 || { rm -rf .venv; python3 -m venv .venv || { rm -rf .venv; echo "python3 cannot make a virtual environment: apt-get install python3-venv"; exit 2; }; }
	@echo "setup: installing into .venv (about a minute; the first time on a machine up to three: PySpark is an archive of 456 MB)"
	@$(PY) -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(PY) -m pip install --quiet --disable-pip-version-check --group dev -e '.[operator,member,cli,sql,docs]'
	@$(PY) -m e2e.supply native
	@touch $@

playground: .venv/.playground ## A cluster on this machine without Kubernetes, to look at; Ctrl-C ends it
	@.venv/bin/kubectl-stele playground up

# Less than setup installs, which counts as well.
.venv/.playground: pyproject.toml
	@test -e .venv/.stamp || { python3 -m venv .venv && .venv/bin/pip install --quiet --no-compile --disable-pip-version-check -e '.[playground]'; }
	@touch $@

# As above: less than setup installs.
.venv/.demo: pyproject.toml
	@test -e .venv/.stamp || { python3 -m venv .venv && .venv/bin/pip install --quiet --no-compile --disable-pip-version-check -e '.[demo]'; }
	@touch $@

lint: setup ## Types, style and import contracts
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

test-fast: setup ## Tests that need neither a control plane nor a cluster
	$(FAST_TESTS) $(PYTEST_ARGS)

release: setup ## Chart, plain manifests, plugin and checksums of this commit into dist/ (VERSION=X.Y.Z checks; RELEASE_ARGS)
	@$(PY) -m e2e.cluster programs
	@$(PY) -m e2e.supply release --out dist $(if $(VERSION),--version "$(VERSION)") $(RELEASE_ARGS)

docs: setup ## Build the site of docs/ into site/; a broken link or anchor fails
	.venv/bin/zensical build --strict --clean

test-long: setup ## Tests that take minutes each: planted bugs in the simulation, and others marked `long`
	$(TESTS) -n 3 --dist worksteal -m 'long and not cluster' $(PYTEST_ARGS)

test: setup lint docs ## Every test but the long ones: unit, property, contract, real control plane, kind cluster
	$(PY) -m e2e.cluster doctor
	$(PY) -m e2e.cluster up
	$(PY) -m e2e.cluster programs
	$(PY) -m e2e.supply readers
	$(TESTS) --all "$$($(PY) -m e2e.cluster compiled)" $(PYTEST_ARGS)

simulate: setup ## Whole clusters under faults, SEEDS of them from FIRST on, or only SEED (PROFILE=migrations: many moves)
	@$(PY) -m tests.simulation $(if $(SEED),--seed "$(SEED)",--seeds "$(SEEDS)" --first "$(FIRST)") --profile "$(PROFILE)" $(if $(WITHOUT),--without "$(WITHOUT)") $(if $(UNTIL),--until "$(UNTIL)")

storm: setup ## Faults of all kinds over a cluster of its own, each answer checked (SECONDS=300 SEED=7)
	@$(PY) -m e2e.storm --seconds "$(SECONDS)" --seed "$(or $(SEED),1)"

demo: check-demo .venv/.demo ## The whole way on a real cluster (DATA=FILE for your own data, DEMO=json for JSON)
	@$(PY) -m e2e.demo $(if $(DATA),--data "$(DATA)") $(if $(filter json,$(DEMO)),--json)

check-demo:
	@case "$(DEMO)" in ""|json) ;; *) echo "DEMO is '$(DEMO)', expected json or nothing: make demo DEMO=json"; exit 2 ;; esac

demo-down: .venv/.demo ## Remove all that the demo made, the cluster too
	@$(PY) -m e2e.cluster down

bench-planning: setup ## Our planner beside Hazelcast's and Infinispan's (BENCH_ARGS="--quick --json FILE")
	@$(AS_IN_IMAGES) $(PY) -m e2e.bench planning $(BENCH_ARGS)

bench-master: setup ## Migrations, repairs and take-over on a real API server, members without data (BENCH_ARGS as above)
	@$(AS_IN_IMAGES) $(PY) -m e2e.bench master $(BENCH_ARGS)

bench-scale: setup ## The master with many partitions and members, in virtual time (BENCH_ARGS as above, or --all)
	@$(AS_IN_IMAGES) $(PY) -m tests.simulation.scale_bench $(BENCH_ARGS)

bench-member: setup ## One member beside redis-server; its log, start and tablets (needs redis-server; BENCH_ARGS as above)
	@$(AS_IN_IMAGES) $(PY) -m e2e.bench member $(BENCH_ARGS)

bench-copy: setup ## Ways of copying, and a member joining three beside Hazelcast and Infinispan (BENCH_ARGS as above)
	@$(AS_IN_IMAGES) $(PY) -m e2e.bench copy $(BENCH_ARGS)

bench-seed: setup ## Members leave, join, stop and are lost with data and load, beside Hazelcast (BENCH_ARGS as above)
	@$(AS_IN_IMAGES) $(PY) -m e2e.bench seed $(BENCH_ARGS)

bench-steady: setup ## Requests of three members at rest, beside Hazelcast, Infinispan and redis-server (BENCH_ARGS as above)
	@$(AS_IN_IMAGES) $(PY) -m e2e.bench steady $(BENCH_ARGS)

bench-page: setup ## Frames of the operator's page with a large cluster, in Chromium (BENCH_ARGS as above)
	@$(PY) -m e2e.bench page $(BENCH_ARGS)

bench-newcomer: setup ## From a clone to the first scale-up in the playground (BENCH_ARGS as above)
	@$(PY) -m e2e.bench newcomer $(BENCH_ARGS)

bench-security: setup ## Connections with TLS beside redis-server's, and a change of certificates and CA (BENCH_ARGS as above)
	@$(AS_IN_IMAGES) $(PY) -m e2e.bench security $(BENCH_ARGS)

cluster: .venv/.demo ## The test cluster alone
	@$(PY) -m e2e.cluster up

images: .venv/.demo ## Build the images of the demo and load them into the cluster
	@$(PY) -m e2e.cluster images --load

locks: setup ## Write images/locks/ anew: the newest versions that pyproject.toml allows, and their hashes
	@$(PY) -m e2e.supply lock

audit: setup ## Compare images/locks/ and native/Cargo.lock with known vulnerabilities (asks services on the internet)
	@$(PY) -m pip install --quiet --disable-pip-version-check --group audit
	.venv/bin/pip-audit --disable-pip --require-hashes $(addprefix -r ,$(wildcard images/locks/*.txt)) $(AUDIT_ARGS)
	@$(PY) -m e2e.supply audit-crates

crds: setup ## Write crds/ and the chart's copy from the models
	@$(PY) -m stele.model.crd crds charts/stele/files/crds

clean: ## Remove .venv and caches of the tools in this checkout
	rm -rf .venv site .cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
