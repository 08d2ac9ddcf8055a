PYTHON ?= python3
BIN := .venv/bin
PLUGINS := plugins/specframe-std plugins/specframe-bitwise plugins/specframe-heads plugins/specframe-lab plugins/specframe-memory plugins/specframe-serve plugins/specframe-testing plugins/specframe-tiny
RAY_SECONDS ?= 1800
LM_EVAL_SECONDS ?= 900
SPECULATORS_SECONDS ?= 900
TORCHAO_SECONDS ?= 900
TRL_SECONDS ?= 900
JOBS ?= 2
# of the slow tests' cases a twenty-ninth runs by default, always the same ones; 29 meets the matrix's numbers of 2 to 28 values
EVERY ?= 29
# one process has all tests of a file: models and workers that they share are made once
BY_FILE := -n 2 --dist loadfile
BOUNDS_PYTHONS ?= python3.11 python3.12
# Python compiles the modules that are imported, and keeps them; to compile all of them takes a minute
PIP_INSTALL := pip install --quiet --no-compile -c constraints.txt
unexport PYTHONDONTWRITEBYTECODE
export TOKENIZERS_PARALLELISM = false

# layers that are compiled in tests run torch's own operators, as others do: test_compiled.py would tell nothing more here
NUMERIC := $(addprefix tests/test_,attention.py equivalence.py features.py \
	generation_config.py given_models.py hidden.py logprobs.py paged.py pieces.py rope.py samples.py sampling.py sweep.py trees.py) \
	$(addprefix plugins/specframe-std/tests/test_,flex.py drafters.py drop_in.py drop_in_kinds.py alignments.py kv_backends.py other_roles.py tree_drafts.py) \
	$(addprefix plugins/specframe-heads/tests/test_,blocks.py tensors.py every_family.py stepwise.py)

.PRECIOUS: .venv-bounds/%/installed
.PHONY: run install test wide nightly bounds mutants mutants-ray mutants-trl mutants-lm-eval test-ray test-clients test-speculators test-arctic test-torchao test-trl test-lm-eval test-triton test-launches kernels fuzz check docs site changelog wheels bench clean

run: install  ## decode the built-in prompts with the embedded pair
	$(BIN)/specframe run

install: .venv/installed  ## create .venv with everything in it, pinned

.venv/installed: constraints.txt pyproject.toml $(addsuffix /pyproject.toml,$(PLUGINS))
	$(PYTHON) -m venv .venv
	$(BIN)/$(PIP_INSTALL) -e ".[dev]" $(addprefix -e ,$(PLUGINS))
	touch $@

test: install  ## the quick set: the cheapest tests that catch all planted faults; tests/quick.py chooses them
	OMP_NUM_THREADS=1 $(BIN)/pytest $(BY_FILE) -q -m "not slow" --ignore tests/test_wheels.py

wide: install  ## a part of all other tests, always the same one
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -q -m "slow and not nightly" --every $(EVERY)

nightly: install  ## all tests, 1,000 inputs at random, the lowest versions, and all planted faults: hours
	SPECFRAME_FULL_MATRIX=1 SPECFRAME_ALL_ARCHITECTURES=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -q --ignore tests/test_wheels.py
	$(MAKE) fuzz bounds mutants mutants-ray mutants-trl mutants-lm-eval

mutants: install  ## plant faults of one line, one at a time, in copies of the project: each has to turn a test of the quick set red
	$(BIN)/python tests/mutation.py --jobs $(JOBS) $(MUTANTS)

mutants-ray: .venv-ray/installed  ## plant the faults whose tests need Ray
	RAY_worker_niceness=0 .venv-ray/bin/python tests/mutation.py --environment ray

test-ray: .venv-ray/installed  ## the tests of specframe-ray, in an environment of their own
	RAY_worker_niceness=0 OMP_NUM_THREADS=1 timeout $(RAY_SECONDS) .venv-ray/bin/python -m pytest -q -p no:cacheprovider plugins/specframe-ray/tests

.venv-ray/installed: constraints.txt pyproject.toml plugins/specframe-ray/pyproject.toml plugins/specframe-testing/pyproject.toml
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/$(PIP_INSTALL) -e ".[data]" $(addprefix -e plugins/specframe-,std bitwise testing tiny ray) pytest
	touch $@

bounds:  ## the tests with the lowest versions that are declared; BOUNDS="torch==2.13.0" takes another where one cannot be had
	@for python in $(BOUNDS_PYTHONS); do \
		if $$python -c "" 2>/dev/null; then $(MAKE) bounds-$$python || exit 1; \
		else echo "bounds: there is no $$python on this machine, so nothing is tested with it" >&2; fi; \
	done

