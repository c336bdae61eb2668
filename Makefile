# Every target that runs something first makes sure of .venv; when nothing changed that costs 0.1 s.
PYTHON ?= python3
EXTRA ?= auto
VENV := .venv/bin
PYTEST := $(VENV)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install run test unit integration faults-kv e2e soak lint format bench bench-gateway bench-kv lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## .venv with the tested set (EXTRA=cpu or cuda to choose)
	@$(PYTHON) scripts/install.py --extra $(EXTRA)

run: install ## a fleet on this machine, with the embedded model (ARGS="--decode 2 ...")
	@exec $(VENV)/baton up $(ARGS)

test: install lint ## lint and every test, under 20 minutes on two cores
	@$(PYTEST)

unit: install ## seconds: one module at a time
	@$(PYTEST) tests/unit $(ARGS)

integration: install ## real daemons, simulated engine
	@$(PYTEST) tests/integration $(ARGS)

faults-kv: install ## 10,000 KV handoffs while messages are bent and workers are killed (ARGS="--seed N")
	@exec $(VENV)/python -m tests.faults $(ARGS)

e2e: install ## real vLLM
	@$(PYTEST) tests/e2e $(ARGS)

soak: install ## 200,000 seeds of faults against all cores in virtual time (ARGS="--seeds N --first N")
	@exec $(VENV)/python -m tests.simulation --seeds 200000 $(ARGS)

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

bench-gateway: install ## CPU per token and per request of the gateway, against a floor and vllm serve
	@exec $(VENV)/python -m tests.bench gateway gateway-serve

bench-kv: install ## the KV handoff against raw UCXX and memcpy
	@exec $(VENV)/python -m tests.bench kv

lock: ## resolve anew and write constraints/ (then make test, then commit)
	@$(PYTHON) scripts/install.py --lock --extra $(EXTRA)

clean: ## environment, caches and logs; the cached model stays
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
