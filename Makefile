# make train ARGS="--var model=LSTM --seed 1"
# make train TORCH=cpu installs PyTorch without CUDA: one gigabyte and a half instead of six.
VENV ?= .venv
PYTHON ?= python3
RUN := $(VENV)/bin/python
UV := $(VENV)/bin/uv
READY := $(VENV)/.installed
GROUPS := --group dev --group benchmarks --group models --group avalon

.PHONY: train test check format benchmark docs docs-serve lock

train: $(READY)
	$(RUN) main.py --config configs/FirstLook/HELM/config.json $(ARGS)

test: $(READY)
	$(RUN) -m pytest -n 2 -m "not slow" $(ARGS)

check: $(READY)
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy .
	$(RUN) -m pytest -n 2

format: $(READY)
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

benchmark: $(READY)
	$(RUN) -m benchmarks $(ARGS)

docs: $(READY)
	$(RUN) -m tests.generate_docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

docs-serve: $(READY)
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve

# Renews requirements.lock after pyproject.toml was edited; ARGS=--upgrade renews all it has.
lock: $(UV)
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--all-extras $(GROUPS) \
		--output-file requirements.lock $(ARGS) pyproject.toml

# uv fills the environment several times faster than pip does
$(READY): $(UV) requirements.lock pyproject.toml
ifdef TORCH
	sed -e '/^ *--hash/d' -e 's/ \\$$//' requirements.lock > $(VENV)/versions.txt
	$(UV) pip install --python $(RUN) --torch-backend $(TORCH) --constraint $(VENV)/versions.txt \
		$(GROUPS) --editable '.[all]'
else
	$(UV) pip install --python $(RUN) --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(RUN) --no-deps --no-build-isolation --editable .
endif
	touch $@

# Its own hash is checked, too: pip reads uv's lines of the lock.
$(UV):
	$(PYTHON) -m venv $(VENV)
	sed -n '/^uv==/,/# via/p' requirements.lock | \
		$(RUN) -m pip install --quiet --disable-pip-version-check --require-hashes -r /dev/stdin
