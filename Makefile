# The front door. `make help` lists what there is.
SHELL := /bin/bash
CARGO := xtask/cargo.sh
BIN   := target/release

.PHONY: help setup bpf build check test demo bench lab chaos fuzz bless vm doc deb ci clean

help: ## This list
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: ## Install what building and the lab need (Debian 12, root, apt only; idempotent)
	@xtask/setup.sh

bpf: ## Build the eBPF objects with Debian's compiler
	@xtask/bpf.sh

build: setup bpf ## Build the product and the lab (release)
	@$(CARGO) build --release --locked

check: bpf ## Format, lints, docs: everything that runs nothing
	@xtask/check.sh

test: setup bpf ## All tests; parts of it: T=unit, T=prop [N=cases], T=bpf, T=netns, T=lab
	@xtask/test.sh $(T)

demo: build ## The pair in a lab on this machine: balance, kill the Active, look on
	@$(BIN)/onearm-lab demo

bench: build ## Packet cost by test run, as ratios to a kernel hash lookup
	@$(BIN)/onearm-bench $(ARGS)

lab: build ## A shell in a running lab (TOPOLOGY=one-arm or two-arms)
	@$(BIN)/onearm-lab up $(or $(TOPOLOGY),one-arm)

chaos: build ## One pair through FAULTS faults (default 200, SEED), then failover scenarios, RUNS each (default 5), at 1 s and 10 ms adverts
	@xtask/chaos.sh

fuzz: bpf ## T=seconds: frames against the naive reference for so long; else property tests, N cases each (default 1,000,000), F=word limits them
	@$(if $(T),SECONDS_TO_GO=$(T) xtask/test.sh fuzz,N=$(or $(N),1000000) xtask/test.sh prop $(F))

bless: ## Rewrite the expectations of golden tests from what the code does now; read the diff
	@ONEARM_BLESS=1 $(CARGO) test --locked -p onearm-netcfg -p onearm

vm: deb ## Tests on Debian's kernel 6.1 in a VM (the first time: makes the image, a minute or two)
	@xtask/setup.sh vm
	@xtask/vm.sh $(T)

doc: bpf ## API documentation
	@$(CARGO) doc --locked --no-deps --document-private-items

deb: build ## Debian package of the node; prints its path
	@xtask/setup.sh deb
	@xtask/deb.sh

ci: ## What CI runs
	@.ci/run

clean: ## Remove everything built
	@rm -rf target lab-runs
