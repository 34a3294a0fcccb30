#!/bin/sh
# go.sh ARGUMENT...: runs go(1): the installed one if it is 1.26 or later, or else Debian 13's, unpacked below
# target/tools, which gets the version that a module requires from the module proxy.
set -eu

if ! go version 2>/dev/null | grep -Eq 'go1\.(2[6-9]|[3-9][0-9])'; then
    root=$(cd "$(dirname "$0")/.." && pwd)
    unpacked=$root/target/tools/debian/usr/lib/go-1.24/bin
    [ -x "$unpacked/go" ] || "$root/integration/debian-unpack.sh" "$root/target/tools/debian" trixie golang-1.24-go golang-1.24-src
    export GOTOOLCHAIN=auto
    PATH=$unpacked:$PATH
fi
exec go "$@"
