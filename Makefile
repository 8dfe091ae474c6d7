# The targets are in scripts/, one file each. CARGO_FLAGS goes to cargo, e.g. CARGO_FLAGS=--offline.
MAKEFLAGS += --no-print-directory
PORT ?= 6379
export CARGO_FLAGS
export PORT

.DEFAULT_GOAL := help
.PHONY: help run build test test-matrix demo lint bench bench-check bench-core docs fuzz miri memcheck deny clean

help: ## list these
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

run: ## get what is missing, build, and run a server with the module in the foreground (PORT=6379)
	@scripts/run

build: ## build the module: target/release/libsluice.so
	@scripts/build

test: ## get what is missing, lint, build, and run all tests
	@scripts/test

test-matrix: ## the tests on every server that can be had, and a table (SERVERS="redis-8.6 valkey-9" FILES="locks cluster" WITHOUT="shop")
	@scripts/test-matrix $(SERVERS)

demo: ## a flash sale: locks and limits under a crowd, with workers that die, and a picture (BUYERS=100000)
	@scripts/demo

lint: ## cargo fmt --check, and clippy with warnings as errors
	@scripts/lint

bench: ## what each command costs beside Lua scripts and plain commands; writes docs/benchmarks.md
	@scripts/bench

bench-check: ## instructions a call against bench/baseline.toml (+5 % fails), and what waiting costs others (+15 % fails)
	@scripts/bench-check

bench-core: ## the decisions alone, by criterion
	@scripts/bench-core

docs: ## the documentation of the code, in target/doc, and what scripts/docs makes
	@scripts/setup
	@cargo doc --no-deps --all-features -p sluice-core -p sluice-client
	@scripts/docs

fuzz: ## fuzz `core`, FUZZ_SECONDS=60 for each of its targets (needs a nightly compiler and cargo-fuzz)
	@scripts/fuzz

miri: ## the tests of `core` under Miri (needs a nightly compiler and Miri)
	@scripts/miri

memcheck: ## all that the module does, on a server under valgrind (needs valgrind)
	@scripts/memcheck

deny: ## licences, advisories and origins of all crates (needs cargo-deny)
	@scripts/deny

clean: ## remove target/
	@rm -rf target
