# `make run` and `make test` set everything up first. A machine elsewhere can name its own torch
# index: TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu make run
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH_INDEX := $(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
PIP_ARGS := -c constraints.txt $(TORCH_INDEX)
READY := $(VENV)/ready
DEV_READY := $(VENV)/ready-dev

.PHONY: setup run test check types types-folder unit slow test-engines engines bench schema clean

setup: $(READY)

run: $(READY)
	$(BIN)/harnessrl train specs/quickstart.yaml

test: check types unit

check: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy wants the package under its own name. The root is the package, so that gets a folder of links.
types: $(DEV_READY) types-folder
	MYPYPATH=build/types $(BIN)/mypy -p harnessrl

types-folder:
	mkdir -p build/types/harnessrl
	ln -sfn $(addprefix ../../../,__init__.py specs prompts memory agents trainer) build/types/harnessrl/

# Two at a time, each with files of its own; a worker takes 1.5 GB.
JOBS ?= 2
unit: $(DEV_READY)
	$(BIN)/pytest -n $(JOBS) --dist loadscope

# The slower checks: a wheel in a clean environment trains, SmolLM2 takes two real steps, and the spec
# language is quick at 10,000 tasks.
slow: $(DEV_READY)
	$(BIN)/pytest -m slow

# After a change of the spec language: the JSON Schemas and docs/spec.md.
schema: $(READY)
	$(BIN)/python -m harnessrl.specs.reference

bench: $(READY)
	$(BIN)/python benchmarks/quickstart.py

$(VENV)/bin/python:
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'HarnessRL needs Python 3.11 or newer; set PYTHON=/path/to/python3.11')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade pip

$(READY): $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install -qq $(PIP_ARGS) -e .
	touch $@

# OpenRLHF without what it runs on (a GPU's CUDA, Ray, vLLM): the tests read its parser. Its wheel puts a
# package `tests` beside itself, which is not ours to keep.
$(DEV_READY): $(READY)
	$(BIN)/pip install -qq $(PIP_ARGS) -e ".[dev]"
	$(BIN)/pip install -qq --no-deps $(OPENRLHF)
	touch $@

# The engine tests: OpenRLHF, vLLM, Ray and DeepSpeed for real, on a CPU, in an environment of their own,
# since they pin other versions of some libraries. It is large (4 GB), so all clones share it; what it holds
# is in its name.
OPENRLHF := openrlhf==0.11.2
DEEPSPEED := deepspeed==0.19.6
ENGINES_HASH := $(shell (cat tests/engines/requirements.txt; echo $(OPENRLHF) $(DEEPSPEED)) | sha256sum | cut -c1-12)
ENGINES ?= $(HOME)/.cache/harnessrl/engines-$(ENGINES_HASH)
ENGINES_READY := $(ENGINES)/ready

test-engines: $(DEV_READY) $(ENGINES_READY) types-folder
	PYTHONPATH=build/types:trainer/openrlhf/cpu DS_ACCELERATOR=cpu $(ENGINES)/bin/python -m pytest tests/engines/inside
	OPENRLHF_PYTHON=$(ENGINES)/bin/python $(BIN)/pytest -m engines tests/engines

engines: $(ENGINES_READY)

# DeepSpeed is built against the torch that is there, without its CUDA parts, and by an older setuptools than
# vLLM asks for. OpenRLHF asks for flash-attn, which needs a GPU. The last three do not fit this torch.
$(ENGINES_READY):
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install -qq --upgrade pip
	$(ENGINES)/bin/pip install -qq $(TORCH_INDEX) -r tests/engines/requirements.txt
	$(ENGINES)/bin/pip install -qq setuptools==78.1.1
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(ENGINES)/bin/pip install -qq --no-build-isolation $(DEEPSPEED)
	$(ENGINES)/bin/pip install -qq --no-deps $(OPENRLHF)
	$(ENGINES)/bin/pip uninstall -qq -y torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
