# `make help` lists the targets.

HOST := $(shell rustc -vV | sed -n 's/^host: //p')
MUSL := $(firstword $(subst -, ,$(HOST)))-unknown-linux-musl
# Both programs contain musl. A static program with glibc executes 43 CPUID instructions before main, each of which
# leaves a virtual machine, and takes twice as long for a DEL. TARGET=aarch64-unknown-linux-musl builds for arm64.
# Evaluated at its first use, because it may install the target.
TARGET = $(eval TARGET := $(shell \
    installed() { [ -d "$$(rustc --print sysroot)/lib/rustlib/$(MUSL)/lib" ]; }; \
    installed || rustup target add $(MUSL) >&2; \
    if installed; then echo $(MUSL); else echo $(HOST); \
        echo 'make: no Rust target $(MUSL): the programs get the C library of $(HOST), and are slower' >&2; fi))$(TARGET)
ARCH   = $(firstword $(subst -, ,$(TARGET)))
NATIVE = $(filter $(ARCH)-%,$(HOST))
# Compiles ring's assembler and links.
CC_FOR = $(if $(NATIVE),cc,$(ARCH)-linux-gnu-gcc)
STATIC = target/$(TARGET)/release
DIST   = dist$(if $(NATIVE),,/$(ARCH))
# The architecture as images name it.
PLATFORM = $(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(ARCH)))
CARGO_VERSION = $(shell cargo pkgid --locked -p gybe-installer | sed 's/.*[\#@]//')
# A static program relocates itself. Its list of relocations takes 50 KB, and 1 KB packed, which glibc reads from 2.36
# on, and musl from 1.2.4 on: Rust 1.93 has 1.2.5.
GLIBC_PACKED = $(shell getconf GNU_LIBC_VERSION 2>/dev/null | \
    awk '{ split($$2, v, "."); if (v[1] > 2 || v[2] >= 36) print "-C link-arg=-Wl,-z,pack-relative-relocs" }')
MUSL_PACKED  = $(shell rustc --version | \
    awk '{ split($$2, v, "."); if (v[1] > 1 || v[2] >= 93) print "-C link-arg=-Wl,-z,pack-relative-relocs" }')
PACKED = $(if $(filter %-musl,$(TARGET)),$(MUSL_PACKED),$(GLIBC_PACKED))
# A panic ends a program at once, so unwind tables are dead weight, also those of std and libc. The linker script places
# together what a call of the plugin executes.
LAYOUT := -C force-unwind-tables=no -C link-arg=-Wl,-T,plugin/layout.ld
# Panic messages name source files. The builder's directories are not among them.
SOURCES = --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo
FLAGS   = -C target-feature=+crt-static $(LAYOUT) $(PACKED) $(SOURCES)
CARGO_BUILD = RUSTFLAGS='$(FLAGS)' CC_$(subst -,_,$(TARGET))=$(CC_FOR) \
    cargo build --release --locked --target $(TARGET) --config 'target.$(TARGET).linker="$(CC_FOR)"'

# Four tests of a program at once for each processor: most of them wait for programs and connections.
export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(getconf _NPROCESSORS_ONLN))))

# Cargo builds a dependency with the union of the features that the selected packages ask for. The packages
# outside the default members are always selected together: each other selection would build kube again.
OUTSIDE := -p gybe-containerd-tests -p gybe-referees -p gybe-bench -p gybe-cluster -p gybe-kernels
REFEREES := $(OUTSIDE) --features gybe-referees/rustables --test agreement --test traffic --test program

.DEFAULT_GOAL := help
.PHONY: help build contents image release demo test test-unit test-kernel differential repair-race incumbent fault-runs test-user test-crash test-struck test-cluster test-cluster-image test-mesh test-containerd test-iptables-versions test-node test-readme test-take-over test-states node-states cluster bench-containerd bench-repair api-load test-shared test-manifests checkov test-chart faults referees fuzz mutants bench encoders lint lint-all test-outside deny advisories setup clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 24

