#!/bin/sh
# programs.sh ARCHITECTURE DIR: writes target/kernels/programs-ARCHITECTURE.cpio: the programs below DIR, the init, and
# the flow vectors. The guest program looks for gybe and gybe-cni one directory above its own, and for the vectors in
# its working directory.
set -eu
cd "$(dirname "$0")/../.."

kernels=${CARGO_TARGET_DIR:-target}/kernels
tree=$kernels/programs-$1
rm -rf "$tree"
mkdir -p "$tree/gybe/deps" "$tree/gybe/vectors"
cp integration/kernels/init "$tree/init"
cp "$2/gybe" "$2/gybe-cni" "$tree/gybe/"
cp "$2/gybe-kernel-guest" "$tree/gybe/deps/"
cp -r integration/vectors/rules "$tree/gybe/vectors/"
(cd "$tree" && find . | cpio --quiet --create --format newc --owner 0:0) >"$tree.cpio"
rm -rf "$tree"
