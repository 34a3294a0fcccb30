//! File locks with a deadline.

use std::fs::{File, TryLockError};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Takes an exclusive lock on `file`, until it is closed, and waits for `time` at most.
///
/// flock(2) has no deadline, so a thread waits for a lock that another process holds. After the deadline that thread
/// goes on waiting without effect: the lock belongs to the open file description, which both share.
///
/// # Errors
/// `WouldBlock` when the lock was not free within `time`; the kernel's error when the file cannot be locked or the
/// thread cannot be started.
pub fn lock(file: &File, time: Duration) -> Result<(), TryLockError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {}
        outcome => return outcome,
    }
    let waiting = file.try_clone().map_err(TryLockError::Error)?;
    let (sender, receiver) = mpsc::channel();
    let waiter = thread::Builder::new().name("lock".to_owned()).spawn(move || {
        let outcome = waiting.lock();
        // Before the result is sent: closing the caller's file then releases the lock.
        drop(waiting);
        let _receiver_timed_out = sender.send(outcome);
    });
    waiter.map_err(TryLockError::Error)?;
    receiver.recv_timeout(time).map_err(|_| TryLockError::WouldBlock)?.map_err(TryLockError::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    #[test]
    fn f22_a_lock_is_waited_for_until_the_deadline() {
        let memory = File::from(memfd_create(c"gybe-lock", MFdFlags::MFD_CLOEXEC).unwrap());
        // Locks exclude open file descriptions, also those of one process.
        let opened = || File::open(format!("/proc/self/fd/{}", memory.as_raw_fd())).unwrap();
        let (first, second, third, long) = (opened(), opened(), opened(), Duration::from_secs(60));
        lock(&first, long).unwrap();
        let began = Instant::now();
        let late = lock(&second, Duration::from_millis(20));
        assert!(matches!(late, Err(TryLockError::WouldBlock)), "{late:?}");
        // A waiter that timed out does not keep the lock from the next.
        drop(second);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock(&third, long));
            drop(first);
            waiting.join().unwrap().unwrap();
        });
        assert!(began.elapsed() < long);
    }
}
