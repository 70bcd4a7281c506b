# One entrance to everything. `make` alone lists the targets. Works with GNU Make 3.81 and newer.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--exclude-newer '30 days' --exclude-newer-package 'pyspark=14 days' --custom-compile-command 'make lock'

# What `make check` leaves out: Spark, the proofs, randomised histories and large tables that take minutes, tests that
# start servers or an embedded PostgreSQL for themselves, and tests of test runs. CONTRIBUTING.md says so.
LONG := --ignore tests/spark --ignore tests/proof --ignore tests/embedded --ignore tests/api/test_hostile.py \
	--ignore tests/cli/test_clients_page.py --ignore tests/cli/test_db.py --ignore tests/cli/test_pipeline.py \
	--ignore tests/cli/test_serve.py --ignore tests/engine/test_every_reply_lost.py \
	--ignore tests/server/test_cluster.py --ignore tests/server/test_siblings.py \
	--ignore tests/server/test_supervisor.py --ignore tests/server/test_supervisor_start.py \
	--ignore tests/server/test_supervisor_stop.py --ignore tests/storage/test_explain.py \
	--ignore tests/storage/test_pgbouncer.py --ignore tests/storage/test_state_machine.py \
	--ignore tests/storage/test_stress.py --ignore tests/storage/test_wide_migration.py \
	--ignore tests/test_isolation.py --ignore tests/test_makefile.py

# Collects the folders, too, that pyproject.toml leaves out of a run of all tests.
ALSO_SLOW := --override-ini 'norecursedirs=.*'

export PYTHON

# A .venv that was copied from another directory, or whose Python has gone, is rebuilt.
ifneq ($(shell $(BIN)/python -c '' 2>/dev/null && cat $(VENV)/.made-in 2>/dev/null),$(CURDIR))
.PHONY: $(VENV)/.made-in
endif

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.base ## Create .venv and install the server (no Spark, no development tools)
	@echo "Ready: run 'make serve', or $(BIN)/queen --help"

.PHONY: serve
serve: $(VENV)/.base ## Set up, then run the server until Ctrl-C
	@exec $(BIN)/queen serve

.PHONY: check
check: lint ## For daily work: lint, then run the tests that take less than two minutes together
	@TEST_POSTGRES=embedded TEST_PARAMETER_SETS=2 $(BIN)/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder $(LONG) $(PYTEST_ARGS)

.PHONY: test
test: lint ## Set up everything, lint, then run all tests side by side (PYTEST_ARGS='-k name' to select, '-n 0' one by one)
	@$(BIN)/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: test-cluster
test-cluster: $(VENV)/.all ## Run the Spark tests that start clusters: local-cluster, a standalone master with two workers, spark-submit
	@$(BIN)/python -m pytest tests/spark/cluster $(PYTEST_ARGS)

.PHONY: test-no-java
test-no-java: $(VENV)/.all ## Run the Spark tests on the Java that pip installs, as on a machine without one
	@QUEEN_SPARK_JAVA=bundled $(BIN)/python -m pytest $(ALSO_SLOW) tests/spark $(PYTEST_ARGS)

.PHONY: lint
lint: $(VENV)/.all ## Check style, types and import contracts
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

.PHONY: format
format: $(VENV)/.all ## Rewrite the code in the project's style
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

.PHONY: bench
bench: $(VENV)/.all ## Measure what a message costs, in PostgreSQL, over HTTP and between servers (BENCH_ARGS='http --only flow' to select)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

.PHONY: bench-spark
bench-spark: $(VENV)/.all ## Measure what Spark reads, archives and writes, against PostgreSQL and the server alone
	@$(BIN)/python -m benchmarks spark $(BENCH_ARGS)

.PHONY: pipeline-demo
pipeline-demo: $(VENV)/.all ## Show push, archive, report and replay in three minutes, with an embedded PostgreSQL
	@$(BIN)/python examples/pipeline_demo.py

.PHONY: faultlab
faultlab: $(VENV)/.all ## Run the end-to-end proofs for minutes: workers and PostgreSQL killed under load, 10,000 parked polls
	@PROOF_SCALE=6 $(BIN)/python -m pytest $(ALSO_SLOW) tests/proof tests/storage/test_stress.py tests/storage/test_state_machine.py $(PYTEST_ARGS)

.PHONY: lock
lock: ## Refresh the hashed requirements files (needs uv)
	@command -v uv >/dev/null || { echo "lock: uv is needed; install it with: pip install uv" >&2; exit 1; }
	@$(COMPILE) --group build -o requirements/build.txt
	@$(COMPILE) pyproject.toml -o requirements/base.txt
	@$(COMPILE) pyproject.toml --extra dev --constraint requirements/base.txt -o requirements/dev.txt
	@$(COMPILE) pyproject.toml --extra spark --constraint requirements/dev.txt -o requirements/spark.txt

.PHONY: clean
clean: ## Remove .venv and everything generated
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made-in:
	@echo "Creating $(VENV) ..."
	@scripts/venv.sh create
	@echo "$(CURDIR)" > $@

$(VENV)/.base: $(VENV)/.made-in requirements/build.txt requirements/base.txt pyproject.toml
	@echo "Installing the server ..."
	@scripts/venv.sh install requirements/base.txt
	@touch $@

$(VENV)/.all: $(VENV)/.base requirements/dev.txt requirements/spark.txt
	@echo "Installing development tools and Spark (about 600 MB; a few minutes the first time) ..."
	@scripts/venv.sh install requirements/dev.txt requirements/spark.txt
	@touch $@
