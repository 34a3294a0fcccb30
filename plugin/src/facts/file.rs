//! Files that somebody else names or writes, opened so that nobody can hold us by them.

use nix::fcntl::OFlag;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file, and gives its length in bytes: a guess, since who writes it may be about to.
///
/// # Errors
/// When it cannot be opened, or is a directory, a FIFO, a device.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    // Without O_NONBLOCK the open of a FIFO waits for a writer, and ADD with it (fifo(7)).
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let there = file.metadata()?;
    if there.is_file() { Ok((file, there.len())) } else { Err(io::Error::other("it is not a regular file")) }
}
