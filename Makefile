PYTHON ?= python3
BIN := .venv/bin
TESTS := $(BIN)/python -m pytest -n auto --dist loadfile
OUT ?= runs/demo
REAL := --model smollm2 --length 16384 --methods origin,rerope,dynamic-ntk,mesa,stair --texts 0 \
  --samples 1 --lengths 8192,12288,16384 --out runs/real

.PHONY: demo real app test test-slow test-versions test-families test-ray test-fuzz test-browser test-peers mutants check test-gpu bench docs docs-pages pictures mechanism counterpart wheel format clean

demo: .venv/app  ## set up, then probe the shipped model, predict who fails, find the heads that break, ask it passkeys: runs/demo/report.html
	mkdir -p $(dir $(OUT)) && cp -R mesa_lens/examples/. $(dir $(OUT))
	$(BIN)/mesa-lens report $(dir $(OUT))smollm2-16k > /dev/null
	@printf '%s\n' \
	  'probe --length 2048 --out $(OUT) $(if $(wildcard $(OUT)/report.html),--overwrite)' \
	  'locate --methods rerope --lengths 1024 --samples 4 --try patch --ways only --out $(OUT)' \
	  'predict --samples 8 --config leaky-rerope:k=2,log_n=false --out $(OUT)' \
	  'anatomy --parts heads,tokens --methods origin,rerope --lengths 256,1024 --samples 2 --out $(OUT)' \
	  'eval --task passkey --methods origin,rerope,mesa --lengths 256,1k --samples 4 --out $(dir $(OUT))eval' \
	  | $(BIN)/mesa-lens -  # in one process: torch is loaded once
	$(BIN)/mesa-lens verify --quick --html $(dir $(OUT))theory > /dev/null
	@printf '%s\n' '' 'Done. Open next:' \
	  '  make app               the dashboard: this run, a finished run of SmolLM2, the methods, the theorems' \
	  '  $(OUT)/report.html  the answer for the shipped model on one page' \
	  '  docs/guide-length.md   your own model: mesa-lens probe --model <hub id or local path> --out runs/mine' \
	  '`. $(BIN)/activate` puts mesa-lens on the path.'

real: .venv/app  ## a real model (SmolLM2-135M-Instruct, 93 MB to fetch): runs/real/report.html (an hour on 2 idle cores)
	$(BIN)/mesa-lens fetch smollm2
	$(BIN)/mesa-lens probe $(REAL) --estimate
	$(BIN)/mesa-lens probe $(REAL)

app: .venv/app  ## the dashboard over runs/, in the browser
	$(BIN)/mesa-lens app

test: .venv/installed  ## set up, then the tests
	$(TESTS)

test-slow: .venv/installed  ## the tests marked slow
	$(BIN)/python -m pytest -m slow

test-versions:  ## the quick engine and check suites with the oldest and the newest releases allowed, on Python 3.11 to 3.13
	$(PYTHON) tests/versions.py

test-families: .venv/installed  ## every family of transformers as a tiny model: methods against loops over pairs, and every command
	$(BIN)/python -m pytest -n auto -m slow tests/mesa/engine/test_all_families.py tests/probe/test_all_families.py

test-ray: .venv/ray  ## workers on a real Ray: every command, 40 kills (needs mesa-lens[ray])
	$(BIN)/python -m pytest -m 'slow or not slow' tests/probe/experiment/test_ray.py tests/probe/experiment/test_ray_commands.py

test-fuzz: .venv/installed  ## 2,000 wrong command lines: each must end in one line that names what is wrong
	$(BIN)/python tests/fuzz/command_lines.py 2000

test-browser: .venv/browser  ## the dashboard in Chromium: screenshots in runs/screenshots
	$(BIN)/python -m pytest -n auto -m browser tests/browser

test-peers: .venv/installed  ## TransformerLens' own benchmarks and integration tests on mesa.bridge, beside its bridge (fetches its source; PEERS=--families: of ten families' tiny models)
	$(BIN)/python tests/peers/compare.py $(PEERS)

mutants: .venv/installed  ## about 300 small mistakes put into the code, one at a time: each must be noticed (15 minutes)
	$(BIN)/python tests/mutations/run.py

check: .venv/installed  ## the gate: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright & types=$$!; $(TESTS); tests=$$?; wait $$types || { echo 'pyright found errors: see above' >&2; exit 1; }; exit $$tests

test-gpu: .venv/installed  ## on a machine with a GPU: prefill against float64, goldens, kernels, methods, times, on one page: runs/gpu/gpu.md (10 minutes at most)
	$(BIN)/python benchmarks/gpu.py

bench: .venv/installed  ## benchmarks/results: time and memory of every method beside stock transformers (70 minutes; BENCH=--quick: 15 to 40)
	$(BIN)/python benchmarks/attention.py $(BENCH)

pictures: .venv/installed  ## docs/*.png and their numbers, docs/*.csv, by the present styles, from runs/demo, runs/real and research/gemma3/run: those that are there
	$(BIN)/python research/pictures.py $(dir $(OUT))

mechanism: .venv/installed  ## the pictures and tables of research/mechanism/results.md, and the runs behind them; interrupted, it goes on
	$(BIN)/python research/mechanism/run.py $(dir $(OUT))

counterpart: .venv/installed  ## the picture and tables of research/theorems/results.md's trained counterpart, and the run behind them; it goes on
	$(BIN)/python research/trained_counterpart/run.py --out $(dir $(OUT))counterpart --draw

docs-pages: .venv/installed  ## docs/commands.md and docs/api-*.md, from the code and docs/site/pages/
	$(BIN)/python docs/site/reference.py

docs: .venv/docs docs-pages  ## the documentation as a site: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: .venv/installed  ## dist/: wheel and source, tried in an empty environment, from another folder
	rm -rf build/lib build/wheel dist
	$(BIN)/python -m build
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd build/wheel && bin/mesa-lens methods > /dev/null && bin/python -c 'import mesa, probe, theory; mesa.load()'

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist *.egg-info runs .pytest_cache .ruff_cache .hypothesis

.venv/app: pyproject.toml constraints.txt  # --no-compile: Python compiles the quarter that is used as it is imported
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11 to 3.13 is needed, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[app,gguf]'
	touch $@

.venv/installed: .venv/app  # what tests need as well: two fifths of all files
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

.venv/ray: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	touch $@

.venv/browser: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	for name in chromium chromium-browser google-chrome google-chrome-stable; do command -v $$name && exit 0; done; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } || \
	  { echo 'Chromium is needed: install it, or run this as root on Debian' >&2; exit 1; }
	touch $@
