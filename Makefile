# make demo   sets up what it needs and trains a real network on real BytePS with adaptive batch sizes
# make check  for a commit, four minutes on two cores: style, types, the quick tests, one job of each kind
#             (make check ROOM=policy: style, types and the quick tests of one room)
# make test   sets everything up, checks style and types, runs all tests but the longest
# make test-long  for a night: searches, the model of membership on many seeds, soak, race, breaks; goes on where it ended
# make docs   builds the documentation as a site in site/
# make bench  sets everything up, runs every controller once on real BytePS (a quarter of an hour), writes a report
# make dist   builds a source package and a wheel in dist/
# make lock   writes the lock files, by whose hashes make setup installs, anew from the requirements files

# MXNET=no leaves MXNet and its plugin of BytePS out (in a fresh clone, or after make clean).

# Containers often forbid Python to keep what it compiles; hundreds of processes would compile all they import.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
MXNET  ?= yes
VENV   := .venv
BIN    := $(VENV)/bin
# A folder with the data sets, if there is one; otherwise they are downloaded once.
export DYNAMIX_DATA ?= $(firstword $(abspath $(wildcard data ../shared/data)))

# On the platform of the lock files, the versions of the requirements files, by their hashes (`make setup LOCK=`: by
# version alone). Elsewhere the ranges of setup.py.
WITH := $(if $(filter no,$(MXNET)),without-mxnet,mxnet)
PINNED := requirements/main.txt requirements/$(WITH).txt
HASHED := $(BIN)/python -m pip install -q --no-compile --no-deps --require-hashes
HASHED_TORCH := $(HASHED) -r requirements/torch-cpu.lock 2>/dev/null || { \
	    echo "torch: no CPU build here; taking the one for CUDA and the libraries that it needs, by their hashes"; \
	    $(HASHED) -r requirements/torch.lock; }
PLATFORM := $(shell $(PYTHON) -c 'import platform, sys; print(sys.platform, platform.machine(), *sys.version_info[:2])')
comma := ,
ifeq ($(PLATFORM),linux x86_64 3 11)
LOCK ?= requirements/main.lock requirements/$(WITH).lock
PACKAGES := $(addprefix -r ,$(PINNED))
else
LOCK ?=
PACKAGES := -e '.[accelerate,bench,dev,docs,lightning,plots,ray,sim,torch,transformers,workloads$(if $(filter no,$(MXNET)),,$(comma)mxnet)]'
endif
PACKAGES_OF_DEMO := $(if $(LOCK),$(shell grep ^torch== requirements/main.txt),-e '.[plots$(comma)torch$(comma)workloads]')

.PHONY: setup system sshd slurm demo docs check test test-long lint lock dist bench bench-parts clean

setup: $(VENV)/.ready

# A compiler, libnuma, venv, bcc for eBPF, ip for the test bed and openssl for several hosts, by apt where one is missing.
system:
	@if command -v g++ >/dev/null && command -v make >/dev/null && command -v ip >/dev/null \
	    && command -v openssl >/dev/null \
	    && test -e /usr/include/numa.h && test -e /usr/lib/python3/dist-packages/bcc/__init__.py \
	    && $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then exit 0; fi; \
	packages="g++ make libnuma-dev python3-dev python3-venv python3-bpfcc iproute2 openssl"; \
	if ! command -v apt-get >/dev/null; then \
	    echo "error: g++, make, numa.h, python venv, bcc, ip or openssl is missing; install them (Debian names: $$packages)" >&2; exit 3; fi; \
	if [ "$$(id -u)" = 0 ]; then sudo=; elif command -v sudo >/dev/null; then sudo=sudo; else \
	    echo "error: as root, run: apt-get install $$packages" >&2; exit 3; fi; \
	$$sudo apt-get update -q && $$sudo apt-get install -y -q $$packages

# For tests of jobs over ssh, which start it themselves. A machine with systemd would serve the network from now on, so
# there they are skipped unless you install it.
sshd:
	@if { test -x /usr/sbin/sshd && command -v rsync >/dev/null; } || test -d /run/systemd/system \
	    || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ]; \
	    then exit 0; fi; apt-get update -q && apt-get install -y -q openssh-server openssh-client rsync

# For tests of jobs on Slurm, which start it themselves, and of jobs that mpirun starts.
slurm:
	@if { test -x /usr/sbin/slurmctld && command -v mpirun >/dev/null; } || test -d /run/systemd/system || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ]; \
	    then exit 0; fi; apt-get update -q && apt-get install -y -q --no-install-recommends slurmctld slurmd slurm-client munge openmpi-bin

