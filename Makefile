# make train ARGS="--var model=CNN-PPO --var n_steps=20000"
VENV ?= .venv
PYTHON ?= python3
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed

.PHONY: train test check format benchmark

train: $(READY)
	$(RUN) main.py $(ARGS)

test: $(READY)
	$(RUN) -m pytest -n 2 $(ARGS)

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

# uv fills the environment several times faster than pip does
$(READY): requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check uv
	$(RUN) -m uv pip install --quiet --python $(RUN) -r requirements.txt
	touch $@