bounds-%: .venv-bounds/%/installed
	OMP_NUM_THREADS=1 .venv-bounds/$*/bin/python -m pytest -n 2 -q -p no:cacheprovider --as-if-quick -m "not slow" --ignore tests/test_wheels.py $(TESTS)

.venv-bounds/%/installed: tests/bounds.py pyproject.toml $(addsuffix /pyproject.toml,$(PLUGINS))
	$* -m venv .venv-bounds/$*
	.venv-bounds/$*/bin/python tests/bounds.py $(BOUNDS) >.venv-bounds/$*/bounds.txt
	.venv-bounds/$*/bin/pip install --quiet --no-compile -c .venv-bounds/$*/bounds.txt -e ".[dev]" $(addprefix -e ,$(PLUGINS))
	touch $@

test-clients: install .venv-guidellm/installed .venv-aiperf/installed  ## load generators measure the server, each in an environment of its own
	OMP_NUM_THREADS=1 $(BIN)/pytest -q plugins/specframe-serve/clients

.venv-guidellm/installed: constraints.txt
	$(PYTHON) -m venv .venv-guidellm
	.venv-guidellm/bin/pip install --quiet --no-compile $(shell grep ^torch== constraints.txt) guidellm==0.8.1
	touch $@

.venv-aiperf/installed:
	$(PYTHON) -m venv .venv-aiperf
	.venv-aiperf/bin/pip install --quiet --no-compile aiperf==0.13.0
	touch $@

test-speculators: .venv-speculators/installed  ## drafts of heads beside those of the library speculators, in an environment of their own
	OMP_NUM_THREADS=1 timeout $(SPECULATORS_SECONDS) .venv-speculators/bin/python -m pytest -q -p no:cacheprovider plugins/specframe-heads/oracles

# the library asks for an earlier transformers than constraints.txt has, and for packages of images and sounds that no head needs, which are
# made for another torch and keep transformers from being imported
.venv-speculators/installed: constraints.txt pyproject.toml plugins/specframe-heads/pyproject.toml plugins/specframe-testing/pyproject.toml
	$(PYTHON) -m venv .venv-speculators
	.venv-speculators/bin/pip install --quiet --no-compile torch==2.13.0
	.venv-speculators/bin/pip install --quiet --no-compile torch==2.13.0 speculators==0.9.0 -e . $(addprefix -e plugins/specframe-,std bitwise heads testing) pytest
	.venv-speculators/bin/pip uninstall --quiet --yes torchvision torchaudio
	touch $@

test-arctic: .venv-arctic/installed  ## the drafter suffix beside the trees of arctic-inference, in an environment of their own; not part of .ci/run
	OMP_NUM_THREADS=1 .venv-arctic/bin/python -m pytest -q -p no:cacheprovider plugins/specframe-std/oracles

# the package comes as source; built apart from this environment it would bring a torch of its own
.venv-arctic/installed: constraints.txt pyproject.toml plugins/specframe-std/pyproject.toml plugins/specframe-testing/pyproject.toml
	$(PYTHON) -m venv .venv-arctic
	.venv-arctic/bin/$(PIP_INSTALL) torch==2.13.0 -e . $(addprefix -e plugins/specframe-,std bitwise testing) pytest
	.venv-arctic/bin/pip install --quiet setuptools wheel cmake ninja nanobind==2.9.2 protobuf==5.29.6 grpcio-tools
	PATH="$(CURDIR)/.venv-arctic/bin:$$PATH" .venv-arctic/bin/pip install --quiet --no-build-isolation --no-deps arctic-inference==0.3.0
	touch $@

test-torchao: .venv-torchao/installed  ## models that torchao quantises, in an environment of their own
	OMP_NUM_THREADS=1 timeout $(TORCHAO_SECONDS) .venv-torchao/bin/python -m pytest -q -p no:cacheprovider quantizers

# transformers imports torchao in every process where it is installed, and it prints to standard error
.venv-torchao/installed: constraints.txt pyproject.toml plugins/specframe-std/pyproject.toml plugins/specframe-tiny/pyproject.toml
	$(PYTHON) -m venv .venv-torchao
	.venv-torchao/bin/$(PIP_INSTALL) torch==2.13.0 torchao==0.18.0 -e . $(addprefix -e plugins/specframe-,std bitwise testing tiny) pytest
	touch $@

test-trl: .venv-trl/installed  ## trainers of TRL whose rollouts are drafted, in an environment of their own
	OMP_NUM_THREADS=1 timeout $(TRL_SECONDS) .venv-trl/bin/python -m pytest -q -p no:cacheprovider trainers

mutants-trl: .venv-trl/installed  ## plant the faults whose tests need TRL
	.venv-trl/bin/python tests/mutation.py --environment trl

