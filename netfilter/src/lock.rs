//! Waiting for a lock on a file, and no longer than there is time.

use std::fs::{File, TryLockError};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Locks `file` for this process alone, until it is closed.
///
/// flock(2) knows no deadline, so where somebody else has the lock a thread waits for it that nobody
/// needs any more when it comes late: the lock belongs to the opened file, which both have, and is gone
/// with the later of them.
///
/// # Errors
/// `WouldBlock` when somebody else has it for all of `time`; what the kernel said when there is no lock
/// to be had on such a file, or no thread to wait with.
pub fn lock(file: &File, time: Duration) -> Result<(), TryLockError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {}
        outcome => return outcome,
    }
    let waiting = file.try_clone().map_err(TryLockError::Error)?;
    let (tell, told) = mpsc::channel();
    let waits = thread::Builder::new().name("lock".to_owned()).spawn(move || {
        let _nobody_waits = tell.send(waiting.lock());
    });
    waits.map_err(TryLockError::Error)?;
    told.recv_timeout(time).map_err(|_| TryLockError::WouldBlock)?.map_err(TryLockError::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Its own file, opened anew: a lock is between those who opened it, not between processes.
    fn opened() -> File {
        File::open(format!("/proc/{}/ns/uts", std::process::id())).unwrap()
    }

    #[test]
    fn f22_a_lock_is_waited_for_until_there_is_no_more_time() {
        // Shared by all tests of this process: no other takes it.
        let (first, second) = (opened(), opened());
        let long = Duration::from_secs(60);
        lock(&first, long).unwrap();
        let began = Instant::now();
        let late = lock(&second, Duration::from_millis(20));
        assert!(matches!(late, Err(TryLockError::WouldBlock)) && began.elapsed() < long, "{late:?}");
        // Whoever came late and is gone does not keep it from the next.
        drop(second);
        let third = opened();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(&third, long));
            drop(first);
            waiting.join().unwrap().unwrap();
        });
        assert!(began.elapsed() < long);
    }
}
