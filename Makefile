# Every target sets up what it needs: a virtual environment of its own in .venv, from nothing but Python and the network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
# What ruff's ASYNC rules lack: a Cancelled that is swallowed, an await in a finally that cancellation interrupts, ...
ASYNC_RULES := ASYNC101,ASYNC102,ASYNC103,ASYNC104,ASYNC106,ASYNC111,ASYNC112,ASYNC118,ASYNC120
# Each of them needs async, await or a scope, and one of these words; to read a file takes 0.3 s.
ASYNC_WORDS := open_nursery|CancelScope|move_on_|fail_a|finally:|^ *except|Cancelled|^ *from (trio|anyio)
RUN_READY := $(VENV)/run-ready
TSC := $(VENV)/node/node_modules/.bin/tsc
# Six workers on two cores, as a test with a kernel waits for half of its time (four leave the cores idle for a fifth of it, six
# for a sixteenth); make test N=4 where memory is scarce: each takes half a GB. Each gets whole files. SEED=7 shuffles them.
N := 6
FILES := --dist loadfile --no-loadscope-reorder
SHUFFLED := $(if $(SEED),--random-order-seed=$(SEED))
# What a test needs is told by its marks, which its fixtures set: tests/support/runs/costs.py.
QUICK := not (kernel or guest or browser or framework or page or slow or alone)
# AGAIN=yes, for another user: without guest kernels, and without attacks that are the same whoever the kernel's user is.
AGAIN_FOR_USER := $(if $(filter yes,$(AGAIN)), and not guest and not any_user)
# Both stages run, each prints a summary, and the status is 0 only where all passed. $(1): more options of pytest.
define PYTEST
@$(BIN)/python -m pytest -n $(N) $(FILES) $(SHUFFLED) -m "not alone$(AGAIN_FOR_USER)" $(1); first=$$?; \
  $(BIN)/python -m pytest $(SHUFFLED) -m "alone$(AGAIN_FOR_USER)" $(1) && [ $$first = 0 ]
endef

.PHONY: help demo dashboard tour quick test night proof-guests proof-images proof-kills proof-loop proof-mail proof-replay proof-snapshots security check check-async check-types check-style check-imports check-pages no-npm format bench stages cover docs roads clients frameworks test-frameworks agents compare clean

help:
	@echo "make demo      set up, then show isolation and supervision, offline"
	@echo "make dashboard set up, then start a lively tree with its dashboard"
	@echo "make tour      take the pictures of the dashboard in docs/tutorials/dashboard anew"
	@echo "make quick     set up, then run the tests that need no kernel, guest, browser or framework of their own"
	@echo "make test      set up, then run all tests on two cores; SEED=7: in another order"
	@echo "make night     all tests, at random and with more rounds"
	@echo "make proof-guests  what is tested in guest kernels, with the Linux 6.12 of Debian 13"
	@echo "make proof-images  build 21 Dockerfiles, and compare each image with that of buildah (apt-get install buildah)"
	@echo "make proof-kills  kill the kernel fifty times under load: nothing that was acknowledged is lost"
	@echo "make proof-mail   end the kernel a hundred times, half of them by kill -9: no acknowledged message is lost"
	@echo "make proof-replay  kill recorded programs at each turn: all is done once, and replays are sealed"
	@echo "make proof-snapshots  snapshots of databases that are written meanwhile, 1,000 of SQLite and 50 of PostgreSQL: each is sound"
	@echo "make proof-loop   kill the loop at each of its records: nothing is done twice"
	@echo "make security  set up, then run the attacks alone, and programs behind the filtered network"
	@echo "make check     ruff, mypy, import-linter, flake8-async, TypeScript over the dashboard"
	@echo "make bench     measure speed against a C floor (docs/reference/speed.md); ROW=spawn: only such rows"
	@echo "make stages    where the time of a SPAWN, READ and EXEC goes (docs/how-to/find-out-what-is-slow.md)"
	@echo "make cover     tests with coverage, subprocesses included"
	@echo "make roads     which functions, files and rooms one system call passes"
	@echo "make clients   set up litellm, pydantic-ai and langchain-openai, and run their tests in jails"
	@echo "make test-frameworks  set up agent frameworks, and test the SDK's adapters and the recipes with them; litellm's proxy and llama.cpp's server as providers"
	@echo "make agents    set up coding agents of others from their registries, run a task of each in a jail, and write docs/reference/coding-agents.md; clients and servers of MCP"
	@echo "make compare   misbehaving agents on LangGraph, AutoGen, supervisord and AgentOS (docs/reference/comparison.md)"
	@echo "make docs      run every command and code block of README and docs"

