# Two commands: `make demo` and `make test`. Each sets up everything it needs, once.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := app,text,lightning,hf,skorch,sorting-network,ray,docs,dev
JOBS ?= 2
PACKAGES ?= metrics surrogates training estimators
MUTANTS ?= 60
SEED ?= 0
SETS ?= 1000000
KILLS ?= 50
STEPS ?= 10000

PEERS := .venv-peers

.PHONY: demo test setup lint docs check speed mutants campaign peers clean

demo: $(STAMP)  ## trains on bundled data, shows where the metric pays and where it does not
	@echo "1. Which handwritten digits are odd? Train a linear model for the partial AUC: the share of"
	@echo "   odd digits it finds with at most 5 % false alarms."
	OMP_NUM_THREADS=1 $(BIN)/metricgrad train --target odd --metric pauc:max_fpr=0.05 --model linear --out runs/demo
	@echo "2. Does it pay? The same over 12 splits: a linear model cannot find all odd digits, and the"
	@echo "   metric decides which ones it gives up."
	OMP_NUM_THREADS=1 $(BIN)/metricgrad compare --target odd --metric pauc:max_fpr=0.05 --model linear --splits 12 --methods metric_loss --out runs/demo-pays
	@echo "3. Where it does not: a network finds them all, and cross-entropy is enough for F1."
	OMP_NUM_THREADS=1 $(BIN)/metricgrad compare --target odd --metric f1 --hidden 32 --splits 6 --methods metric_loss --out runs/demo-level

test: $(STAMP)  ## all tests, doctests and the code in README and docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope

setup: $(STAMP)  ## the environment in .venv, with all extras

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "metricgrad needs Python 3.11 or newer; this is $$($(PYTHON) --version). Point PYTHON at one: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	$(BIN)/python .ci/no_cuda.py
	touch $@

lint: $(STAMP)  ## ruff and basedpyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

docs: $(STAMP)  ## the site, in build/site; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "$(CURDIR)/build/site/index.html"

check: lint docs test  ## what CI runs

speed: $(STAMP)  ## the speed benchmark: ratios within one run, one thread
	$(BIN)/python -m benchmarks.speed

mutants: $(STAMP)  ## mistakes made on purpose that no test notices, in tests/mutants.md; SURVIVORS=1 runs only those again
	$(BIN)/python -m tools.mutants $(PACKAGES) --mutants $(MUTANTS) --seed $(SEED) --jobs $(JOBS) $(if $(SURVIVORS),--survivors)

campaign: $(STAMP)  ## fuzzed sets, hostile input and faults, in tests/campaign.md; SETS=100000 KILLS=10 STEPS=1000 is a quick one, ONLY=tables one theme
	$(BIN)/python -m tools.campaign --sets $(SETS) --kills $(KILLS) --steps $(STEPS) --seed $(SEED) --jobs $(JOBS) $(if $(ONLY),--only $(ONLY))

# torchsort is compiled against the torch that is there; an nvcc on the path without CUDA stops it.
peers: $(PEERS)/.installed  ## the environment of the benchmarks against other libraries, in .venv-peers

$(PEERS)/.installed: benchmarks/peers/constraints.txt
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c $< torch numpy scikit-learn safetensors rich pandas pillow numba tqdm setuptools wheel
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c $< --no-deps libauc pytorch-metric-learning ap_perf
	-PATH=/usr/bin:/bin $(CURDIR)/$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c $< --no-deps --no-build-isolation torchsort
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

clean:  ## removes the environment and everything generated
	rm -rf $(VENV) $(PEERS) runs .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
