# Every target that runs something first makes sure of .venv; when nothing changed that costs 0.1 s.
PYTHON ?= python3
EXTRA ?= auto
VENV := .venv/bin
PYTEST := $(VENV)/python -m pytest
# The longest groups of tests first (tests/conftest.py).
BOTH_CORES := -n 2 --no-loadscope-reorder
# Where the environment forbids bytecode, each daemon that a test starts would compile Baton anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: $(shell awk -F: '/^[a-z0-9-]+:.*\#\# / {print $$1}' Makefile)

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## .venv with the tested set (EXTRA=cpu or cuda to choose; VERIFY=1: each file by its hash)
	@$(PYTHON) scripts/install.py --extra $(EXTRA) $(if $(VERIFY),--verify)

run: install ## a fleet on this machine, with the embedded model (ARGS="--decode 2 ...")
	@exec $(VENV)/baton up $(ARGS)

test: install lint ## lint and the tests, in two processes
	@$(PYTEST) $(BOTH_CORES) -m "not long" --durations=40 $(ARGS)

test-long: install ## the tests that `make test` leaves out: whole fleets of vLLM, one feature each, and what is killed in them
	@$(PYTEST) $(BOTH_CORES) -m long --durations=40 $(ARGS)

unit: install ## under a minute: one module at a time, nothing that starts sockets, threads or processes
	@$(PYTEST) tests/unit $(BOTH_CORES) $(ARGS)

component: install ## one module at a time, with its sockets, threads and processes
	@$(PYTEST) tests/component $(BOTH_CORES) $(ARGS)

integration: install ## real daemons, simulated engine
	@$(PYTEST) tests/integration $(ARGS)

faults-kv: install ## 10,000 KV handoffs while messages are bent and workers are killed (ARGS="--seed N")
	@exec $(VENV)/python -m tests.faults $(ARGS)

chaos: install ## daemons killed, stopped and cut off under load: the failure matrix as a table (ARGS="--quick kills")
	@exec $(VENV)/python -m tests.chaos $(ARGS)

chaos-full: install ## workers killed 100 times each under 20,000 requests, clients that leave in each phase (ARGS)
	@exec $(VENV)/python -m tests.chaos full full-moves closed $(ARGS)

chaos-vllm: install ## deaths, hangs and drains on real vLLM, each 5 times, and one of two cells lost, token for token
	@exec $(VENV)/python -m tests.chaos vllm vllm-cells $(ARGS)

soak-chaos: install ## 30 minutes of mixed faults, memory of every daemon watched (ARGS="--minutes N")
	@exec $(VENV)/python -m tests.chaos mixed $(ARGS)

soak-store: install ## an hour of full stores on real vLLM, workers killed: bounds, text, what is held (ARGS="--minutes N")
	@exec $(VENV)/python -m tests.chaos stores --minutes 60 $(ARGS)

e2e: install ## real vLLM
	@$(PYTEST) tests/e2e $(ARGS)

zoo: install ## every model family, 200 prompts each and faults, against plain vLLM: docs/models.md (ARGS="--only KEY")
	@exec $(VENV)/python -m tests.zoo $(ARGS)

clients: install ## foreign clients (Python, Node, Codex, Claude Code) against Baton and vLLM's server: docs/clients.md
	@test -x build/clients/venv/bin/python || { $(PYTHON) -m venv build/clients/venv \
	  && build/clients/venv/bin/pip install --quiet --requirement tests/clients/requirements.txt; }
	@mkdir -p build/clients/node && cp tests/clients/package.json build/clients/node/
	@cd build/clients/node && npm install --no-audit --no-fund --no-package-lock --loglevel=error \
	  && node node_modules/@anthropic-ai/claude-code/install.cjs
	@$(VENV)/python -m tests.clients $(ARGS)

soak-frames: install ## 100 million bent frames against every decoder (ARGS="--frames N --seed S")
	@exec $(VENV)/python -m tests.fuzz $(ARGS)

hostile: install ## hundreds of hostile bodies, per field and size, beside a healthy stream (ARGS="--only TEXT --verbose")
	@exec $(VENV)/python -m tests.hostile $(ARGS)

soak: install ## 200,000 seeds of faults against all cores in virtual time (ARGS="--seeds N --first N")
	@exec $(VENV)/python -m tests.simulation --seeds 200000 $(ARGS)

soak-roles: install ## 10,000 seeds of changes of role, with faults in each phase of them (ARGS="--seeds N --first N")
	@exec $(VENV)/python -m tests.simulation --switches --seeds 10000 $(ARGS)

soak-scale: install ## 10,000 seeds of orders for workers, with hooks that hang, lie or answer twice (ARGS="--seeds N --first N")
	@exec $(VENV)/python -m tests.simulation --scaling --seeds 10000 $(ARGS)

soak-moves: install ## 200,000 seeds in which streams move and are parked in every phase (ARGS="--seeds N --first N")
	@exec $(VENV)/python -m tests.simulation --seeds 200000 --budgets $(ARGS)

soak-capacity: install ## the capacity model with 4,000 workers (ARGS="-s" prints its cost)
	@BATON_CAPACITY_WORKERS=4000 $(PYTEST) tests/simulation/test_capacity_scale.py $(ARGS)

