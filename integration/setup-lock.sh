# shellcheck shell=sh
# Sourced, in the root of the repository, by scripts that write below target: waits until no other such script of this
# clone runs. The lock ends with the processes that have descriptor 9, also when they are killed.
setup_lock=$(realpath -m "${CARGO_TARGET_DIR:-target}")/setup.lock
# A script that the holder of the lock starts does not wait for it.
if [ "${GYBE_SETUP_LOCK:-}" != "$setup_lock" ]; then
    mkdir -p "${setup_lock%/*}"
    exec 9>>"$setup_lock"
    flock --nonblock 9 || {
        echo "waiting for another set-up of this clone, at most two hours: $setup_lock" >&2
        flock --timeout 7200 9
    }
    export GYBE_SETUP_LOCK="$setup_lock"
fi