build: ## build both programs, static, in dist/; TARGET=aarch64-unknown-linux-musl: in dist/aarch64/   (needs: the Rust toolchain, a C compiler)
	$(CARGO_BUILD) -p gybe-plugin -p gybe-installer
	@mkdir -p $(DIST)
	@install -m 0755 $(STATIC)/gybe $(STATIC)/gybe-cni $(DIST)/
	@$(if $(NATIVE),$(DIST)/gybe-cni && $(DIST)/gybe --version,ls -l $(DIST))

contents: build
	integration/setup.sh $(if $(BUILDER),contents,image || { echo 'or run: make image BUILDER=docker' >&2; exit 1; })
	manifests/notices.sh $(TARGET) $(DIST)

image: contents ## build their image as an OCI archive, dist/gybe-VERSION.oci.tar; BUILDER=docker: in docker's store   (needs: as build, jq, and buildah or that builder)
ifdef BUILDER
	$(BUILDER) build --file manifests/Containerfile --platform linux/$(PLATFORM) --tag gybe:$(CARGO_VERSION) $(DIST)
else
	manifests/image.sh $(CARGO_VERSION) $(DIST)/gybe-$(CARGO_VERSION).oci.tar $(PLATFORM)=$(DIST)
endif

release: ## build everything of a release in dist/release: VERSION=x.y.z IMAGE=registry.example/mesh/gybe   (needs: as image and test-manifests, and gcc for arm64)
	manifests/release.sh $(VERSION) $(IMAGE)

demo: build ## show where a pod's connections go with and without Gybe   (needs: root, or unshare and newuidmap)
	@integration/as-root.sh dist/gybe demo

test: setup test-unit test-crash test-kernel ## all tests of a bare clone   (needs: root, or a user namespace; Debian packages, see setup)

test-unit: ## unit tests and tests without privilege
	cargo test --locked -p gybe-netfilter -p gybe-plugin -p gybe-installer -p gybe-api-server -p gybe-test-support

# Root of a user namespace has no right to load eBPF programs or to send messages longer than net.core.wmem_max
# (netlink(7), SO_SNDBUFFORCE in socket(7)).
SKIP_ROOT_ONLY := --skip ebpf::a_program --skip an_add_takes_at_most_16_mib

test-kernel: ## tests with real packets in temporary network namespaces   (needs: root, or unshare and newuidmap)
	cargo build --locked
	cargo test --locked --no-run -p gybe-integration
	integration/as-root.sh cargo test --locked -p gybe-integration -- $(if $(filter-out 0,$(shell id -u)),$(SKIP_ROOT_ONLY))

differential: ## compare nft, iptables-legacy and trace on random policies: POLICIES=2000 SEED=1   (needs: as test-kernel)
	cargo test --locked --no-run -p gybe-integration --test differential
	GYBE_POLICIES=$(POLICIES) GYBE_SEED=$(SEED) integration/as-root.sh cargo test --locked -p gybe-integration --test differential -- --nocapture

repair-race: ## pods that start, fail, are replaced and deleted at random while gybe repair --watch runs: PODS=1000 SEED=1   (needs: as test-kernel)
	cargo build --locked
	cargo test --locked --no-run -p gybe-integration --test repair
	GYBE_PODS=$(PODS) GYBE_SEED=$(SEED) integration/as-root.sh cargo test --locked -p gybe-integration --test repair race -- --nocapture

incumbent: build ## compare with Istio's own istio-iptables and istio-cni, and measure an ADD of both: SETS=500 PODS=100 SEED=1 ARGS="--times 31"   (needs: root, Go 1.26 and its module proxy)
	integration/incumbent/setup.sh
	cargo build --locked
	GYBE_SETS=$(SETS) GYBE_PODS=$(PODS) GYBE_SEED=$(SEED) \
	    cargo test --locked -p gybe-integration --test incumbent -- --nocapture --test-threads=1
	RUSTFLAGS='$(FLAGS)' cargo build --release --locked --target $(HOST) -p gybe-bench
	$(STATIC)/gybe-bench incumbent $(ARGS)

fault-runs: build ## count the ADDs that fail while the cluster or the agent fails, of ADDS=1000 for each fault and kind of pod   (needs: as test-kernel; some minutes)
	cargo test --locked --no-run -p gybe-integration --test cluster_faults
	GYBE_ADDS=$(or $(ADDS),1000) GYBE_PROGRAMS=dist integration/as-root.sh \
	    cargo test --locked -p gybe-integration --test cluster_faults -- --nocapture --test-threads=1

