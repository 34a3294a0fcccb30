# The targets that a contributor uses. Each world of tests has a Makefile beside its code: `make -C integration help`,
# `make -C manifests help`.

include programs.mk

.DEFAULT_GOAL := help
.PHONY: help build contents contents-packages test lint demo bench image release docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 10
	@echo "make -C integration help: every kind of test; make -C manifests help: the chart's; make -C docs help: the pages"

build: ## build both programs, static, in dist/; for arm64: TARGET=aarch64-unknown-linux-musl
	$(CARGO_BUILD) -p gybe-plugin -p gybe-installer
	@mkdir -p $(DIST)
	@install -m 0755 $(STATIC)/gybe $(STATIC)/gybe-cni $(DIST)/
	@$(if $(NATIVE),$(DIST)/gybe-cni && $(DIST)/gybe --version,ls -l $(DIST))

test: ## all tests of a bare clone; root, or a user namespace; as root it installs what they need
	$(MAKE) -C integration bare-clone

lint: ## format, clippy, cargo doc: warnings are errors; ALL=1: every crate, and licences
	$(if $(ALL),integration/setup.sh outside referees)
	cargo fmt --all --check
	cd integration/fuzz && cargo fmt --check
	cargo clippy --locked $(if $(ALL),--workspace --features gybe-referees/rustables) --all-targets -- -D warnings
	$(MAKE) docs
	.ci/words
	$(if $(ALL),command -v cargo-deny >/dev/null || cargo install --quiet --locked --debug cargo-deny)
	$(if $(ALL),cargo deny --locked check licenses bans sources)

demo: build ## a pod's connections with and without Gybe; WITHOUT=RULE-ID leaves out a rule
	cargo build --quiet --locked -p gybe-demo
	@integration/as-root.sh target/debug/gybe-demo --plugin dist/gybe-cni $(WITHOUT:%=--without %)

bench: ## measure an ADD, a list, a connection, encoders and an idle agent: docs/BENCHMARKS.md
	$(MAKE) -C integration bench

contents: contents-packages build
	manifests/notices.sh $(TARGET) $(DIST)

contents-packages:
	integration/setup.sh $(if $(BUILDER),contents,image || { echo 'or run: make image BUILDER=docker' >&2; exit 1; })

image: contents ## their image, dist/gybe-VERSION.oci.tar; BUILDER=docker: in docker's store
ifdef BUILDER
	$(BUILDER) build --file manifests/Containerfile --platform linux/$(PLATFORM) \
	    --build-arg VERSION=$(CARGO_VERSION) --tag gybe:$(CARGO_VERSION) $(DIST)
else
	manifests/image.sh $(CARGO_VERSION) $(DIST)/gybe-$(CARGO_VERSION).oci.tar $(PLATFORM)=$(DIST)
endif

release: ## a release in dist/release: VERSION=x.y.z IMAGE=registry.example/mesh/gybe SOURCE=https://…
	manifests/release.sh '$(VERSION)' $(or $(IMAGE),gybe) $(SOURCE)

docs: ## the documentation of the code, target/doc; warnings are errors
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --no-deps

clean: ## remove what the build made
	cargo clean
	rm -rf dist
