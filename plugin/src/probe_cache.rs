//! What is known about this node, kept between calls: one small file, written whole or not at all, and
//! a lock so that of many calls that know nothing one finds out.

use crate::probed::{self, Node};
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::{flawless, suffices};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::lock::lock;
use gybe_netfilter::probe::{Capabilities, ProbeError};
use nix::fcntl::OFlag;
use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where a node keeps it: memory that is empty after a boot.
pub const DIRECTORY: &str = "/run/gybe";
/// What may be there of it.
pub const FILES: [&str; 5] = [KEPT, ".probe.json.new", LOCK, RUNTIME, ".runtime.json.new"];
/// What was seen of the container runtimes, for the node agent.
pub const RUNTIME: &str = "runtime.json";
const KEPT: &str = "probe.json";
const LOCK: &str = "probe.lock";

/// Far more than three backends have to say.
const MOST: u64 = 64 * 1024;

/// How long somebody else's probe is waited for. One takes a tenth of a second where nftables works,
/// and some seconds where programs are tried on a busy node.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it is believed that something does not work, by whoever needs it: a module may be loaded
/// any time, a fault may have been a moment's (no memory, a late answer), and every ADD that fails
/// meanwhile is tried again. What works does so until the next boot.
const BELIEVED: Duration = Duration::from_secs(30);

/// The place where findings are kept.
#[derive(Debug, Clone)]
pub struct ProbeCache {
    directory: PathBuf,
}

/// What is known, and whether the next call will know it too.
#[derive(Debug)]
pub struct Learnt {
    /// What was found out, now or before.
    pub capabilities: Capabilities,
    /// About what.
    pub node: Node,
    /// Why it could not be kept, if it could not.
    pub not_kept: Option<io::Error>,
}

