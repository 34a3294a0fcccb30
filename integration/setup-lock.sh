# shellcheck shell=sh
# Sourced, in the root of the repository, by scripts that write below target: waits until no other such script of this
# clone runs. The lock ends with the processes that have descriptor 9, also when they are killed.
setup_lock=$(realpath -m "${CARGO_TARGET_DIR:-target}")/setup.lock
# A script that such a script runs does not wait for it.
if [ "${GYBE_SETUP_LOCK:-}" != "$setup_lock" ]; then
    mkdir -p "${setup_lock%/*}"
    exec 9>>"$setup_lock"
    flock 9
    export GYBE_SETUP_LOCK="$setup_lock"
fi