.venv-trl/installed: constraints.txt pyproject.toml plugins/specframe-std/pyproject.toml plugins/specframe-tiny/pyproject.toml
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/$(PIP_INSTALL) torch==2.13.0 trl==1.16.0 peft==0.21.2 -e ".[data]" $(addprefix -e plugins/specframe-,std bitwise heads testing tiny) pytest
	touch $@

test-lm-eval: .venv-lm-eval/installed  ## evaluation with lm-eval, with drafts and without, in an environment of its own
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 timeout $(LM_EVAL_SECONDS) .venv-lm-eval/bin/python -m pytest -q -p no:cacheprovider plugins/specframe-std/evaluation

.venv-lm-eval/installed: constraints.txt pyproject.toml plugins/specframe-std/pyproject.toml plugins/specframe-tiny/pyproject.toml
	$(PYTHON) -m venv .venv-lm-eval
	.venv-lm-eval/bin/$(PIP_INSTALL) torch==2.13.0 lm_eval==0.4.13 peft==0.21.2 -e . -e "plugins/specframe-std[lm-eval]" $(addprefix -e plugins/specframe-,bitwise testing tiny) pytest
	touch $@

mutants-lm-eval: .venv-lm-eval/installed  ## plant the faults whose tests need lm-eval
	HF_HUB_OFFLINE=1 .venv-lm-eval/bin/python tests/mutation.py --environment lm-eval

test-triton: .venv-triton/installed  ## the kernels of decode attention by Triton's interpreter, in an environment of their own
	OMP_NUM_THREADS=1 .venv-triton/bin/python -m pytest -q -p no:cacheprovider plugins/specframe-std/kernels

test-launches: .venv-triton/installed  ## the kernels that a layer launches on an H100, counted in the code that Inductor writes for one
	PYTHONPATH=launches .venv-triton/bin/python -m pytest -q -p no:cacheprovider launches

.venv-triton/installed: constraints.txt pyproject.toml plugins/specframe-std/pyproject.toml plugins/specframe-testing/pyproject.toml
	$(PYTHON) -m venv .venv-triton
	.venv-triton/bin/$(PIP_INSTALL) -e . -e "plugins/specframe-std[triton]" $(addprefix -e plugins/specframe-,bitwise testing) pytest
	touch $@

kernels: install  ## tests of what models compute, with the kernels of a CPU that has no vector instructions
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -q -m "not nightly" --every $(EVERY) $(NUMERIC)

fuzz: install  ## 1,000 inputs at random, the same ones every time: commands, prompt files, arguments, interruptions; 1,000 combinations
	OMP_NUM_THREADS=1 SPECFRAME_FUZZ=1000 SPECFRAME_FUZZ_SEED=0 $(BIN)/pytest -n 2 -q tests/test_fuzz_commands.py tests/test_fuzz_prompts.py tests/test_fuzz_arguments.py
	OMP_NUM_THREADS=1 SPECFRAME_FUZZ=2500 SPECFRAME_FUZZ_SEED=0 $(BIN)/pytest -n 2 -q tests/test_fuzz_runs.py

check: install  ## lint, types, whether the generated docs are up to date, and whether the quick set is whole
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check
	$(BIN)/python tests/quick.py --check

docs: install  ## write the generated parts of docs/
	$(BIN)/python docs/generate.py

# with --quiet, --strict would not count warnings
site: install  ## build the documentation as a site that is read without a server, build/site/index.html; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# of 0.2.0 many changes stand in CHANGELOG.md already: they join those of the files
changelog: install  ## make the section of a version in CHANGELOG.md of the files in docs/changes: VERSION=0.3.0
	@test -n "$(VERSION)" || { echo "changelog: expected VERSION=0.3.0 or the like, got none" >&2; exit 2; }
	$(BIN)/towncrier build --yes --version $(VERSION)
	$(BIN)/python -c "from pathlib import Path; p = Path('CHANGELOG.md'); p.write_text(p.read_text().replace('## Unreleased ($(VERSION))', '### Others'))"

wheels: install  ## build all wheels into dist/
	rm -rf dist
	for part in . $(PLUGINS); do $(BIN)/python -m build --quiet --wheel --outdir dist $$part || exit 1; done

bench: install  ## tokens per second beside transformers' own decoding, on two pairs, in under ten minutes
	$(BIN)/python benchmarks/bench.py --pair embedded --device cpu --new 32 --least 8 --budget 280
	$(BIN)/python benchmarks/bench.py --pair cpu --device cpu --quick --budget 280

clean:
	rm -rf .venv .venv-ray .venv-speculators .venv-arctic .venv-torchao .venv-trl .venv-lm-eval .venv-triton .venv-bounds .venv-guidellm .venv-aiperf dist build *.egg-info plugins/*/*.egg-info
