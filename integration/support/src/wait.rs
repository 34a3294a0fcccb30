//! Waiting for a condition that only looking at it shows.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a test waits for what must happen. Nothing takes as long when all is well; a busy machine is slow.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks: short, since each test waits a few times, and long enough to leave the processor to
/// what is waited for.
const INTERVAL: Duration = Duration::from_millis(2);

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
        // The last look is behind the deadline: what came true meanwhile counts.
        let is_last = Instant::now() >= deadline;
        let found = probe();
        if found.is_some() || is_last {
            return found;
        }
        sleep(INTERVAL);
    }
}
