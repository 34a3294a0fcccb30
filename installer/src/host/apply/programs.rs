//! Copies a program to the host: written, read back, tried, and only then renamed to its name.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::fsync;

use super::ApplyError;
use super::open_directory::{OpenDirectory, temporary_name};
use super::trial;
use crate::error::errno;
use crate::host::desired::Program;
use crate::host::observe::Hash;

/// Bytes written at once: the whole of `gybe-cni`, whose pages then lie together in the page cache, which
/// shortens each call of it by 60 to 180 µs (Linux 6.18, docs/BENCHMARKS.md).
const IN_ONE_PIECE: usize = 2 << 20;

/// Replaces a program. The old one serves until the rename, and its running processes continue, because a
/// rename gives the name to another file (F09).
pub(super) fn place(folder: &OpenDirectory, program: &Program) -> Result<(), ApplyError> {
    copy(folder, program)
        .and_then(|()| check(folder, program))
        .and_then(|()| folder.rename(temporary_name(), &program.name))
        .map_err(|why| folder.give_up(why))?;
    folder.sync()
}

fn copy(folder: &OpenDirectory, program: &Program) -> Result<(), ApplyError> {
    let unread = |why: &std::io::Error| ApplyError::System {
        step: "read",
        path: program.source.clone(),
        why: errno(why),
    };
    let mut source = File::open(&program.source).map_err(|why| unread(&why))?;
    let mut copy = folder.temporary()?;
    let mut buffer = vec![0; IN_ONE_PIECE];
    // Plain reads and writes: copy_file_range fails on some overlays (F10).
    loop {
        let n = source.read(&mut buffer).map_err(|why| unread(&why))?;
        if n == 0 {
            break;
        }
        let piece = buffer.get(..n).unwrap_or_default();
        copy.write_all(piece).map_err(|why| folder.failed("write", program.name.as_os_str())(errno(&why)))?;
    }
    fchmod(&copy, Mode::from_bits_truncate(0o755))
        .and_then(|()| fsync(&copy))
        .map_err(folder.failed("write", program.name.as_os_str()))
}

fn check(folder: &OpenDirectory, program: &Program) -> Result<(), ApplyError> {
    let unread = || folder.failed("read", temporary_name());
    let fd =
        openat(&folder.fd, OsStr::new(temporary_name()), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty());
    let found = Hash::of_all(File::from(fd.map_err(unread())?)).map_err(|why| unread()(errno(&why)))?;
    if found != program.hash {
        let (source_path, desired) = (program.source.clone(), program.hash);
        return Err(ApplyError::Damaged { source_path, desired, found });
    }
    trial::run(&folder.path.join(temporary_name()), program.trial)
        .map_err(|why| ApplyError::Trial { source_path: program.source.clone(), why })
}