# $(call INSTALL,lock files,packages with their versions): by the lock files where there are some, and what is left by pip.
define INSTALL
	$(PYTHON) -m venv $(VENV)
	@if [ -n "$(LOCK)" ]; then \
	    echo "packages: by the hashes in $(1)"; \
	    $(HASHED) $(addprefix -r ,$(1)) && { $(HASHED_TORCH); } || { \
	    echo "error: a package is not the one in the lock files, or cannot be had (see above); it was not installed." >&2; \
	    echo "Next: try another package index; or trust this one: make setup LOCK=" >&2; exit 3; }; \
	else echo "packages: by version, without hashes ($(PLATFORM))"; fi
	$(BIN)/python -m pip install -q --no-compile $(2)  # after lock files: what the build of torch needs
	$(BIN)/python -m compileall -q -j 0 -x py312_intrinsics $(VENV)/lib  # on all cores, which pip does not; torch's is for 3.12
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	$(BIN)/dynamix build-byteps
endef

$(VENV)/.ready: setup.py $(PINNED) $(LOCK) pyproject.toml | system
	$(call INSTALL,$(LOCK),$(PACKAGES))
	@touch $@

# The demo needs neither MXNet nor the packages of tests and documentation.
$(VENV)/.demo: setup.py requirements/main.txt requirements/demo.lock | system
	$(call INSTALL,requirements/demo.lock requirements/without-mxnet.lock,$(PACKAGES_OF_DEMO))
	@touch $@

demo: $(if $(wildcard $(VENV)/.ready),setup,$(VENV)/.demo)
	$(BIN)/dynamix launch -c configs/demo.yaml

# By uv. torch has its own: the CPU build, from the folder $PIP_FIND_LINKS where there is one, and the build for CUDA with
# its libraries, which a plain package index has. The image (docker/Dockerfile) has what this package needs and no more.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -q uv
	grep ^torch== requirements/main.txt > build/lock/torch.txt
	$(COMPILE) $(CPU_BUILD) --no-emit-package torch --no-emit-package numpy requirements/main.txt requirements/without-mxnet.txt \
	    -o requirements/main.lock
	for with in mxnet without-mxnet; do \
	    $(COMPILE) --no-deps requirements/$$with.txt -o requirements/$$with.lock || exit; done
	$(COMPILE) $(CPU_BUILD) --no-emit-package torch --no-emit-package numpy --extra plots --extra torch --extra workloads \
	    -c requirements/main.lock -c requirements/without-mxnet.lock -c build/lock/torch.txt setup.py -o requirements/demo.lock
	$(COMPILE) -c requirements/main.lock -c requirements/without-mxnet.lock build/lock/torch.txt -o requirements/torch.lock
	$(COMPILE) $(CPU_BUILD) --no-emit-package torch --extra torch --extra gpu -c requirements/main.lock \
	    -c requirements/without-mxnet.lock -c build/lock/torch.txt setup.py -o requirements/image.lock
	$(COMPILE) $(CPU_BUILD) build/lock/torch.txt | sed -n '/^torch==/,/[^\\]$$/p' > requirements/torch-cpu.lock

COMPILE := build/lock/bin/uv pip compile -q --generate-hashes --no-emit-index-url --no-annotate --no-header \
	--python-version 3.11 --python-platform x86_64-manylinux_2_28
CPU_BUILD := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend cpu)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m benchmarks.parts.structure
	$(BIN)/mypy

# The documentation as a site in site/. A broken link, an unknown anchor or an example that is wrong is an error.
docs: setup
	$(BIN)/python -m docs.generate --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# A run that leaves something on this machine fails. What fails is kept, with its reason, in build/failures.jsonl.
PYTEST := $(BIN)/python -m pytest -p tests.left_over -p tests.failure_log
# Tests of jobs wait as well as compute: three processes for two cores.
PROCESSES := $(shell expr $$(nproc) \* 3 / 2)

check: setup
	$(MAKE) --no-print-directory lint
	$(PYTEST) -m "not alone and not slow and not long" --numprocesses 2 --dist worksteal --hypothesis-profile check \
	    $(if $(ROOM),$(OF_ROOM),$(QUICK) $(JOBS))

