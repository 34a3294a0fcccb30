#!/bin/sh
# Unpacks the containerd of three Debian suites below target/runtimes, and installs what it runs: runc, the reference
# plugins and iptables. Skips what is there. Starts no service, and adds nothing to this machine's package sources.
set -eu
cd "$(dirname "$0")/../.."

integration/setup.sh node
# shellcheck source=integration/setup-lock.sh
. integration/setup-lock.sh

runtimes=${CARGO_TARGET_DIR:-target}/runtimes

# generation:suite:package. The 1.1.1 plugins of Debian 12 do not implement CNI 1.1; newer ones do.
for entry in 1.6:bookworm:containerd 1.7:trixie:containerd 2.x:sid:containerd 2.x:sid:containernetworking-plugins; do
    generation=${entry%%:*} package=${entry##*:} suite=${entry#*:}
    stamp=$runtimes/$generation/.$package
    [ ! -e "$stamp" ] || continue
    integration/debian-unpack.sh "$runtimes/$generation" "${suite%%:*}" "$package"
    touch "$stamp"
done
