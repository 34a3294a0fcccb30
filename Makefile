# One target for each thing a person looks for. `make help` lists them.

HOST   := $(shell rustc -vV | sed -n 's/^host: //p')
STATIC := target/$(HOST)/release
# A static program relocates itself: its list takes 75 KB, and 1 KB packed. What is linked in must know
# how to read it: glibc does from 2.36 on.
PACKED := $(shell getconf GNU_LIBC_VERSION 2>/dev/null | \
            awk '{ split($$2, v, "."); if (v[1] > 2 || v[2] >= 36) print "-C link-arg=-Wl,-z,pack-relative-relocs" }')
# Nobody unwinds: a panic ends a program at once, so tables for it are weight, also those that came
# with std and libc. And what a call of the plugin's runs stands together.
LAYOUT := -C force-unwind-tables=no -C link-arg=-Wl,-T,plugin/layout.ld
FLAGS  := -C target-feature=+crt-static $(LAYOUT) $(PACKED)

# Cargo gives a crate the features that all chosen ones want of it. So what is outside the default members
# is chosen together, whichever of its tests run: else each choice would build the cluster's client anew.
OUTSIDE := -p gybe-containerd-tests -p gybe-referees -p gybe-bench

.DEFAULT_GOAL := help
.PHONY: help build image demo test test-unit test-kernel differential fault-runs test-user test-struck test-cluster test-containerd test-iptables-versions test-node test-states node-states bench-containerd test-shared test-manifests faults referees fuzz mutants bench lint lint-all test-outside deny advisories setup clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 17

build: ## both programs, static, in dist/   (needs: the Rust toolchain, a C linker)
	RUSTFLAGS='$(FLAGS)' cargo build --release --locked --target $(HOST) -p gybe-plugin -p gybe-installer
	@mkdir -p dist
	@install -m 0755 $(STATIC)/gybe $(STATIC)/gybe-cni dist/
	@dist/gybe-cni && dist/gybe --version

image: build ## an image of both programs, gybe:VERSION   (needs: docker, podman or another BUILDER that is called like them)
	$(or $(BUILDER),docker) build --file manifests/Dockerfile --tag gybe:$(shell dist/gybe --version | cut -d' ' -f2) .

demo: build ## the main job, watched: a pod's connections with and without Gybe   (needs: root, or unshare and newuidmap)
	@integration/as-root.sh dist/gybe demo

test: setup test-unit test-struck test-kernel ## all tests of a bare clone   (needs: root, or a user namespace; Debian packages, see setup)

test-unit: ## tests that need no privilege
	cargo test --locked -p gybe-netfilter -p gybe-plugin -p gybe-installer -p gybe-api-server

test-kernel: ## real packets in throw-away network namespaces   (needs: root, or unshare and newuidmap)
	cargo build --locked
	cargo test --locked --no-run -p gybe-integration
	integration/as-root.sh cargo test --locked -p gybe-integration

differential: ## random policies, by nft, iptables-legacy and trace: POLICIES=2000 SEED=1   (needs: as test-kernel)
	cargo test --locked --no-run -p gybe-integration --test differential
	GYBE_POLICIES=$(POLICIES) GYBE_SEED=$(SEED) integration/as-root.sh cargo test --locked -p gybe-integration --test differential -- --nocapture

fault-runs: build ## how many ADDs fail when the cluster or the agent does, of ADDS=1000 for each fault and kind of pod: a table   (needs: as test-kernel; some minutes)
	cargo test --locked --no-run -p gybe-integration --test cluster_faults
	GYBE_ADDS=$(or $(ADDS),1000) GYBE_PROGRAMS=dist integration/as-root.sh \
	    cargo test --locked -p gybe-integration --test cluster_faults -- --nocapture --test-threads=1

test-user: ## the kernel tests once more, as a plain user in a user namespace   (needs: root, to make that user)
	integration/as-user.sh

test-struck: ## the installer killed before, and refused at, every one of its system calls   (needs: strace; some minutes)
	cargo test --locked -p gybe-installer --test struck

test-manifests: ## every platform's manifests, as kustomize makes them   (needs: kustomize or kubectl with one of version 5, or Go or Debian's mirror to build it)
	manifests/made.sh
	cargo test --locked -p gybe-installer --test overlays