test-user: ## the kernel tests as an unprivileged user in a user namespace   (needs: root, to create that user)
	integration/as-user.sh $(SKIP_ROOT_ONLY)

test-crash: ## kill the installer before each of its system calls, and fail each of them   (needs: strace; some minutes)
	cargo test --locked -p gybe-installer --test crash_injected

# The former name.
test-struck: test-crash

test-manifests: ## check the chart and the manifests of every platform, as helm and kustomize render them   (needs: helm 3, kustomize 5, promtool; or Go or Debian's mirror to get them)
	manifests/build.sh
	cargo test --locked -p gybe-installer --test overlays

checkov: ## compare what checkov finds in the manifests with the findings that have a reason   (needs: as test-manifests, and jq, Python's venv and PyPI)
	manifests/build.sh
	manifests/checkov.sh

# The oldest version of Kubernetes that the chart supports.
OLDEST := 1.30.14
test-chart: ## install, upgrade, roll back and delete the chart in real API servers, the newest and 1.30, without a node   (needs: root, openssl, and Go; Kubernetes is built the first time)
	KUBERNETES=$(OLDEST) PROGRAMS=kube-apiserver integration/cluster/setup.sh
	manifests/build.sh
	manifests/server-check.sh target/cluster
	manifests/server-check.sh target/cluster $(OLDEST)

faults: ## print the tests of every fault in docs/FAULTS.md
	@cargo run --quiet --locked -p gybe-integration --bin gybe-faults

test-shared: ## tests that read the reference material in GYBE_SHARED (default ../shared)
	cargo test --locked -p gybe-installer --test shared

# The value of a variable on make's command line. make also takes variables from its environment, where one that belongs
# to something else would make test-cluster write to a cluster.
given = $(if $(filter command,$(origin $(1))),$($(1)))

# KUBECONFIG reaches the test by make's environment.
test-cluster: $(if $(call given,APPLICATION),build) ## Gybe in a cluster of yours: KUBECONFIG=FILE, read-only; with APPLICATION=IMAGE also requests between pods that it creates: NODES=a,b REVISION=NAME RESTART=1   (needs: as build; with APPLICATION kubectl, protoc)
	cargo test --locked -p gybe-installer --test real_cluster
ifneq ($(call given,APPLICATION),)
	cargo build --locked $(OUTSIDE) --bins
	PATH="$(CURDIR)/dist:$$PATH" target/debug/gybe-cluster existing --kubeconfig '$(KUBECONFIG)' \
	    --application '$(APPLICATION)' $(patsubst %,--nodes '%',$(call given,NODES)) \
	    $(patsubst %,--revision '%',$(call given,REVISION)) $(if $(filter 1,$(call given,RESTART)),--restart)
else
	@echo 'requests between pods were not made: they need "make test-cluster APPLICATION=IMAGE", see docs/SUPPORTED.md'
endif

test-cluster-image: ## write the image of the pods of test-cluster to dist/gybe-test-application.oci.tar: APPLICATION=IMAGE   (needs: the Rust toolchain, protoc)
	$(if $(call given,APPLICATION),,$(error test-cluster-image needs the name of the image: make test-cluster-image APPLICATION=IMAGE))
	cargo build --locked $(OUTSIDE) --bins
	mkdir -p dist
	target/debug/gybe-cluster application --name '$(APPLICATION)' --archive dist/gybe-test-application.oci.tar

test-containerd: ## sandboxes started by containerd 1.6, 1.7 and 2.x, and pods by CRI-O's CNI library   (needs: root; Debian packages, see integration/containerd/setup.sh; Go, or Debian's mirror to get it)
	integration/containerd/setup.sh
	integration/containerd/go-programs.sh ocicni
	cargo build --locked
	cargo test --locked $(OUTSIDE) --test runtime

test-iptables-versions: ## ADD, CHECK and ADD again with iptables 1.8.7, 1.8.9, 1.8.11 and 1.8.13; lists and deletion by nft of the same ages   (needs: as test-kernel; Debian's mirror, see integration/iptables/setup.sh)
	integration/iptables/setup.sh
	cargo test --locked --no-run -p gybe-integration --test iptables_versions
	integration/as-root.sh cargo test --locked -p gybe-integration --test iptables_versions

