//! A private tmpfs at /run in a mount namespace of this process, which the kernel removes when the process ends.

use gybe_integration::failure::Failure;
use gybe_integration::namespace::unshare_mounts;
use nix::mount::{MsFlags, mount};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The directory of all files of the benchmark.
pub const RUN: &str = "/run";

/// Mounts an empty /run and raises the limit of open files: each of 250 programs needs a namespace and five pipe ends.
/// Must be called before the first thread starts.
///
/// # Errors
/// When this process may not make a mount namespace.
pub fn mount_private_run() -> Result<(), Failure> {
    let refused = |what: &str, errno| Failure::new(format!("cannot {what}: {errno}; run this as root"));
    unshare_mounts().map_err(|errno| refused("make a mount namespace", errno))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), RUN, Some("tmpfs"), flags, None::<&str>)
        .map_err(|errno| refused("mount a tmpfs", errno))?;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}