/// How old findings may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// Any age, of a backend that can write: what else it cannot do, or others cannot, nobody waits for.
    Any,
    /// Any age, of a backend that does everything.
    Recent,
    /// Only those made now.
    Fresh,
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    /// Nothing can be tried here.
    #[error("cannot find out which backend works on this node")]
    Probe(#[from] ProbeError),
    /// Somebody is at it, and has not come to an end.
    #[error("somebody else has been finding out which backend works on this node for {0:?}")]
    Busy(Duration),
    /// Which kernel this is cannot be told.
    #[error("cannot tell which boot and which kernel this is")]
    Node(#[source] io::Error),
}

impl Hint for LearnError {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Probe(error) => error.hint(),
            Self::Busy(_) => Some("wait for the next try, or set backend to nft".into()),
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
    /// One in this directory.
    pub fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// What is known, after trying out whatever backend `lacking` names, as long as it names one.
    ///
    /// Where findings are kept and enough, this reads two small files and no more.
    ///
    /// # Errors
    /// When nothing can be tried, or somebody else takes too long to.
    pub fn learn(
        &self,
        age: Age,
        lacking: impl Fn(&Capabilities) -> Option<BackendKind>,
    ) -> Result<Learnt, LearnError> {
        let node = this_node().map_err(LearnError::Node)?;
        let kept = || self.kept(&node).and_then(|kept| kept.believed(age));
        if let Some(capabilities) = kept().filter(|known| lacking(known).is_none()) {
            return Ok(Learnt { capabilities, node, not_kept: None });
        }
        let lock = self.lock()?;
        // Somebody else may have found out while this call waited.
        let mut capabilities = kept().unwrap_or_default();
        let mut news = false;
        while let Some(kind) = lacking(&capabilities) {
            capabilities.learn(kind)?;
            news = true;
        }
        let kept = match &lock {
            Ok(_) if news => place(&self.directory, KEPT, &probed::to_json(&node, &capabilities).to_string()),
            Ok(_) => Ok(()),
            Err(why) => Err(io::Error::new(why.kind(), why.to_string())),
        };
        Ok(Learnt { capabilities, node, not_kept: kept.err() })
    }

    /// What is known without trying anything: all that is kept, as long as any of it is believed.
    pub fn recall(&self) -> Option<Capabilities> {
        let Kept { capabilities, is_recent } = self.kept(&this_node().ok()?)?;
        (is_recent || capabilities.backends.values().any(suffices)).then_some(capabilities)
    }

    /// Whether anything is kept, to be believed or not.
    pub fn is_kept(&self) -> bool {
        self.file().exists()
    }

    /// Forgets it: a real ADD has met what no probe did. Nothing kept is success, and so is a failure:
    /// what is then believed is no worse than before.
    pub fn forget(&self) {
        let _kept = fs::remove_file(self.file());
    }

    fn file(&self) -> PathBuf {
        self.directory.join(KEPT)
    }

    /// What is kept about this node.
    fn kept(&self, node: &Node) -> Option<Kept> {
        let (text, metadata) = kept(&self.file())?;
        let capabilities = probed::from_json(&serde_json::from_slice(&text).ok()?, node)?;
        // One from the future is none: a clock that was set back says nothing about age.
        let age = metadata.modified().ok().and_then(|written| SystemTime::now().duration_since(written).ok());
        Some(Kept { capabilities, is_recent: age.is_some_and(|age| age < BELIEVED) })
    }

    /// The lock; why there is none where nothing can be kept.
    fn lock(&self) -> Result<io::Result<File>, LearnError> {
        let file = match self.lock_file() {
            Ok(file) => file,
            Err(why) => return Ok(Err(why)),
        };
        match lock(&file, PATIENCE) {
            Ok(()) => Ok(Ok(file)),
            Err(TryLockError::WouldBlock) => Err(LearnError::Busy(PATIENCE)),
            Err(TryLockError::Error(why)) => Ok(Err(why)),
        }
    }

    fn lock_file(&self) -> io::Result<File> {
        match DirBuilder::new().mode(0o755).create(&self.directory) {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
            _ => {}
        }
        let path = self.directory.join(LOCK);
        at_once(OpenOptions::new().write(true).create(true).truncate(false).mode(0o600)).open(path)
    }
}

/// What is kept in a file. What works for another user, or outside this user namespace, may not work here: only
/// this user's file counts.
pub fn kept(path: &Path) -> Option<(Vec<u8>, fs::Metadata)> {
    let file = at_once(OpenOptions::new().read(true)).open(path).ok()?;
    let mut text = Vec::new();
    (&file).take(MOST + 1).read_to_end(&mut text).ok().filter(|read| *read as u64 <= MOST)?;
    let metadata = file.metadata().ok().filter(|it| it.uid() == nix::unistd::geteuid().as_raw())?;
    Some((text, metadata))
}

/// Written beside it and put in its place, so that nobody reads a part; readable for everybody.
///
/// # Errors
/// When it cannot be written.
pub fn place(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!(".{name}.new"));
    let mut file =
        at_once(OpenOptions::new().write(true).create(true).truncate(true).mode(0o644)).open(&new)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())?;
    fs::rename(new, directory.join(name))
}

/// What the file says.
struct Kept {
    capabilities: Capabilities,
    is_recent: bool,
}

impl Kept {
    /// Without what has to be found out again; nothing where that is everything.
    fn believed(mut self, age: Age) -> Option<Capabilities> {
        let lasts = match age {
            Age::Any => suffices,
            Age::Recent => flawless,
            Age::Fresh => return None,
        };
        if !self.is_recent {
            self.capabilities.backends.retain(lasts);
        }
        Some(self.capabilities)
    }
}

/// Without `O_NONBLOCK` the opening of a FIFO waits for its other end; a link is nothing we wrote.
fn at_once(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY).bits())
}

/// This boot of this kernel.
///
/// # Errors
/// When `/proc` is not there.
pub fn this_node() -> io::Result<Node> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    let kernel = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    Ok(Node { boot, kernel })
}

#[cfg(test)]
mod tests;
