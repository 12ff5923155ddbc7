# Everything works on a fresh clone with Python >= 3.11, Java >= 17 and make, and does again only what has changed.
#   make PYTHON=/path/to/python3.12 setup     another interpreter than the first that fits
#   make test ARGS="-k tap --maxfail 1"       arguments for pytest, the demo or the benchmarks

ARGS ?=
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
SYNCED := $(VENV)/.in-sync
# Not $(MAKE) in a recipe: `make -n` executes the lines that contain it.
AGAIN := $(MAKE)

# The system's certificates, so that downloads work behind proxies that sign their own.
export UV_SYSTEM_CERTS := 1
export UV_HTTP_TIMEOUT := 120
export UV_PROJECT_ENVIRONMENT := $(VENV)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo demo-usage demo-fleet test test-nightly simulate bench bench-enforcement profile lint types check \
    claims reference check-compiled compile uncompile wheel deploy-tools check-deploy dist image format lock jars clean java

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SYNCED) ## install everything into .venv, so that .venv/bin/kafka-quota-proxy works

demo: setup java ## 336,776 flights through Spark, the proxy and a real broker: does the quota hold?
	@$(BIN)/python -m demo $(ARGS)

demo-usage: setup java ## two weeks of 50 sidecars, made up: every table, and a report in HTML
	@$(BIN)/python -m demo.usage $(ARGS)

demo-fleet: setup java ## eight sidecars share one limit through a topic; beside an eighth of it for each
	@$(BIN)/python -m demo.sharing $(ARGS)

# Two processes run the units, then three the tests with real brokers and Spark, file by file: these wait much.
# A test that fails is run again, with real brokers up to twice, and reported: other work on the machine can spoil a run.
UNITS := tests/protocol tests/quotas tests/proxy tests/simulation tests/bench tests/build tests/docs
WITH_BROKERS := -n 3 --dist loadfile --reruns 2 tests $(UNITS:%=--ignore=%)
PYTEST := $(BIN)/python -m pytest -n 2 --durations=40 --reruns 1 -raR

test: setup jars ## all tests, against real brokers; without the long nightly ones
ifeq ($(strip $(ARGS)),)
	@$(PYTEST) -m "not nightly and not deploy" $(UNITS)
	@$(PYTEST) -m "not nightly and not deploy" $(WITH_BROKERS)
else
	@$(BIN)/python -m pytest -m "not nightly and not deploy" $(ARGS)
endif

test-nightly: setup jars ## all tests, the long ones too, with many more generated examples: 100 minutes
ifeq ($(strip $(ARGS)),)
	@failed=; \
	$(PYTEST) -m "not deploy" --hypothesis-profile=nightly $(UNITS) || failed="$$failed units"; \
	$(PYTEST) -m "not deploy" --hypothesis-profile=nightly $(WITH_BROKERS) || failed="$$failed with-brokers"; \
	$(AGAIN) check-compiled || failed="$$failed check-compiled"; \
	$(AGAIN) check-deploy || failed="$$failed check-deploy"; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }
else
	@$(BIN)/python -m pytest --hypothesis-profile=nightly $(ARGS)
endif

SEED ?= 1
SEEDS ?= 1
OPTIONS ?=
simulate: setup ## whole proxies, brokers and clients in virtual time: SEED=, SEEDS=, OPTIONS="seconds=30,faults=1+4"
	@$(BIN)/python -m simulation --seed $(SEED) --seeds $(SEEDS) --options "$(OPTIONS)" $(ARGS)

bench: setup java ## the benchmarks: CPU, latency, memory, evenness
	@$(BIN)/python -m bench $(ARGS)

bench-enforcement: setup java ## each throttle mode beside the broker's own quota: writes table and picture of docs/enforcement.md
	@$(BIN)/python -m bench --only enforcement --document docs/enforcement.md --picture docs/enforcement.png $(ARGS)

profile: setup ## a flame graph of the proxy under load: ARGS="--scenario 'java 16 KiB' --output java.svg"
	@$(BIN)/python -m bench.profile $(ARGS)

lint: setup ## style, formatting and the import contracts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/lint-imports --no-logo

types: setup ## mypy --strict
	@$(BIN)/mypy

check: uncompile lint types test ## all that CI runs, on pure Python; the tests come last

# The compiled build (docs/compiled.md). It needs a C compiler, nothing else here does.
SOURCES := protocol quotas proxy
COMPILED := build/tree

compile: setup uncompile ## compile the hot modules in place with mypyc; `make uncompile` undoes it
	@$(BIN)/python hatch_build.py

uncompile: ## remove what `make compile` left: pure Python again
	@find $(SOURCES) -name '*.so' -delete; rm -f *__mypyc.*.so

