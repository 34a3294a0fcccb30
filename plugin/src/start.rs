//! The start of the process: the C library calls [`main`] here, without the runtime start of std.
//!
//! That reads `/proc/self/maps` for the end of the stack and installs a handler for stack overflow, which takes
//! 80 µs and a tenth of the program; an ADD may cost at most half as much as starting a process. What std does at
//! the start and a caller could notice is done here too.

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::Mode;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::os::raw::{c_char, c_int};

/// Called once, before other code of the program, while there is one thread.
#[expect(unsafe_code, reason = "the C library finds the symbol by its name")]
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    // Without standard descriptors the error cannot be reported.
    if keep_standard_descriptors().is_err() || ignore_broken_pipes().is_err() {
        std::process::abort();
    }
    crate::run()
}

pub(crate) fn stdin() -> BorrowedFd<'static> {
    standard(0)
}

/// Opens `/dev/null` as each standard descriptor that the caller closed. Otherwise the next open gets that
/// number, and the reply would go to a netlink socket instead of stdout.
fn keep_standard_descriptors() -> Result<(), Errno> {
    let mut descriptors = [0, 1, 2].map(|number| PollFd::new(standard(number), PollFlags::empty()));
    while let Err(errno) = poll(&mut descriptors, PollTimeout::ZERO) {
        if errno != Errno::EINTR {
            return Err(errno);
        }
    }
    let closed = descriptors
        .iter()
        .filter(|descriptor| descriptor.revents().is_some_and(|events| events.contains(PollFlags::POLLNVAL)));
    for _ in closed {
        // open(2) returns the lowest free number, so this opens all of them, until the process ends.
        let _number = open("/dev/null", OFlag::O_RDWR, Mode::empty())?.into_raw_fd();
    }
    Ok(())
}

/// A runtime that has closed stdout makes the write fail; it must not kill the process in the middle of a call.
#[expect(unsafe_code, reason = "nix makes signal(2) an unsafe function")]
fn ignore_broken_pipes() -> Result<(), Errno> {
    // SAFETY: an ignored signal runs no handler.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }.map(drop)
}

#[expect(unsafe_code, reason = "std has no safe way to borrow a descriptor by its number")]
fn standard(number: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the program never closes 0, 1 or 2. One that the caller closed is only passed to poll(2), which
    // reports it.
    unsafe { BorrowedFd::borrow_raw(number) }
}
