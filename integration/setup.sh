#!/bin/sh
# Installs the Debian packages of the programs that the tests run. A caller who may not install packages gets the names
# of the missing ones, and an error. With the argument `referees`: also the libraries that gybe-referees is built with;
# with `fuzz`: the linker of the fuzzers; with `arm64`: what builds and runs the programs for it; with `contents`: what
# lists the contents of the image; with `image`: also what builds it.
set -eu

# program:package
needed="nft:nftables iptables-nft-restore:iptables strace:strace unshare:util-linux newuidmap:uidmap ip:iproute2
    strip:binutils readelf:binutils"
[ "${1:-}" != fuzz ] || needed="g++:g++"
[ "${1:-}" != contents ] || needed="jq:jq strings:binutils"
[ "${1:-}" != image ] || needed="jq:jq strings:binutils buildah:buildah"
[ "${1:-}" != arm64 ] || needed="aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static"

missing=""
for pair in $needed; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || [ -x "/usr/sbin/${pair%%:*}" ] || missing="$missing ${pair#*:}"
done
packages=""
# rustables reads the kernel's headers through libclang; the crates nftnl and mnl link libnftnl and libmnl.
[ "${1:-}" != referees ] || packages="pkg-config libclang-dev libnftnl-dev libmnl-dev"
[ "${1:-}" != arm64 ] || packages="libc6-dev-arm64-cross"
for package in $packages; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
done
[ "${1:-}" != arm64 ] || rustup target add aarch64-unknown-linux-musl
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -qq
    # shellcheck disable=SC2086 # the list is split into words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "missing Debian packages:$missing" >&2
    echo "install them:  sudo apt-get install$missing" >&2
    exit 1
fi
