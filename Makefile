# Two commands matter: `make run` and `make test`. The rest is for people who work on Tollgate.
SHELL := /usr/bin/env bash
CARGO ?= cargo

.PHONY: help run build console deps test check fmt bench soak fuzz deny clean

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
	cd console && npm run e2e

check:  ## Style and lints
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet
	@scripts/check-house.sh

fmt:  ## Put the code in its style
	$(CARGO) fmt --all

deny:  ## Licences, bans and sources of all dependencies (installs cargo-deny if missing)
	@command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny@0.20.2
	$(CARGO) deny --all-features check bans licenses sources

bench:  ## All benchmarks, side by side with peers; rewrites the table in docs/benchmarks.md
	bench/run.sh

soak: deps  ## The long runs: many nodes, outages, clusters; reports the worst answer
	$(CARGO) build --locked --release --bin tollgate
	$(CARGO) test --locked --release -p tollgate-e2e --no-run
	TOLLGATE_SOAK_RUNS=20 TOLLGATE_OUTAGE_SECONDS=10 TOLLGATE_CHAOS_REQUESTS=10000 $(CARGO) test --locked --release -p tollgate-e2e -- \
		--nocapture --test-threads=1 many_nodes outages clusters regions ai::chaos

fuzz:  ## What the API allows and what not, sent to a real server; then every parser, ten minutes each
	$(CARGO) build --locked --bin tollgate
	scripts/fuzz-api.sh
	scripts/fuzz-parsers.sh

clean:  ## Remove what was built
	$(CARGO) clean
	rm -rf bench/target tollgate-data console/dist console/node_modules
