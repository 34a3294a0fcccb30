//! The probe's findings on this node, kept between calls in one small file that is replaced atomically. A lock
//! lets one of many concurrent calls probe, and the others wait for its findings.

pub mod findings;

use findings::NodeIdentity;
use gybe_netfilter::access::lock;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::Hint;
use gybe_netfilter::probe::choose::{flawless, suffices};
use gybe_netfilter::probe::{Capabilities, ProbeError};
use nix::fcntl::OFlag;
use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The directory of the file: a tmpfs, which is empty after a boot.
pub const DIRECTORY: &str = "/run/gybe";
/// The files that Gybe may write in it.
pub const FILES: [&str; 15] = [
    FINDINGS,
    ".probe.json.new",
    LOCK,
    RUNTIME,
    ".runtime.json.new",
    REPAIR_SETTING,
    ".repair.json.new",
    REPAIRS,
    ".repairs.json.new",
    DELETIONS,
    ".deletions.json.new",
    EXEMPTED_PODS,
    ".exempted-pods.json.new",
    PROBE_EXEMPTION,
    ".probe-exemption.json.new",
];
/// The node agent's file on the container runtimes.
pub const RUNTIME: &str = "runtime.json";
/// The node agent's setting for the process that repairs pods.
pub const REPAIR_SETTING: &str = "repair.json";
/// The counts of that process.
pub const REPAIRS: &str = "repairs.json";
/// The node agent's deletions of the last minute.
pub const DELETIONS: &str = "deletions.json";
/// The addresses of ambient pods, which the node agent writes for the process that exempts the kubelet's probes.
pub const EXEMPTED_PODS: &str = "exempted-pods.json";
/// What that process has exempted.
pub const PROBE_EXEMPTION: &str = "probe-exemption.json";
const FINDINGS: &str = "probe.json";
const LOCK: &str = "probe.lock";

/// The maximum size of a file, far above that of the findings on three backends.
pub const MAX_BYTES: u64 = 64 * 1024;

/// The longest wait for another process's probe, which takes a tenth of a second where nftables works, and
/// some seconds where it runs programs on a busy node.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a negative finding is used: a module may be loaded at any time, the cause may have been temporary
/// (no memory, a timeout), and the kubelet retries every ADD that fails meanwhile. A positive finding is used
/// until the next boot.
const NEGATIVE_TTL: Duration = Duration::from_secs(30);

/// The file of findings.
#[derive(Debug, Clone)]
pub struct ProbeCache {
    directory: PathBuf,
}

/// The findings, and whether they could be kept.
#[derive(Debug)]
pub struct ProbeReport {
    /// The findings: new ones, or those that were kept.
    pub capabilities: Capabilities,
    /// The boot and kernel that they are about.
    pub node: NodeIdentity,
    /// The error if they could not be kept.
    pub store_error: Option<io::Error>,
}

/// The maximum age of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxAge {
    /// Old findings count for a backend that can write rules, whatever else it cannot do.
    Any,
    /// Old findings count for a backend without negative findings.
    Recent,
    /// Kept findings do not count.
    Fresh,
}

/// Why there are no findings.
#[derive(Debug, thiserror::Error)]
pub enum ProbeCacheError {
    /// The probe cannot run.
    #[error("cannot probe which backend works on this node")]
    Probe(#[from] ProbeError),
    /// Another process has been probing for too long.
    #[error("another process has been probing this node for more than {0:?}")]
    Busy(Duration),
    /// The boot id or the kernel release cannot be read.
    #[error("cannot read the boot id and the kernel release of this node")]
    Node(#[source] io::Error),
}

impl Hint for ProbeCacheError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Probe(error) => error.hint(),
            Self::Busy(_) => Some("wait for the next attempt, or set backend to nft".into()),
            Self::Node(_) => None,
        }
    }
}

impl Default for ProbeCache {
    fn default() -> Self {
        Self::at(Path::new(DIRECTORY))
    }
}

impl ProbeCache {
    /// Returns the cache in this directory.
    pub fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns the findings, after probing the backends that `lacking` names, until it names none.
    ///
    /// If the kept findings suffice, this only reads two small files.
    ///
    /// # Errors
    /// When the probe cannot run, or another process probes for too long.
    pub fn get_or_probe(
        &self,
        max_age: MaxAge,
        lacking: impl Fn(&Capabilities) -> Option<BackendKind>,
    ) -> Result<ProbeReport, ProbeCacheError> {
        let node = this_node().map_err(ProbeCacheError::Node)?;
        let cached = || self.read(&node).and_then(|cached| cached.usable(max_age));
        if let Some(capabilities) = cached().filter(|known| lacking(known).is_none()) {
            return Ok(ProbeReport { capabilities, node, store_error: None });
        }
        let lock = self.lock()?;
        // Another process may have probed while this call waited.
        let mut capabilities = cached().unwrap_or_default();
        let mut is_changed = false;
        while let Some(kind) = lacking(&capabilities) {
            capabilities.probe(kind)?;
            is_changed = true;
        }
        let stored = match &lock {
            Ok(_) if is_changed => {
                replace_file(&self.directory, FINDINGS, &findings::to_json(&node, &capabilities).to_string())
            }
            Ok(_) => Ok(()),
            Err(why) => Err(io::Error::new(why.kind(), why.to_string())),
        };
        Ok(ProbeReport { capabilities, node, store_error: stored.err() })
    }