test-node: image ## the agent on a busy node: rewrites, upgrades, crashes, uninstall   (needs: as test-containerd and image; some minutes)
	integration/containerd/setup.sh
	cargo test --locked $(OUTSIDE) --test states
	cargo test --locked $(OUTSIDE) --test node -- --nocapture
	cargo test --locked $(OUTSIDE) --test deployed

test-readme: image ## the README's commands for a node with containerd and without a cluster   (needs: as test-containerd and image; Go)
	integration/containerd/setup.sh
	integration/containerd/go-programs.sh crictl
	cargo test --locked $(OUTSIDE) --test readme

test-take-over: build ## Gybe replaces Istio's own istio-cni on a node with 50 of its pods, which are then deleted   (needs: as test-containerd and incumbent)
	integration/containerd/setup.sh
	integration/incumbent/setup.sh
	cargo test --locked $(OUTSIDE) --test take_over -- --nocapture

test-states: ## plan, readiness, metrics, doctor and the next pod in each state of a node   (needs: as test-containerd)
	integration/containerd/setup.sh
	cargo build --locked
	cargo test --locked $(OUTSIDE) --test states -- --nocapture

node-states: ## write docs/NODE-STATES.md from those states   (needs: as test-containerd)
	GYBE_WRITE=1 $(MAKE) test-states

# FROM and TO are commits, which are built, too.
cluster: build ## upgrades, crashes and removal in a Kubernetes of one node: SCENARIOS="install upgrade", FROM=COMMIT TO=COMMIT; KEEP=1 for a shell with kubectl   (needs: as test-containerd, and Go; an hour the first time)
	integration/containerd/setup.sh
	integration/cluster/setup.sh $(FROM) $(TO)
	cargo build --locked $(OUTSIDE) --bins
	target/debug/gybe-cluster $(FROM:%=--release target/cluster/clones/%) $(TO:%=--next target/cluster/clones/%) $(if $(KEEP),--shell,$(SCENARIOS))

# The scripts read KUBERNETES and ISTIO, too.
test-mesh: image ## istiod and Envoy around Gybe in a Kubernetes of one node: SCENARIOS="sidecars modes" ARGS="--proxy-mode iptables"; KUBERNETES=1.30.14 ISTIO=VERSION CONTAINERD=1.7 for other versions; KEEP=1 for a shell with kubectl   (needs: as cluster and incumbent, and Python's pip)
	integration/containerd/setup.sh
	integration/cluster/setup.sh
	integration/incumbent/setup.sh mesh
	manifests/build.sh
	integration/cluster/mesh.sh
	cargo build --locked $(OUTSIDE) --bins
	target/debug/gybe-cluster mesh --programs target/cluster$(KUBERNETES:%=/kubernetes-%) \
	    --istio target/incumbent$(ISTIO:%=/%) $(CONTAINERD:%=--containerd %) $(ARGS) $(if $(KEEP),--shell,$(SCENARIOS))

# Without `--features gybe-referees/rustables` these tests need no libclang and leave out rustables.
referees: ## libnftnl and rustables write the same rules as Gybe, byte by byte and in connections   (needs: as test-kernel, and libclang, libnftnl, libmnl to build: see setup)
	integration/setup.sh referees
	cargo build --locked
	cargo test --locked --no-run $(REFEREES)
	integration/as-root.sh cargo test --locked $(REFEREES)

fuzz: ## fuzz every reader of untrusted input: SECONDS=60 SEED=1   (needs: a C++ compiler, see setup; installs cargo-fuzz)
	integration/setup.sh fuzz
	integration/fuzz/run.sh $(or $(SECONDS),60) $(or $(SEED),1)

mutants: ## mutation testing of the code that decides, see docs/MUTANTS.md; FILES="a.rs b.rs" for these alone   (needs: as test-kernel; jq; hours for all; installs cargo-mutants)
	integration/mutants.sh $(FILES)

# The two programs that do nothing, for the host's C library: the one that contains it is the unit of the targets.
FLOOR = rustc --edition 2024 -C opt-level=z -C lto=fat -C codegen-units=1 -C panic=abort -C strip=symbols --target $(HOST)

