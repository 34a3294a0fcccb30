//! Many worlds at a time. They mostly wait, and what happens in one cannot be seen in another.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// As many as two processors keep busy without any of them coming late.
const AT_A_TIME: usize = 16;

/// A world holds some fifty sockets, and a login shell often allows 1,024 in all.
fn allow_many_sockets() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Where it is not allowed, the first socket that cannot be had says so.
        let _allowed = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Does `work` on every item, several at a time, and returns what came of each, in their order.
pub fn side_by_side<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    so_many_at_a_time(AT_A_TIME, items, work)
}

/// The same, so many at a time.
pub fn so_many_at_a_time<T: Send, R: Send>(
    at_a_time: usize,
    items: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    allow_many_sockets();
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let one = || std::iter::from_fn(next).map(|(place, item)| (place, work(item))).collect::<Vec<_>>();
        let threads: Vec<_> = (0..at_a_time).map(|_| scope.spawn(one)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<(usize, R)>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}
