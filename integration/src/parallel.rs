//! Runs tests in parallel. Each has namespaces of its own, and mostly waits.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Two processors run as many without a connection missing its deadline.
const THREADS: usize = 16;

/// A recorded network holds some fifty sockets, and a login shell often allows 1,024 in all.
fn allow_many_sockets() {
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
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