wheel: setup uncompile ## a compiled wheel for this Python and platform, a pure one, and the sdist, into dist/
	@rm -rf dist
	@$(BIN)/uv build --quiet --no-build-isolation
	@HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/uv build --quiet --no-build-isolation --wheel dist/*.tar.gz --out-dir dist
	@ls dist

check-compiled: setup uncompile ## compile a copy of the tree; its units and a short benchmark
	@rm -rf $(COMPILED) && mkdir -p $(COMPILED)
	@cp -r $(SOURCES) simulation tests bench deploy docs hatch_build.py pyproject.toml README.md $(COMPILED)
	@cd $(COMPILED) && export PYTHONPATH="$$PWD" && python="$(abspath $(BIN))/python" && \
	$$python hatch_build.py && \
	$$python -m proxy --version | grep 'compiled with mypyc' && \
	$$python -m pytest -m "not nightly and not pure" -n 2 tests/protocol tests/quotas tests/proxy $(ARGS) && \
	$$python -m bench --only against_haproxy --peers one,all --scenario "1 KiB, depth 1" --quick

# What operators install, executed: as root, on Debian with the packages that a failing test names.
deploy-tools: ## build actionlint, helm, etcd, kube-apiserver and kubectl with Go, once: 15 minutes
	@tests/deploy/operator/build_tools.sh

check-deploy: setup jars deploy-tools ## image, unit, chart, rules, Spark on Kubernetes and a Kerberos KDC, executed
	@$(BIN)/python -m pytest -m deploy -n 2 --dist loadfile --durations=20 tests/deploy/operator $(ARGS)

dist: setup uncompile ## a release into dist/: wheel, sdist, chart, unit, rules, parts, checksums; COMPILED=1 IMAGE=1 for all of it
	@$(BIN)/python -m deploy.release $(if $(COMPILED),--compiled) $(if $(IMAGE),--image)

ENGINE ?= docker
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

image: ## the image, by $(ENGINE): ENGINE=podman for another
	@$(ENGINE) build --file deploy/image/Dockerfile --build-arg VERSION=$(VERSION) --tag kafka-quota-proxy:$(VERSION) .

claims: setup ## which tests show what the pages claim
	@$(BIN)/python -m tests.docs.claims

reference: setup ## write docs/reference from the catalogues of metrics and log events
	@$(BIN)/python -m tests.docs.reference

format: setup ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

EXPORT = $(BIN)/uv export --quiet --locked --no-header --no-emit-project --no-annotate
lock: | $(BIN)/python ## bring uv.lock and the image's locks up to date with pyproject.toml
	@$(BIN)/uv lock
	@$(EXPORT) --no-dev --output-file deploy/image/requirements.txt
	@$(EXPORT) --only-group image --output-file deploy/image/build-requirements.txt

jars: setup java ## fetch and check the jars of Kafka and Spark's connector
	@$(BIN)/python -m deploy.local fetch

clean: uncompile ## remove the environment and all caches, downloads too
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(SYNCED): pyproject.toml uv.lock | $(BIN)/python
	@version=$$(sed -n '/^name = "uv"$$/{n;s/^version = "\(.*\)"$$/\1/p;}' uv.lock); \
	if [ "$$($(BIN)/uv --version 2>/dev/null | cut -d ' ' -f 2)" != "$$version" ]; then \
	    echo "installing uv $$version into $(VENV)"; \
	    $(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 8 "uv==$$version" || { \
	        echo "error: uv $$version cannot be downloaded: check the network, then run make again" >&2; exit 1; }; \
	fi
	@for pause in 3 10 0; do \
	    $(BIN)/uv sync --locked && break; \
	    if [ $$pause = 0 ]; then \
	        echo "error: the packages of uv.lock cannot be installed (see above): check the network, then run make again" >&2; \
	        exit 1; \
	    fi; \
	    echo "trying again in $$pause s" >&2; sleep $$pause; \
	done
	@touch $@

$(BIN)/python:
	@for each in $(PYTHON) python3.11 python3.12 python3.13 python3 python; do \
	    if "$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$each; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "error: Python 3.11 or newer is needed: install it (Debian/Ubuntu: apt install python3 python3-venv), or make PYTHON=/path/to/it" >&2; \
	    exit 1; \
	fi; \
	"$$found" -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	    rm -rf $(VENV); \
	    echo "error: $$found cannot make virtual environments: install its venv module (Debian/Ubuntu: apt install python3-venv)" >&2; \
	    exit 1; }

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	if [ "$${major:-0}" -lt 17 ]; then \
	    echo "error: Java 17 or newer is needed, found $${major:-none}: install it (Debian/Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME" >&2; \
	    exit 1; \
	fi
