# Two commands matter: `make run` and `make test`. The rest is for people who work on Tollgate.
SHELL := /usr/bin/env bash
CARGO ?= cargo

.PHONY: help run build console deps test check docs fmt package bench bench-backtest distance search soak flood simulate fuzz deny clean

# The console is built before Rust, which carries it; anew only when something of it has changed.
CONSOLE := console/dist/index.html
CONSOLE_SOURCES := $(shell find console -path console/node_modules -prune -o -path console/dist -prune -o -path console/screenshots -prune \
	-o -name schema.d.ts -prune -o -type f -print)

help:  ## What there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: $(CONSOLE)  ## Start Tollgate on loopback, embedded, with the built-in rules
	$(CARGO) run --release --bin tollgate -- serve

build: $(CONSOLE)  ## The release binary
	$(CARGO) build --release --bin tollgate

console: $(CONSOLE)  ## The web console, which the binary carries (needs Node 20 or later)

console/node_modules/.package-lock.json: console/package.json console/package-lock.json
	cd console && npm ci --no-fund --no-audit
	@touch $@

$(CONSOLE): console/node_modules/.package-lock.json $(CONSOLE_SOURCES)
	cd console && npm run build
	@touch $@

deps:  ## What the tests need beside Rust (Redis, PostgreSQL, nginx, Envoy and others), if it is missing
	@scripts/install-test-deps.sh

test: deps $(CONSOLE) check  ## Everything that must hold: style, lints, unit, property and end-to-end tests
	cd console && npm run check && npm test
	$(CARGO) build --locked --workspace --all-targets
	@if $(CARGO) nextest --version >/dev/null 2>&1; \
	then $(CARGO) nextest run --locked --workspace; \
	else $(CARGO) test --locked --workspace; fi
	$(CARGO) test --locked --doc -p tollgate
	cd console && npm run e2e

check:  ## Style and lints
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	@scripts/check-house.sh

docs:  ## The documentation as a book with search, in target/book (installs mdbook if missing)
	@scripts/build-docs.sh

fmt:  ## Put the code in its style
	$(CARGO) fmt --all

deny:  ## Licences, bans and sources of all dependencies (installs cargo-deny if missing)
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny@0.20.2
	$(CARGO) deny --all-features check bans licenses sources

# Crates of the library and its parts are also built from their packages. The rest are packaged only: they are programs.
LIBRARY_CRATES := tollgate-core tollgate-policy tollgate-store tollgate-engine tollgate-proto tollgate-client tollgate-tower tollgate

package:  ## Every crate as a package, in target/package; those of the library are built from it
	$(CARGO) package --locked --workspace --exclude tollgate-e2e --exclude tollgate-testkit --no-verify --allow-dirty
	$(CARGO) package --locked --allow-dirty $(addprefix -p ,$(LIBRARY_CRATES))

bench:  ## All benchmarks, side by side with peers; rewrites the table in docs/benchmarks.md
	bench/run.sh

bench-backtest:  ## A log of a million lines through `tollgate backtest`: time and memory (a minute)
	bench/backtest.sh

distance: deps  ## How long callers wait for a Redis that is 20 to 150 ms away, leased and strict (3 minutes)
	$(CARGO) run --locked --release -p tollgate-store --example distance

search: deps  ## How long the first page of a search of decisions takes, by each filter, over 1 million records or ROWS
	$(CARGO) run --locked -p tollgate-control --example decision_search $(ROWS)

# How many histories of the model a soak plays, in memory and on each kind of server, and from which seed on: another one
# every time unless it is given.
MODEL_HISTORIES ?= 20000000
MODEL_SERVER_HISTORIES ?= 200000
MODEL_SEED ?= $(shell date +%s)000000000

soak: deps  ## The long runs: many nodes, outages, clusters, the model of all stores; reports the worst answer
	$(CARGO) build --locked --release --bin tollgate
	$(CARGO) test --locked --release -p tollgate-e2e --no-run
	TOLLGATE_SOAK_RUNS=20 TOLLGATE_OUTAGE_SECONDS=10 TOLLGATE_CHAOS_REQUESTS=10000 $(CARGO) test --locked --release -p tollgate-e2e -- \
		--nocapture --test-threads=1 many_nodes outages clusters regions ai::chaos
	TOLLGATE_MODEL_SEED=$(MODEL_SEED) TOLLGATE_MODEL_HISTORIES=$(MODEL_HISTORIES) $(CARGO) test --locked --release -p tollgate-store --test model -- memory
	TOLLGATE_MODEL_SEED=$(MODEL_SEED) TOLLGATE_MODEL_HISTORIES=$(MODEL_HISTORIES) $(CARGO) test --locked --release -p tollgate-engine --test model
	TOLLGATE_MODEL_SEED=$(MODEL_SEED) TOLLGATE_MODEL_HISTORIES=$(MODEL_SERVER_HISTORIES) $(CARGO) test --locked --release -p tollgate-store --test model -- --skip memory

# How long a flood lasts, on each of two nodes.
FLOOD_SECONDS ?= 60

flood: deps  ## Refusals, queue entries, reservations and tenants' writes for a minute; prints disk, Redis and memory
	$(CARGO) build --locked --release --bin tollgate
	$(CARGO) run --locked --release -p tollgate-e2e --example flood -- $(FLOOD_SECONDS)

simulate:  ## Nodes, a store and a bad network, simulated from SEEDS seeds; with SEED=… that one, event by event
	TOLLGATE_SIMULATION_SEED=$(or $(SEED),0) TOLLGATE_SIMULATION_SEEDS=$(or $(SEEDS),$(if $(SEED),1,10000)) \
		$(CARGO) test --locked -p tollgate-store --test simulation every_seed -- --nocapture

fuzz:  ## What the API allows and what not, sent to a real server; then every parser, ten minutes each
	$(CARGO) build --locked --bin tollgate
	scripts/fuzz-api.sh
	scripts/fuzz-parsers.sh

clean:  ## Remove what was built
	$(CARGO) clean
	rm -rf bench/target tollgate-data console/dist console/node_modules
