//! Where the process begins: the C library calls [`main`] here, and std's own beginning is left out.
//!
//! That one reads `/proc/self/maps` to find the stack's end and prepares to tell of its overflow: 80 µs
//! and a tenth of the program, and an ADD is to cost no more than half a process does. Of what it does,
//! what a caller could notice is done here too.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::Mode;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::os::raw::{c_char, c_int};

/// Called once, before any other code of ours, with no thread beside it.
#[expect(unsafe_code, reason = "a symbol that the C library looks for by its name")]
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    // Nobody can be told: the descriptors are what one is told by.
    if keep_standard_descriptors().is_err() || ignore_broken_pipes().is_err() {
        std::process::abort();
    }
    crate::run()
}

/// Stdin, as the runtime opened it.
pub(crate) fn stdin() -> BorrowedFd<'static> {
    standard(0)
}

/// Opens `/dev/null` in the place of each of the three that the caller left closed. Else what is
/// opened next takes that number, and an answer would go to the kernel's socket instead of stdout.
fn keep_standard_descriptors() -> Result<(), Errno> {
    let mut asked = [0, 1, 2].map(|number| PollFd::new(standard(number), PollFlags::empty()));
    while let Err(fault) = poll(&mut asked, PollTimeout::ZERO) {
        if fault != Errno::EINTR {
            return Err(fault);
        }
    }
    let closed = asked.iter().filter(|one| one.revents().is_some_and(|is| is.contains(PollFlags::POLLNVAL)));
    for _ in closed {
        // The lowest that is free, so in the end all of them. Open until the process ends.
        let _number = open("/dev/null", OFlag::O_RDWR, Mode::empty())?.into_raw_fd();
    }
    Ok(())
}

/// Whoever reads our answer may be gone: that is an error of the write, and no reason to die half-way.
#[expect(unsafe_code, reason = "nix makes signal(2) an unsafe function")]
fn ignore_broken_pipes() -> Result<(), Errno> {
    // SAFETY: to ignore a signal runs no code of ours.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }.map(drop)
}

#[expect(unsafe_code, reason = "numbers become descriptors by nobody's leave")]
fn standard(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: nobody closes 0, 1 or 2, and one that the caller closed is asked about in poll(2) alone,
    // which says so.
    unsafe { BorrowedFd::borrow_raw(number) }
}