monitoring: install ## Prometheus rules and the Grafana dashboard by promtool (root: apt installs it)
	@command -v promtool >/dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q prometheus; }
	@$(PYTEST) tests/unit/packaging/test_monitoring.py tests/component/packaging/test_monitoring.py \
	   tests/integration/test_metrics.py $(ARGS)

dashboard: install ## the dashboard in headless Chromium (root: apt installs it); PICTURES=DIR keeps pictures
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get install -y -q chromium; }
	@BATON_PICTURES=$(PICTURES) $(PYTEST) tests/integration/test_dashboard.py $(ARGS)

systemd: install ## the units under a real systemd, in a container of this machine (needs root)
	@command -v systemd-nspawn >/dev/null || apt-get install --yes --quiet --no-install-recommends systemd-container
	@BATON_BOOT=1 $(PYTEST) -s tests/systemd tests/unit/services/install tests/component/services/install $(ARGS)

compose-check: install ## the compose files against the specification's schema, and read by a client
	@test -x build/compose-tools/bin/podman-compose || { $(PYTHON) -m venv build/compose-tools \
	  && build/compose-tools/bin/pip install --quiet check-jsonschema==0.39.0 \
	     podman-compose==1.6.0; }
	@PATH="$(CURDIR)/build/compose-tools/bin:$$PATH" $(PYTEST) tests/unit/packaging/test_compose.py tests/component/packaging/test_compose.py

lint: install ## ruff, mypy --strict, import contracts
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy
	@$(VENV)/lint-imports

format: install ## rewrite what ruff can
	@$(VENV)/ruff check --fix-only .
	@$(VENV)/ruff format .

bench: install ## the benchmarks, each a ratio against something measured in the same run
	@exec $(VENV)/python -m tests.bench $(ARGS)

gpu: $(if $(WHEELS),,install) ## the KV handoff on a GPU of this host, no vLLM needed (WHEELS=DIR: PYTHON and these wheels, no .venv)
ifeq ($(WHEELS),)
	@exec $(VENV)/python -m tests.bench.gpu $(ARGS)
else
	@rm -rf build/gpu-site
	@$(PYTHON) -m pip install --quiet --no-index --no-deps --target build/gpu-site $(WHEELS)/*.whl
	@exec env PYTHONPATH=$(CURDIR)/build/gpu-site $(PYTHON) -m tests.bench.gpu $(ARGS)
endif

bench-gateway: install ## CPU per token and per request of the gateway, against a floor and vllm serve
	@exec $(VENV)/python -m tests.bench gateway gateway-serve

bench-kv: install ## the KV handoff against raw UCXX, memcpy and NIXL (BATON_PEERS=DIR), also over wires of 10 and 25 Gbit/s
	@exec $(VENV)/python -m tests.bench kv kv-wire

replay: install ## recorded traces whole on a simulated fleet (TRACES="a.jsonl b.csv", ARGS="--speed 2 ...")
	@for trace in $(TRACES); do $(VENV)/baton bench --start sim --prefill 2 --decode 2 \
		--trace $$trace $(ARGS) || exit 1; done

lock: ## resolve anew and write constraints/, EXTRA=cuda without a GPU (then make test, then commit)
ifeq ($(EXTRA),cuda)
	@test -x build/lock-tools/bin/uv || { $(PYTHON) -m venv build/lock-tools && build/lock-tools/bin/pip install -q uv==0.13.9; }
	@build/lock-tools/bin/uv pip compile pyproject.toml --extra cuda --extra dev --python-version 3.11 --upgrade --quiet \
	  --python-platform x86_64-manylinux_2_28 --no-annotate --no-header --output-file constraints/cuda.txt
	@sed -i '1i # Resolved, not run: cuda, Python 3.11. Made by `make lock EXTRA=cuda`, not by hand.' constraints/cuda.txt
	@PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= $(call hash,cuda,build/lock-tools/bin/python)
else
	@$(PYTHON) scripts/install.py --lock --extra $(EXTRA)
	@$(call hash,cpu,build/lock-venv/bin/python)
endif

# $(1): the set; $(2): the Python that it is for. pip says which files it would take for exactly the pins.
hash = $(2) -m pip install --quiet --dry-run --no-deps --ignore-installed \
    --report build/pip-report.json --requirement constraints/$(1).txt \
  && { echo "\# The pinned set with its hashes, $(1), linux-$$(uname -m), Python 3.11. Made by \`make lock\`, not by hand."; \
    $(2) scripts/hashes.py build/pip-report.json; } > constraints/$(1).hashes.txt

sbom: install ## what is installed, as CycloneDX, in build/sbom.json
	@test -x build/sbom-tools/bin/cyclonedx-py || { $(PYTHON) -m venv build/sbom-tools \
	  && build/sbom-tools/bin/pip install --quiet cyclonedx-bom==7.5.0; }
	@build/sbom-tools/bin/cyclonedx-py environment $(VENV)/python --pyproject pyproject.toml \
	  --output-reproducible --output-file build/sbom.json && echo build/sbom.json

clean: ## environment, caches and logs; the cached model stays
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