$(RUN_READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "AgentOS needs Python 3.11 or newer, $(PYTHON) is `$(PYTHON) -V`: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up $(VENV), once, in about half a minute: a virtual environment of $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "$(PYTHON) has no venv module: on Debian, apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV): pip, then AgentOS and what it imports, from PyPI"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(READY): $(RUN_READY)
	@echo "setting up $(VENV): what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group pyproject.toml:dev
	@touch $@

demo: $(RUN_READY)
	@$(BIN)/python -m demos.security --brief
	@$(BIN)/python -m demos.supervision_tree
	@echo "Such a tree in the browser: make dashboard"

dashboard: $(RUN_READY)
	@echo "for another link: $(BIN)/agentos dashboard --state-dir .dashboard"
	@$(BIN)/agentos run demos/dashboard/agentos.toml --state-dir .dashboard

tour: $(READY)
	AGENTOS_MUST_SANDBOX=1 AGENTOS_TOUR=docs/tutorials/dashboard $(BIN)/python -m pytest tests/web/test_tour.py

quick: $(READY)
	$(BIN)/python -m pytest -n 4 $(FILES) $(SHUFFLED) -m "$(QUICK)"

test: $(READY)
	$(call PYTEST,)

night: $(READY)
	$(call PYTEST,--hypothesis-profile=night --timeout=4000)

# Long proofs: hundreds of rounds before a change of what they prove lands; make test runs five of each.
PROOF := $(BIN)/python -m pytest --hypothesis-profile=night --timeout=4000 --capture=no

# The guests' Linux is that of the host's Debian; here it is Debian 13's, unpacked and not installed.
NEWER_LINUX := $(abspath $(VENV))/linux-6.12

$(NEWER_LINUX)/usr/bin/linux.uml:
	tests/tools/fetch_linux.sh $(NEWER_LINUX)

proof-guests: $(READY) $(NEWER_LINUX)/usr/bin/linux.uml
	AGENTOS_MUST_SANDBOX=1 AGENTOS_GUEST_KERNEL=$(NEWER_LINUX)/usr/bin/linux.uml $(PROOF) -m guest

proof-images: $(READY)
	$(PROOF) tests/system/images/test_buildah.py

proof-kills: $(READY)
	$(PROOF) tests/system/kernel/test_kill_9.py

proof-mail: $(READY)
	$(PROOF) tests/system/kernel/test_kept_mail.py

proof-replay: $(READY)
	$(PROOF) tests/recordings tests/system/recordings tests/frameworks/test_recorded_agents.py

proof-snapshots: $(READY)
	$(PROOF) tests/system/snapshots/test_databases.py

proof-loop: $(READY)
	$(PROOF) tests/system/loop/test_loop_crashes.py

ATTACKS := tests/security tests/sandbox/attacks/test_filtered_*.py tests/system/network/test_filtered_*.py
security: $(READY)
	$(call PYTEST,$(ATTACKS))

# Two checkers at a time, those first that take longest.
check: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-async check-types check-style check-imports \
	  `if command -v npm >/dev/null; then echo check-pages; else echo no-npm; fi`

check-async: $(READY)
	$(BIN)/flake8-async --enable $(ASYNC_RULES) `git grep -lE --all-match -e '$(ASYNC_WORDS)' -e 'async |await |CancelScope' 'agentos/*.py' 'supervisors/*.py' 'sdk/*.py' ':!agentos/sandbox/inside' ':!sdk/agentos_attacks/inside'`

check-types: $(READY)
	$(BIN)/mypy

check-style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check-imports: $(READY)
	$(BIN)/lint-imports --no-cache

no-npm:
	@echo "SKIPPED: the types of the dashboard's modules weren't checked, as npm isn't installed (apt-get install npm)"