bench: build $(if $(PARTS),$(filter encoders,$(PARTS)),encoders) ## measure an ADD, a list, a connection and encoders: all, or PARTS="add crowd" ARGS="--times 31 --before DIRECTORY"   (needs: root, nftables, iptables; for encoders what referees builds with; valgrind to count instructions)
	cargo build --release --locked -p gybe-bench
	@install -m 0755 target/release/gybe-bench $(STATIC)/
	$(FLOOR) -C target-feature=+crt-static $(LAYOUT) $(GLIBC_PACKED) -o $(STATIC)/gybe-noop integration/bench/floors/noop.rs
	$(FLOOR) -C relocation-model=static -C link-args='-nostartfiles -nostdlib -static' -o $(STATIC)/gybe-floor integration/bench/floors/without-libc.rs
	$(STATIC)/gybe-bench $(PARTS) $(ARGS)

# The part of the benchmark that links C libraries, which have no static form.
encoders:
	integration/setup.sh referees
	cargo build --release --locked -p gybe-referees --no-default-features --features rustables --bin gybe-referee-times
	@install -m 0755 target/release/gybe-referee-times $(STATIC)/

bench-containerd: build ## measure what Gybe adds to the start of a sandbox: ARGS="--times 101"   (needs: as test-containerd; a quiet machine)
	integration/containerd/setup.sh
	cargo build --locked $(OUTSIDE) --bins
	target/debug/gybe-containerd-bench $(ARGS)

bench-repair: build ## measure how soon gybe repair redirects pods that started without Gybe: ARGS="--pods 200"   (needs: as test-containerd; a quiet machine)
	integration/containerd/setup.sh
	cargo build --locked $(OUTSIDE) --bins
	target/debug/gybe-repair-bench $(ARGS)

api-load: build ## count the requests of 500 agents that start at once, and of 25 minutes afterwards, in a real API server: AGENTS=100 MINUTES=5   (needs: as cluster; half an hour)
	integration/cluster/setup.sh
	integration/cluster/api-load.sh $(or $(AGENTS),500) $(or $(MINUTES),25)

lint: ## check formatting and run clippy, warnings are errors
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings

lint-all: ## lint, of every crate   (needs: what test-containerd and referees build with)
	cargo fmt --all --check
	cargo clippy --locked --workspace --features gybe-referees/rustables --all-targets -- -D warnings

test-outside: ## unit tests of the crates outside the default members   (needs: what test-containerd and referees build with)
	cargo test --locked $(OUTSIDE) --lib --bins

deny: ## check licences, bans and sources of every dependency   (needs: cargo-deny)
	cargo deny --locked check licenses bans sources

advisories: ## check for known vulnerabilities   (needs: cargo-deny and its advisory database)
	cargo deny --locked check advisories

setup: ## install the programs that the tests run, or name them   (needs: root to install)
	integration/setup.sh

.PHONY: kernel-programs test-kernels kernels
# The programs in the machines, of one architecture.
kernel-programs: build
	$(CARGO_BUILD) -p gybe-kernels --bin gybe-kernel-guest
	integration/kernels/programs.sh $(PLATFORM) $(STATIC)

test-kernels: ## Debian's kernels from 5.10 to the newest, and kernels with parts missing, in virtual machines: ONLY="5.10 nft_redir 'nf_tables, ip_tables'"   (needs: an x86-64 host, root or the packages of integration/kernels/setup.sh; Debian's mirror; a quarter of an hour)
	$(CARGO_BUILD) -p gybe-kernels --bin gybe-kernels
	set -e; kernels=$$($(STATIC)/gybe-kernels --kernels $(ONLY)); integration/kernels/setup.sh $$kernels; \
	case $$kernels in *-arm64*) \
	    integration/setup.sh arm64; $(MAKE) kernel-programs TARGET=aarch64-unknown-linux-musl;; esac
	$(MAKE) kernel-programs
	$(STATIC)/gybe-kernels $(ONLY)

kernels: ## write docs/KERNELS.md from those results   (needs: as test-kernels)
	GYBE_WRITE=1 $(MAKE) test-kernels

clean: ## remove what the build made
	cargo clean
	rm -rf dist
