//! Waiting for a lock on a file, and no longer than there is time.

use std::fs::{File, TryLockError};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Locks `file` for this process alone, until it is closed.
///
/// flock(2) knows no deadline, so where somebody else has the lock a thread waits for it that nobody
/// needs any more when it comes late: the lock belongs to the opened file, which both have.
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
        let outcome = waiting.lock();
        // Before it is told: who closes the file then has unlocked it.
        drop(waiting);
        let _nobody_waits = tell.send(outcome);
    });
    waits.map_err(TryLockError::Error)?;
    told.recv_timeout(time).map_err(|_| TryLockError::WouldBlock)?.map_err(TryLockError::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    #[test]
    fn f22_a_lock_is_waited_for_until_there_is_no_more_time() {
        let memory = File::from(memfd_create(c"gybe-lock", MFdFlags::MFD_CLOEXEC).unwrap());
        // A lock is between those who have opened the file, also of one process.
        let opened = || File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        let (first, second, third, long) = (opened(), opened(), opened(), Duration::from_secs(60));
        lock(&first, long).unwrap();
        let began = Instant::now();
        let late = lock(&second, Duration::from_millis(20));
        assert!(matches!(late, Err(TryLockError::WouldBlock)), "{late:?}");
        // Who came late and has gone does not keep it from the next.
        drop(second);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(&third, long));
            drop(first);
            waiting.join().unwrap().unwrap();
        });
        assert!(began.elapsed() < long);
    }
}