$(TSC):
	@echo "setting up $(VENV)/node: TypeScript, from npm"
	@npm install --prefix $(VENV)/node --silent --no-audit --no-fund --no-save typescript@5

check-pages: $(TSC)
	$(TSC) --project agentos/userland/web

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m tests.speed.bench $(if $(ROW),"$(ROW)")

stages: $(READY)
	$(BIN)/python -m tests.speed.stages

cover: $(READY)
	$(BIN)/python -m pytest --cov --cov-report=term

docs: $(READY)
	$(BIN)/python -m pytest tests/docs

# Environments of vendors' clients and of agent frameworks, each with the packages of the group of its name.
CLIENTS := $(VENV)/clients/ready
FRAMEWORKS := $(VENV)/frameworks/ready
OTHER_FRAMEWORKS := $(VENV)/crewai/ready $(VENV)/llamaindex/ready
SERVERS := $(VENV)/litellm-proxy/ready $(VENV)/llama-cpp/ready
COMPARED := $(VENV)/compare/ready
# Our own pip fills them: to install and renew one in each takes 5 s of CPU.
PIP_INTO := $(BIN)/python -m pip --python $(VENV)

$(CLIENTS) $(FRAMEWORKS) $(OTHER_FRAMEWORKS) $(SERVERS) $(COMPARED): $(VENV)/%/ready: pyproject.toml | $(RUN_READY)
	@echo "setting up $(VENV)/$*: the packages of the group $* in pyproject.toml, in about a minute"
	@$(PYTHON) -m venv --without-pip $(VENV)/$*
	@$(PIP_INTO)/$* install --quiet --disable-pip-version-check --group pyproject.toml:$*
	@touch $@

clients: $(READY) $(CLIENTS)
	$(BIN)/python -m pytest tests/system/model/test_vendor_clients.py

frameworks: $(FRAMEWORKS)

test-frameworks: $(READY) $(FRAMEWORKS) $(OTHER_FRAMEWORKS) $(SERVERS)
	$(BIN)/python -m pytest tests/frameworks tests/docs -k "frameworks or agent.md or other-frameworks"
	$(BIN)/python -m pytest tests/contracts/test_litellm_proxy.py tests/contracts/test_llama_cpp.py

# Coding agents of others, each as its preset says that it is installed; test_coding_agents.py runs a task of each.
CODING := $(patsubst %,$(VENV)/coding/%/ready,claude-code codex gemini-cli opencode qwen-code aider mini-swe-agent)

$(CODING): $(VENV)/coding/%/ready: agentos/presets/%.toml | $(RUN_READY)
	@echo "setting up $(VENV)/coding/$*, in about a minute"
	@package=`sed -n 's/^install = ".* install \(-g \)*\(.*\)"/\2/p' $<`; \
	  if grep -q '^install = "npm' $<; then \
	    npm install --prefix $(VENV)/coding/$* --silent --no-audit --no-fund --no-save "$$package"; \
	  else \
	    $(PYTHON) -m venv --without-pip $(VENV)/coding/$* && \
	      $(PIP_INTO)/coding/$* install --quiet --disable-pip-version-check "$$package"; \
	  fi
	@touch $@

# Clients of MCP: fastmcp, and beside it the SDK for TypeScript.
MCP_CLIENTS := $(VENV)/mcp-clients/ready

$(MCP_CLIENTS): pyproject.toml | $(RUN_READY)
	@echo "setting up $(VENV)/mcp-clients, in about a minute"
	@$(PYTHON) -m venv --without-pip $(VENV)/mcp-clients
	@$(PIP_INTO)/mcp-clients install --quiet --disable-pip-version-check --group pyproject.toml:mcp-clients
	@npm install --prefix $(VENV)/mcp-clients --silent --no-audit --no-fund --no-save @modelcontextprotocol/client
	@touch $@

agents: $(READY) $(CODING) $(MCP_CLIENTS)
	AGENTOS_TABLE=write $(PROOF) tests/frameworks/test_coding_agents.py tests/frameworks/test_steered_agents.py tests/frameworks/test_mcp_servers.py \
	  tests/userland/mcp/test_foreign_clients.py

compare: $(READY) $(COMPARED)
	$(BIN)/python -m tests.compare --docs

roads: $(READY)
	$(BIN)/python -m tests.architecture.roads

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
