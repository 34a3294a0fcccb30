//! Writes, renames and removes conf files without losing another program's write.

use std::ffi::OsStr;

use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::RenameFlags;

use super::ChangeError;
use super::directory::{OpenDirectory, temporary_name};
use crate::host::change::NewAccess;
use crate::host::observe::{DROP_IN, FileName};

/// Writes `file`, unless its content is no longer the one that the plan was made from.
pub(super) fn write(
    folder: &OpenDirectory,
    file: &FileName,
    bytes: &[u8],
    access: &NewAccess,
    instead_of: Option<&[u8]>,
) -> Result<(), ChangeError> {
    if folder.read(file).as_deref() != instead_of {
        return Err(folder.overtaken(file));
    }
    folder.prepare(bytes, access)?;
    let renamed = match instead_of {
        None => create(folder, file),
        Some(expected) => exchange(folder, file, expected),
    };
    renamed.map_err(|why| folder.give_up(why))?;
    folder.sync()
}

fn create(folder: &OpenDirectory, file: &FileName) -> Result<(), ChangeError> {
    let how = RenameFlags::NOREPLACE;
    match folder.rename_with(OsStr::new(temporary_name()), file.as_os_str(), how) {
        Ok(()) => Ok(()),
        Err(Errno::EEXIST) => Err(folder.overtaken(file)),
        Err(why) if is_unknown(why) => folder.rename(temporary_name(), file),
        Err(why) => Err(folder.failed("rename a file to", file)(why)),
    }
}

/// Another program may write between our last read and the rename, which would lose its write. An exchange
/// loses nothing: the file it took out can be compared, and put back.
fn exchange(folder: &OpenDirectory, file: &FileName, expected: &[u8]) -> Result<(), ChangeError> {
    let ours = folder.read(temporary_name());
    match swap(folder, file) {
        Ok(()) => {}
        Err(Errno::ENOENT) => return Err(folder.overtaken(file)),
        Err(why) if is_unknown(why) => return folder.rename(temporary_name(), file),
        Err(why) => return Err(folder.failed("rename a file to", file)(why)),
    }
    let out = folder.read(temporary_name());
    if out.as_deref() == Some(expected) {
        return folder.remove_temporary();
    }
    put_back(folder, file, ours, out)?;
    Err(folder.overtaken(file))
}

/// Exchanges the files until the one taken out is one that this process put in: another program may write again
/// in between.
fn put_back(
    folder: &OpenDirectory,
    file: &FileName,
    mut below: Option<Vec<u8>>,
    mut newest: Option<Vec<u8>>,
) -> Result<(), ChangeError> {
    loop {
        swap(folder, file).map_err(folder.failed("put back", file))?;
        let out = folder.read(temporary_name());
        if out == below {
            return Ok(());
        }
        (below, newest) = (newest, out);
    }
}

fn swap(folder: &OpenDirectory, file: &FileName) -> Result<(), Errno> {
    folder.rename_with(OsStr::new(temporary_name()), file.as_os_str(), RenameFlags::EXCHANGE)
}

/// Reports whether the file system lacks these renames.
fn is_unknown(why: Errno) -> bool {
    matches!(why, Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP)
}

/// Renames a file, and back if its content was not the expected one.
pub(super) fn move_to(
    folder: &OpenDirectory,
    from: &FileName,
    to: &FileName,
    bytes: &[u8],
) -> Result<(), ChangeError> {
    if folder.read(from).as_deref() != Some(bytes) {
        return Err(folder.overtaken(from));
    }
    folder.rename(from, to)?;
    if folder.read(to).as_deref() != Some(bytes) {
        let _ = folder.rename_with(to.as_os_str(), from.as_os_str(), RenameFlags::NOREPLACE);
        return Err(folder.overtaken(from));
    }
    folder.sync()
}

/// Removes a file that is ours alone.
pub(super) fn remove(folder: &OpenDirectory, file: &FileName, bytes: &[u8]) -> Result<(), ChangeError> {
    match folder.read(file) {
        None => Ok(()),
        Some(there) if there == bytes => folder.unlink(file.as_os_str()),
        Some(_) => Err(folder.overtaken(file)),
    }
}

/// Writes our drop-in: writes the file in the conf directory and moves it into the network's directory. containerd
/// watches only the conf directory, and loads the network again when a file is moved out of it.
pub(super) fn write_drop_in(
    folder: &OpenDirectory,
    network: &FileName,
    bytes: &[u8],
    mode: u32,
) -> Result<(), ChangeError> {
    match mkdirat(&folder.fd, network.as_os_str(), Mode::from_bits_truncate(0o755)) {
        Ok(()) => folder.sync()?,
        Err(Errno::EEXIST) => {}
        Err(why) => return Err(folder.failed("make", network.as_os_str())(why)),
    }
    let inner = folder.inner(network)?;
    folder.prepare(bytes, &NewAccess::Ours(mode))?;
    let moved =
        renameat(&folder.fd, temporary_name(), &inner.fd, DROP_IN).map_err(inner.failed("write", DROP_IN));
    moved.map_err(|why| folder.give_up(why))?;
    inner.sync()?;
    folder.sync()
}

/// Removes our drop-in by way of the conf directory, for the same reason, and the network's directory if it is then
/// empty.
pub(super) fn remove_drop_in(folder: &OpenDirectory, network: &FileName) -> Result<(), ChangeError> {
    let inner = folder.inner(network)?;
    match renameat(&inner.fd, DROP_IN, &folder.fd, temporary_name()) {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(why) => return Err(inner.failed("remove", DROP_IN)(why)),
    }
    inner.sync()?;
    let _ = unlinkat(&folder.fd, network.as_os_str(), UnlinkatFlags::RemoveDir);
    folder.remove_temporary()
}
