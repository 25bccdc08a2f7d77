# What people type and what CI runs. Every target does the set-up it needs; `make help` lists them.

PYTHON ?= python3
# Where else to look for torch. The default spares those without a GPU the CUDA libraries; name the
# index of your CUDA build instead, or leave it empty to ask only what pip is configured for. It is
# asked for torch alone: where it can't be reached, that costs a few seconds and no more.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Options handed on to pytest, `gradwire demo` and the programs in tests/bench.
ARGS ?=

VENV := .venv
READY := $(VENV)/ready
PIP := $(VENV)/bin/python -m pip
# protoc looks for its plug-ins on PATH.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.DELETE_ON_ERROR:
.PHONY: help setup demo test test-compose conformance check proto dashboards rules bench convergence drill cost observe soak pictures cases metrics dist clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

setup: $(READY)  ## make .venv and install everything into it

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "gradwire needs Python 3.11 or newer, and '$(PYTHON)' is not: $$($(PYTHON) --version 2>&1 | head -n 1)." >&2; \
	  echo "Install one and name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "'$(PYTHON)' cannot make virtual environments." >&2; \
	  echo "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	$(PIP) install --no-deps --constraint constraints.txt $(if $(strip $(TORCH_INDEX)),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,demo]'
	@touch $@

demo: $(READY)  ## train a real job over two daemons, and compare it with gloo
	$(VENV)/bin/gradwire demo $(ARGS)

test: $(READY)  ## run the tests (ARGS=tests/unit for some of them)
	$(VENV)/bin/python -m pytest $(ARGS)

test-compose: $(READY)  ## image and compose files with a real container engine (some minutes; as root it starts one)
	$(VENV)/bin/python -m pytest -o faulthandler_timeout=0 tests/compose $(ARGS)

conformance: $(READY)  ## torch's own distributed tests, on grpc and on gloo
	$(VENV)/bin/python tests/conformance/run.py $(ARGS)

check: $(READY)  ## style, types, generated code, proto rules, alert rules, layout of dashboards, compose file
	.ci/check

proto: $(READY)  ## rebuild the generated code from the .proto files
	$(VENV)/bin/python proto/generate.py

dashboards: $(READY)  ## rebuild Grafana's dashboards from the code in deploy/grafana
	$(VENV)/bin/python deploy/grafana/write_dashboards.py

rules: $(READY)  ## rebuild the copies that Kubernetes needs: alert rules, example
	$(VENV)/bin/python deploy/kubernetes/write_rules.py

bench: $(READY)  ## measure everything, and write tests/bench/RESULTS.md
	$(VENV)/bin/python tests/bench/suite.py $(ARGS)

convergence: $(READY)  ## train over every wire, and write tests/bench/CONVERGENCE.md
	$(VENV)/bin/python tests/bench/convergence.py $(ARGS)

drill: $(READY)  ## disturb hundreds of jobs, and write tests/bench/FAILURES.md
	$(VENV)/bin/python tests/bench/failures.py $(ARGS)

cost: $(READY)  ## what it costs that nothing is lost, where nothing fails
	$(VENV)/bin/python tests/bench/resume_cost.py $(ARGS)

observe: $(READY)  ## what it costs to be looked at, and write tests/bench/OBSERVING.md
	$(VENV)/bin/python tests/bench/observing_cost.py $(ARGS)

soak: $(READY)  ## rounds, joins and killed ranks by the thousand: does anything grow?
	$(VENV)/bin/python tests/bench/soak.py $(ARGS)

pictures: $(READY)  ## of the status page, from a real job: deploy/pictures
	$(VENV)/bin/python tests/bench/pictures.py

cases: $(READY)  ## which numbered cases carry a test, and which do not
	$(VENV)/bin/python tests/cases.py

metrics: $(READY)  ## write deploy/METRICS.md, the table of all metrics
	$(VENV)/bin/python -m gradwire_ops.metrics_table

dist: $(READY)  ## build wheel and sdist into dist/
	rm -rf dist
	$(VENV)/bin/python -m build

clean:  ## remove all that the other targets made
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find client server proto deploy tests -name __pycache__ -type d -prune -exec rm -rf {} +
