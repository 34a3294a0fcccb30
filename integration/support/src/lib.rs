//! What tests of several crates need: temporary directories, copies of programs, volumes that the kubelet updates,
//! waiting for a condition, a running node agent.
//!
//! Functions panic when the test cannot go on, and waits after [`PATIENCE`]; [`write_volume`] returns its errors.
//! Network namespaces are `gybe_demo`'s; the recorded network and its connections are `gybe_integration`'s.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up must stop"
)]

mod agent;
mod directory;
pub mod facts;
pub mod http;
mod rooms;

pub use agent::{Agent, Layout, SERVING, agent_environment, cluster_environment};
pub use directory::{TestDir, write_volume};
pub use rooms::names_after;

use nix::time::{ClockId, clock_gettime};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

/// The longest wait for one event: more than any takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The time between two polls: short, since each test waits several times, and long enough to leave the processor to
/// the program under test.
const INTERVAL: Duration = Duration::from_millis(2);

/// Reports whether tests with many similar cases run all of them: `GYBE_EXHAUSTIVE` is set, as in .ci/nightly.
pub fn is_exhaustive() -> bool {
    std::env::var_os("GYBE_EXHAUSTIVE").is_some_and(|value| !value.is_empty())
}

/// Copies a program. Another process writes the copy: a file that this process writes is also open for writing in a
/// child that another thread has forked, until its execve(2), and cannot be run meanwhile (`ETXTBSY`).
#[expect(clippy::disallowed_methods, reason = "a child process must copy, as described above")]
pub fn install(from: &Path, to: &Path) {
    let copied = Command::new("cp").args(["--preserve=mode", "--"]).args([from, to]).status().unwrap();
    assert!(copied.success(), "{} to {}", from.display(), to.display());
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until `probe` returns a value, and returns it.
pub fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_for_at_most(PATIENCE, probe).unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
}

/// Waits until `probe` returns a value, for at most `limit`.
pub fn wait_for_at_most<T>(limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        // The last poll is after the deadline, so a condition that became true while this thread slept counts.
        let is_last = Instant::now() >= deadline;
        let found = probe();
        if found.is_some() || is_last {
            return found;
        }
        sleep(INTERVAL);
    }
}

/// Repeats `attempt` until it takes less than `limit`, at most ten times, and panics when it never does. A busy machine
/// makes some attempts slower; a program that waits makes all of them slower.
pub fn assert_takes_less_than(limit: Duration, mut attempt: impl FnMut()) {
    let mut took = Vec::new();
    while took.len() < 10 {
        let before = Instant::now();
        attempt();
        took.push(before.elapsed());
        if took.last().is_some_and(|last| *last < limit) {
            return;
        }
    }
    panic!("not once within {limit:?}: {took:?}");
}

/// Calls `work`; also returns how many times as long as alone a thread computed meanwhile: the median, 1 on a machine
/// without other work.
pub fn with_slowdown<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let runs = AtomicBool::new(true);
    thread::scope(|scope| {
        let slowdown = scope.spawn(|| slowdown(&runs));
        // The scope waits for the thread, also after a panic.
        let done = catch_unwind(AssertUnwindSafe(work));
        runs.store(false, Ordering::Relaxed);
        (done.unwrap_or_else(|panic| resume_unwind(panic)), slowdown.join().unwrap())
    })
}

fn slowdown(runs: &AtomicBool) -> f64 {
    let computed = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let mut ratios = Vec::new();
    while ratios.is_empty() || runs.load(Ordering::Relaxed) {
        let (start, from) = (Instant::now(), computed());
        while computed() - from < Duration::from_millis(5) {}
        ratios.push(start.elapsed().as_secs_f64() / (computed() - from).as_secs_f64());
        sleep(Duration::from_millis(50));
    }
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}