faults: ## docs/FAULTS.md, made anew from the names of the tests
	@cargo run --quiet --locked -p gybe-integration --bin gybe-faults >docs/.FAULTS.md
	@mv docs/.FAULTS.md docs/FAULTS.md

test-shared: ## tests that read the reference material in $$GYBE_SHARED (default ../shared)
	cargo test --locked -p gybe-installer --test shared_injected --test shared_install

test-cluster: ## the agent's client against a real cluster, which it only reads: KUBECONFIG=FILE, and GYBE_NODE=NAME for one node of it
	cargo test --locked -p gybe-installer --test real_cluster

test-containerd: ## real sandboxes by containerd 1.6, 1.7 and 2.x   (needs: root; Debian packages, see integration/containerd/setup.sh)
	integration/containerd/setup.sh
	cargo build --locked
	cargo test --locked $(OUTSIDE) --test runtime

test-iptables-versions: ## ADD, CHECK and ADD again by iptables 1.8.7, 1.8.9, 1.8.11 and 1.8.13   (needs: as test-kernel; Debian's mirror, see integration/iptables/setup.sh)
	integration/iptables/setup.sh
	cargo test --locked --no-run -p gybe-integration --test iptables_versions
	integration/as-root.sh cargo test --locked -p gybe-integration --test iptables_versions

test-node: build ## the installer on a node at work: rewrites, upgrades, crashes, leaving   (needs: as test-containerd; some minutes)
	integration/containerd/setup.sh
	cargo test --locked $(OUTSIDE) --test states
	cargo test --locked $(OUTSIDE) --test node -- --nocapture
	cargo test --locked $(OUTSIDE) --test deployed

test-states: ## what plan, readiness, metrics and doctor say of a node in each of its states, and the next pod   (needs: as test-containerd)
	integration/containerd/setup.sh
	cargo build --locked
	cargo test --locked $(OUTSIDE) --test states -- --nocapture

node-states: ## docs/NODE-STATES.md, made anew from those states   (needs: as test-containerd)
	GYBE_WRITE=1 $(MAKE) test-states

referees: ## our nftables encoder against other people's   (needs: as test-kernel, and libclang, libnftnl, libmnl to build: see setup)
	integration/setup.sh referees
	cargo test --locked --no-run $(OUTSIDE) --test agreement
	integration/as-root.sh cargo test --locked $(OUTSIDE) --test agreement

fuzz: ## what strangers write, thrown at each who reads it: SECONDS=60 SEED=1   (needs: a C++ compiler, see setup; installs cargo-fuzz)
	integration/setup.sh fuzz
	integration/fuzz/run.sh $(or $(SECONDS),60) $(or $(SEED),1)

mutants: ## one change at a time in the code that decides, and whether a test notices: docs/MUTANTS.md; FILES="a.rs b.rs" for these alone   (needs: as test-kernel; jq; hours for all; installs cargo-mutants)
	integration/mutants.sh $(FILES)

bench: build ## what an ADD, a list and a connection cost: all, or PARTS="add crowd" ARGS="--times 31"   (needs: root, nftables, iptables; valgrind to count instructions)
	RUSTFLAGS='$(FLAGS)' cargo build --release --locked --target $(HOST) -p gybe-bench
	$(STATIC)/gybe-bench $(PARTS) $(ARGS)

bench-containerd: build ## what Gybe adds to a sandbox of containerd's: ARGS="--times 101"   (needs: as test-containerd; a quiet machine)
	integration/containerd/setup.sh
	cargo build --locked $(OUTSIDE) --bins
	target/debug/gybe-containerd-bench $(ARGS)

lint: ## formatting and clippy, warnings are errors
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings

lint-all: ## the same of every crate   (needs: what test-containerd and referees build with)
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings

test-outside: ## unit tests of the crates outside the default members   (needs: what test-containerd and referees build with)
	cargo test --locked $(OUTSIDE) --lib --bins

deny: ## licences, bans and sources of every dependency   (needs: cargo-deny)
	cargo deny --locked check licenses bans sources

advisories: ## known vulnerabilities   (needs: cargo-deny and its advisory database)
	cargo deny --locked check advisories

setup: ## installs what the tests run, or names it   (needs: root for the installing)
	integration/setup.sh

clean: ## what the build made
	cargo clean
	rm -rf dist
