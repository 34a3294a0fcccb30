#!/bin/sh
# debian-unpack.sh DIR SUITE PACKAGE...: unpacks packages of another suite of Debian's below DIR, checked
# by Debian's keys. Nothing is installed, and nothing is added to this machine's package sources.
set -eu

into=$1 suite=$2
shift 2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM HUP

find_mirror() {
    apt-get indextargets --format '$(REPO_URI)' \
        'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1
}
mirror=$(find_mirror)
# Without package lists apt cannot tell which of the sources is Debian's mirror.
if [ -z "$mirror" ] && [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    mirror=$(find_mirror)
fi
if [ -z "$mirror" ]; then
    echo "no Debian mirror among this machine's package sources (apt-get indextargets names none)" >&2
    echo "add one and run apt-get update, then do this again" >&2
    exit 1
fi
mkdir -p "$scratch/state/lists/partial" "$scratch/cache/archives/partial" "$scratch/packages" "$into"
: >"$scratch/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$scratch/sources.list"

# apt with directories and package sources of its own: the machine's mirror, Debian's keys, one suite.
private_apt() {
    apt-get -qq -o "Dir::State=$scratch/state" -o "Dir::State::Status=$scratch/status" \
        -o "Dir::Cache=$scratch/cache" -o "Dir::Etc::SourceList=$scratch/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null -o Acquire::Languages=none \
        -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root "$@"
}
private_apt update
(cd "$scratch/packages" && private_apt download "$@")
for package in "$scratch"/packages/*.deb; do
    dpkg-deb -x "$package" "$into"
done