    /// Returns the kept findings without probing; none if all of them are too old.
    pub fn load(&self) -> Option<Capabilities> {
        let CachedFindings { capabilities, is_recent } = self.read(&this_node().ok()?)?;
        (is_recent || capabilities.backends.values().any(suffices)).then_some(capabilities)
    }

    /// Reports whether there is a file of findings, usable or not.
    pub fn exists(&self) -> bool {
        self.file().exists()
    }

    /// Deletes the findings, after an ADD contradicted them. A failure is ignored: the findings are no worse
    /// than before.
    pub fn clear(&self) {
        let _ignored = fs::remove_file(self.file());
    }

    fn file(&self) -> PathBuf {
        self.directory.join(FINDINGS)
    }

    /// Reads the findings on this node.
    fn read(&self, node: &NodeIdentity) -> Option<CachedFindings> {
        let (text, metadata) = read_own_file(&self.file())?;
        let capabilities = findings::from_json(&serde_json::from_slice(&text).ok()?, node)?;
        // A time in the future is unusable: the clock was set back, and the age is unknown.
        let age = metadata.modified().ok().and_then(|written| SystemTime::now().duration_since(written).ok());
        Some(CachedFindings { capabilities, is_recent: age.is_some_and(|age| age < NEGATIVE_TTL) })
    }

    /// Takes the lock; the inner error is why nothing can be kept in the directory.
    fn lock(&self) -> Result<io::Result<File>, ProbeCacheError> {
        let file = match self.lock_file() {
            Ok(file) => file,
            Err(why) => return Ok(Err(why)),
        };
        match lock(&file, LOCK_TIMEOUT) {
            Ok(()) => Ok(Ok(file)),
            Err(TryLockError::WouldBlock) => Err(ProbeCacheError::Busy(LOCK_TIMEOUT)),
            Err(TryLockError::Error(why)) => Ok(Err(why)),
        }
    }

    fn lock_file(&self) -> io::Result<File> {
        match DirBuilder::new().mode(0o755).create(&self.directory) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
            _ => {}
        }
        let path = self.directory.join(LOCK);
        without_waiting(OpenOptions::new().write(true).create(true).truncate(false).mode(0o600)).open(path)
    }
}

/// Reads a file that this user has written. Another user's findings may not hold for this one, nor those of
/// another user namespace.
pub fn read_own_file(path: &Path) -> Option<(Vec<u8>, fs::Metadata)> {
    let file = without_waiting(OpenOptions::new().read(true)).open(path).ok()?;
    let mut text = Vec::new();
    (&file).take(MAX_BYTES + 1).read_to_end(&mut text).ok().filter(|read| *read as u64 <= MAX_BYTES)?;
    let metadata = file.metadata().ok().filter(|it| it.uid() == nix::unistd::geteuid().as_raw())?;
    Some((text, metadata))
}

/// Replaces a file atomically; it is readable for every user.
///
/// # Errors
/// When it cannot be written.
pub fn replace_file(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!(".{name}.new"));
    let mut file =
        without_waiting(OpenOptions::new().write(true).create(true).truncate(true).mode(0o644)).open(&new)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    fs::rename(new, directory.join(name))
}

/// The content of the file of findings.
struct CachedFindings {
    capabilities: Capabilities,
    is_recent: bool,
}

impl CachedFindings {
    /// Returns the findings that are not too old; none for [`MaxAge::Fresh`].
    fn usable(mut self, max_age: MaxAge) -> Option<Capabilities> {
        let is_lasting = match max_age {
            MaxAge::Any => suffices,
            MaxAge::Recent => flawless,
            MaxAge::Fresh => return None,
        };
        if !self.is_recent {
            self.capabilities.backends.retain(is_lasting);
        }
        Some(self.capabilities)
    }
}

/// Adds `O_NONBLOCK`, without which the open of a FIFO waits for its other end, and `O_NOFOLLOW`: a symbolic link
/// is not a file of Gybe.
fn without_waiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY).bits())
}

/// Reads the boot id and the kernel release.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn this_node() -> io::Result<NodeIdentity> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    let kernel = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    Ok(NodeIdentity { boot, kernel })
}

#[cfg(test)]
mod tests;
