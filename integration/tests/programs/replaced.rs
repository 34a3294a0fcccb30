//! Replacement of the running plugin: no write fails with ETXTBSY, and no caller runs a partial program.

use crate::node::{Node, add};
use gybe_installer::host::pass::{PassHistory, pass};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;

const REPLACED: usize = 1_000;
const CALLERS: usize = 20;

/// The number of replacements begun so far; `None` when the test ends.
struct Rounds {
    now: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Rounds {
    fn set(&self, now: Option<usize>) {
        *self.now.lock().unwrap() = now;
        self.changed.notify_all();
    }

    /// Waits for the replacement after this one.
    fn after(&self, last: usize) -> Option<usize> {
        *self.changed.wait_while(self.now.lock().unwrap(), |now| *now == Some(last)).unwrap()
    }
}

/// Ends the callers on drop, also if the test panics.
struct Over<'a>(&'a Rounds);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[test]
fn f09_replaced_a_thousand_times_under_twenty_callers_no_add_fails() {
    let node = Node::new("replaced");
    let (places, builds, mut memory) =
        (node.places(), ["1", "2"].map(|it| node.wants(it)), PassHistory::default());
    assert!(pass(&places, &builds[1], &mut memory).unwrap().left.is_done());
    let rounds = Rounds { now: Mutex::new(Some(0)), changed: Condvar::new() };
    let (adds, plugin) = (AtomicUsize::new(0), node.plugin());
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            // Each caller makes one ADD for every replacement, concurrently with it.
            scope.spawn(|| {
                let mut last = 0;
                while let Some(now) = rounds.after(last) {
                    last = now;
                    add(&plugin);
                    adds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = Over(&rounds);
        for n in 1..=REPLACED {
            rounds.set(Some(n));
            // As the agent does for another image: a new desired state is not a conflict.
            memory.desired_state_changed();
            let performed = pass(&places, &builds[(n + 1) % 2], &mut memory).unwrap().applied;
            assert_eq!((performed.done, performed.failed.len()), (1, 0), "{n}: {:?}", performed.failed);
        }
    });
    let adds = adds.into_inner();
    assert!(adds > REPLACED, "{adds}");
    println!("replaced {REPLACED} times under {adds} ADDs of {CALLERS} callers");
}