QUICK := tests/unit tests/models tests/property
OF_ROOM = $(wildcard tests/unit/$(ROOM) tests/models/$(ROOM) tests/unit/test_$(ROOM)*.py)
# One of each kind: over servers, over a ring, stopped and resumed, with a worker and the arbitrator lost, with one that
# enters, on two hosts.
JOBS := \
	"tests/integration/launch/test_launch_byteps.py::test_a_whole_run_adapts_and_leaves_nothing[torch-byteps]" \
	"tests/integration/launch/test_launch_byteps.py::test_a_whole_run_adapts_and_leaves_nothing[torch-gloo]" \
	"tests/integration/launch/test_termination.py::test_stopping_a_job_leaves_a_checkpoint_that_it_goes_on_from[byteps]" \
	"tests/integration/membership/test_lost_workers.py::test_the_others_go_on_to_the_result_of_one_process[byteps]" \
	"tests/integration/membership/test_workers_enter.py::test_a_restart_enters[one]" \
	"tests/hosts/test_two_hosts.py::test_a_real_training_adapts_over_two_hosts[byteps]"

test: setup sshd slurm
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint docs
	$(BIN)/dynamix build-byteps  # from the cache, unless what goes into it has changed
	$(PYTEST) -p tests.may_fail -m "not alone and not long" --numprocesses $(PROCESSES) --dist worksteal --durations 30 || { [ $$? = 1 ] && $(FAILED_AGAIN); }
	$(PYTEST) -m alone --durations 10 $$(grep -rl --include 'test_*.py' mark.alone tests)

# A test that fails beside others runs once more by itself, and this counts: one may be too slow on a busy machine. Both are shown.
# What tests/may_fail.txt names does not run again.
FAILED_AGAIN = echo "Tests have failed beside others; they run once more, one at a time." && \
	$(PYTEST) -p tests.may_fail -m "not alone and not long" --last-failed --last-failed-no-failures none

# Hours. Each piece that has passed leaves a file, by commit, and is not run again.
PASSED := build/passed/$(shell git rev-parse --short HEAD 2>/dev/null)
LONG := property model soak race breaks

test-long: setup
	@$(MAKE) --no-print-directory --keep-going $(addprefix $(PASSED)/,$(LONG))

$(PASSED)/property:
	$(PYTEST) --hypothesis-profile search tests/property
	$(TOLD)
$(PASSED)/model:
	$(BIN)/python -m tests.models.membership.checker --seeds 5000
	$(TOLD)
$(PASSED)/soak:
	$(BIN)/python -m benchmarks.studies.membership.soak
	$(PYTEST) -m long tests
	$(TOLD)
$(PASSED)/race:
	$(BIN)/python -m benchmarks.studies.faults.data_plane_race
	$(TOLD)
$(PASSED)/breaks:
	$(BIN)/python -m tests.breaks
	$(TOLD)

TOLD = @mkdir -p $(@D) && touch $@

# A source package and a wheel in dist/, built from a clean copy of what is committed.
dist: setup
	rm -rf build/dist dist && git clone -q . build/dist
	cd build/dist && ../../$(BIN)/python -c "from setuptools import build_meta as build; build.build_sdist('../../dist'); \
	    build.build_wheel('../../dist')" > ../dist.log
	@ls -sh dist

bench: setup
	$(BIN)/dynamix bench run quick

# What single parts cost and reach, each on its own.
bench-parts: setup
	$(BIN)/python -m benchmarks.parts.comm --json bench-comm.json
	$(BIN)/python -m benchmarks.parts.comm_curve --json bench-comm-curve.json
	$(BIN)/python -m benchmarks.parts.overlap --json bench-overlap.json  # as root
	$(BIN)/python -m benchmarks.parts.hooks --json bench-hooks.json
	$(BIN)/python -m benchmarks.parts.loader --json bench-loader.json
	$(BIN)/python -m benchmarks.parts.probe --json bench-probe.json  # as root
	$(BIN)/python -m benchmarks.parts.launch --json bench-launch.json  # as root, with sshd
	$(BIN)/python -m benchmarks.parts.output --json bench-output.json
	$(BIN)/python -m benchmarks.parts.decision --json bench-decision.json
	$(BIN)/python -m benchmarks.parts.reporters --json bench-reporters.json
	$(BIN)/python -m benchmarks.parts.rehearsal --json bench-rehearsal.json
	$(BIN)/python -m benchmarks.parts.sim_speed --json bench-sim-speed.json
	$(BIN)/python -m benchmarks.parts.ppo_reference --json bench-ppo-reference.json
	$(BIN)/python -m benchmarks.parts.first_hour --json bench-first-hour.json  # an hour and a half
	$(BIN)/python -m benchmarks.studies.bed.calibration --json bench-calibration.json
	$(BIN)/python -m benchmarks.studies.clusters.policies --json bench-policies.json

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis bench-*.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
