//! istio-cni on this node: whether its agent listens, and whether our plugin has to stand in under its name.
//! istio-cni's agent removes its program when it ends, and the runtime still calls that program for the DEL of
//! sandboxes made with it.

use crate::host::conflist::{ISTIO, PluginChain};
use crate::host::image::{PLUGIN, has_text};
use crate::host::observe::{CachedPlugins, Hash, ORIGINAL, ObservedState};
use crate::host::settings::StandIn;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Seek;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The largest program that is searched, in bytes. Our plugin has two megabytes, and twenty in a debug build.
const MAX_SIZE: u64 = 64 << 20;

/// Reports whether istio-cni's agent accepts log lines in its directory. It serves HTTP there; a connection that is
/// closed at once has no effect.
pub(crate) fn accepts_log(run: &Path) -> bool {
    is_served(&run.join("log.sock"), SockType::Stream)
}

/// Reports whether a process serves this socket. Sends nothing, and does not wait.
pub(crate) fn is_served(path: &Path, kind: SockType) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let Ok(client) = socket(AddressFamily::Unix, kind, flags, None) else { return false };
    let Ok(address) = UnixAddr::new(path) else { return false };
    match connect(client.as_raw_fd(), &address) {
        // A full backlog belongs to a listener (unix(7)).
        Ok(()) | Err(Errno::EAGAIN) => true,
        Err(_) => false,
    }
}

/// Returns the hash of the program under istio-cni's name, if it is our plugin of any version: our plugin contains its
/// own name, and no other program does.
pub(crate) fn our_stand_in(programs: &Path) -> Option<Hash> {
    let path = programs.join(ISTIO);
    // istio-cni's own program has a hundred megabytes, and need not be read.
    let is_small = path.symlink_metadata().is_ok_and(|file| file.is_file() && file.len() <= MAX_SIZE);
    let mut program = is_small.then(|| File::open(&path).ok()).flatten()?;
    if !has_text(&program, PLUGIN.as_bytes()).ok()? {
        return None;
    }
    program.rewind().ok()?;
    Hash::of_all(program).ok()
}

/// Decides about the program under istio-cni's name; `ours` is its hash if it is our plugin. The snapshot must include
/// the plugins of the existing sandboxes. Pure.
#[must_use]
pub(crate) fn stand_in(snapshot: &ObservedState, ours: Option<Hash>) -> StandIn {
    let exists = snapshot.programs.names.contains_key(OsStr::new(ISTIO));
    match (ours, is_needed(snapshot)) {
        (Some(hash), true) => StandIn::Ours(hash),
        (Some(hash), false) => StandIn::Obsolete(hash),
        (None, true) if !exists => StandIn::IfAbsent,
        _ => StandIn::None,
    }
}

/// Reports whether a program with istio-cni's name is needed. Without the runtime's cache it is needed as long as a
/// conf file names istio-cni, or a kept original does.
fn is_needed(snapshot: &ObservedState) -> bool {
    match &snapshot.cached {
        CachedPlugins::Named(plugins) => plugins.contains(ISTIO),
        CachedPlugins::Unknown => snapshot.conf.files.iter().any(|(name, file)| {
            let chain = file.content.as_ref().ok().and_then(|bytes| PluginChain::read(bytes).ok());
            let names_it = chain.is_some_and(|chain| chain.entry(ISTIO).is_some());
            names_it && (name.ends_in(ORIGINAL) || name.ends_in(".conflist"))
        }),
    }
}
