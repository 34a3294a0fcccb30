//! Network and mount namespaces of one test, commands in them, and tests that run in parallel, each with namespaces
//! of its own.

use crate::programs::run;
use gybe_demo::testnet::namespace::Namespace;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::{Mutex, PoisonError};
use std::{panic, thread};

/// Runs `work` in a new network namespace, on a thread of its own. Its loopback interface is up.
///
/// # Panics
/// When the process may not create network namespaces.
#[expect(clippy::panic, reason = "a test that cannot be set up must stop")]
pub fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let created = Namespace::new().and_then(|namespace| namespace.run(work));
    created.unwrap_or_else(|error| {
        panic!(
            "this test needs a network namespace; run it as root, or after integration/as-root.sh: {error}"
        )
    })
}

/// Gives the calling thread a mount namespace of its own. Its mounts are private, and end with the thread.
///
/// # Errors
/// When the process may not create mount namespaces.
pub fn unshare_mounts() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
}

/// Runs `work` on a thread with a mount namespace of its own.
///
/// # Panics
/// When the process may not create mount namespaces.
#[expect(clippy::unwrap_used, reason = "a test that cannot be set up must stop")]
pub fn with_own_mounts<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let inside = || {
        unshare_mounts().unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
}

/// Runs a shell command in this thread's namespace and returns its output.
///
/// # Panics
/// When the command fails.
#[expect(clippy::panic, reason = "a test that cannot be set up must stop")]
pub fn sh(command: &str) -> String {
    // An unprivileged user may not open /run/xtables.lock, the default lock of all legacy programs.
    let script = format!("export XTABLES_LOCKFILE=/proc/self/ns/net; {command}");
    match run("sh", &["-ec", &script], "") {
        Ok(run) if run.code == Some(0) => run.out,
        Ok(run) => panic!("{command}: {}", run.err),
        Err(error) => panic!("{command}: {error:?}"),
    }
}

/// Two processors run as many without a connection missing its deadline.
const THREADS: usize = 16;

/// Lets this process open as many sockets as it may. A recorded network holds some fifty sockets, and a login shell
/// often allows 1,024 in all.
pub fn allow_many_sockets() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it, the first socket above the limit fails.
        let _allowed = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Calls `work` on every item, several at a time, and returns the results in the order of the items.
pub fn in_parallel<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    in_parallel_at_most(THREADS, items, work)
}

/// As [`in_parallel`], with this number of threads.
pub fn in_parallel_at_most<T: Send, R: Send>(
    threads: usize,
    items: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    allow_many_sockets();
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let one = || std::iter::from_fn(next).map(|(index, item)| (index, work(item))).collect::<Vec<_>>();
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<(usize, R)>>| {
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
