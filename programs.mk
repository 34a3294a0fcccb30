# How the shipped programs are built: variables for the Makefiles.

HOST := $(shell rustc -vV | sed -n 's/^host: //p')
MUSL := $(firstword $(subst -, ,$(HOST)))-unknown-linux-musl
# Both programs contain musl. A static program with glibc executes 43 CPUID instructions before main, each of which
# leaves a virtual machine, and takes twice as long for a DEL. TARGET=aarch64-unknown-linux-musl builds for arm64.
# Evaluated at its first use, because it may install the target.
TARGET = $(eval TARGET := $(shell \
    installed() { [ -d "$$(rustc --print sysroot)/lib/rustlib/$(MUSL)/lib" ]; }; \
    installed || flock "$$(rustc --print sysroot)" rustup target add $(MUSL) >&2; \
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
