//! A place to write that nobody else sees and nobody has to tidy up: a tmpfs over /run, in a mount
//! namespace of this process alone. It goes with the process, however that ends.

use gybe_integration::failure::Failure;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Where files go.
pub const PLACE: &str = "/run";

/// Hides /run behind an empty one, and allows as many open files as there may be: a namespace and
/// five pipe ends for each of 250 programs. Must come before the first thread.
///
/// # Errors
/// When this process may make no mount namespace.
pub fn seclude() -> Result<(), Failure> {
    let refused = |what: &str, errno| Failure::new(format!("cannot {what}: {errno}; run this as root"));
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| refused("make a mount namespace", errno))?;
    let nothing: Option<&str> = None;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(nothing, "/", nothing, private, nothing).map_err(|errno| refused("keep mounts private", errno))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), PLACE, Some("tmpfs"), flags, nothing)
        .map_err(|errno| refused("mount a tmpfs", errno))?;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}
