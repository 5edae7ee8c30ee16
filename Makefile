# One environment in .venv, one site in _build/html. Each step leaves a stamp, so that a second run does nothing.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
BUILT := _build/.built
PORT ?= 8000

SHELL_FILES := _config.yml book/_toc.yml tools/questions.py $(wildcard book/_ext/*.py)
SOURCES := $(shell find book src/rooflab notebooks exercises solutions -type f \
	-not -path '*/__pycache__/*' -not -path '*/.ipynb_checkpoints/*' 2>/dev/null)

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# The site shows the book's own records, whoever builds it and on whatever GPU.
export ROOFLAB_REPLAY = 1

.PHONY: book student-book serve print test lab course sync sync-check lint clean
.DELETE_ON_ERROR:

book: $(BUILT)
	@echo "The book is built. Open _build/html/index.html in a browser, or run: make serve"

serve: book
	@echo "Serving http://localhost:$(PORT)/ (stop with Ctrl-C)"
	@$(PY) -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

student-book: book
	@$(PY) tools/student_site.py

print: book
	@$(PY) tools/print_book.py

test: book lint
	$(PY) -m pytest -n logical --maxprocesses 4

# GPU containers mostly run as root, and there Jupyter wants to be told.
lab: $(INSTALLED)
	env -u ROOFLAB_REPLAY $(VENV)/bin/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/notebooks

# Not in _build, which `make clean` removes: a course holds its gradebook.
course: $(INSTALLED)
	@test -n "$(COURSE)" || { echo "Say where the course goes: make course COURSE=../course"; exit 1; }
	@$(PY) tools/course.py $(COURSE)

sync: $(INSTALLED)
	$(PY) tools/sync.py

sync-check: $(INSTALLED)
	$(PY) tools/sync.py --check

lint: $(INSTALLED)
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet .
	@$(PY) tools/check_spelling.py

clean:
	rm -rf $(VENV) _build

# Debian ships venv without pip unless python3-venv is installed; then the system's pip puts one in.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; choose one with: make PYTHON=python3.12"; exit 1; }
	if $(PYTHON) -c 'import ensurepip' 2> /dev/null; then $(PYTHON) -m venv $(VENV); \
		else $(PYTHON) -m venv --without-pip $(VENV); fi
	$(PY) -m pip --version || $(PYTHON) -m pip --python $(PY) install pip

# nbgrader's JupyterLab panels are switched off: readers do not need them.
$(INSTALLED): pyproject.toml constraints.txt | $(PY)
	$(PY) -m pip install --quiet -c constraints.txt -e ".[gpu,book,exercises,test]"
	$(VENV)/bin/jupyter labextension disable --level=sys_prefix @jupyter/nbgrader
	@touch $@

# All pages are made anew when what surrounds them changes; otherwise Sphinx makes those that changed. A failed build
# forgets what it read (.doctrees): the next one must see the same warnings again. The stamp is taken before the build,
# so that an edit made meanwhile counts as newer.
$(BUILT): $(INSTALLED) $(SHELL_FILES) $(SOURCES)
	$(if $(filter $(INSTALLED) $(SHELL_FILES),$?),rm -rf _build/html _build/.doctrees)
	@mkdir -p _build && touch $@.new
	$(VENV)/bin/jupyter-book build book --config _config.yml --path-output . -W -n --keep-going \
		|| { rm -rf _build/.doctrees; exit 1; }
	@mv $@.new $@
