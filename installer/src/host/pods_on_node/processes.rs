//! The pods' processes: which network namespace each is in, and of which pod it is.

use super::cgroup::pod_uid;
use gybe_netfilter::netns::{Identity, NetnsError};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longer than the cgroup file of any process.
const LONGEST: u64 = 1 << 16;

/// A process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodProcess {
    pub(super) uid: String,
    pub(super) netns: PathBuf,
    pub(super) identity: Identity,
}

/// What `/proc` shows.
pub(super) struct Seen {
    pub(super) processes: Vec<PodProcess>,
    /// A namespace of a pod's process that could not be looked at.
    pub(super) refused: Option<NetnsError>,
}

/// The processes of pods in `proc`. Those that end meanwhile are left out.
pub(super) fn of_pods(proc: &Path) -> Seen {
    let mut seen = Seen { processes: Vec::new(), refused: None };
    let is_number = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    let all = fs::read_dir(proc).into_iter().flatten().flatten();
    for process in all.filter(|entry| is_number(&entry.file_name())).map(|entry| entry.path()) {
        let Some(uid) = cgroup(&process).as_deref().and_then(pod_uid) else { continue };
        let netns = process.join("ns/net");
        match Identity::at(&netns) {
            Ok(identity) => seen.processes.push(PodProcess { uid, netns, identity }),
            Err(NetnsError::Missing { .. }) => {}
            Err(why) => seen.refused = Some(why),
        }
    }
    seen
}

fn cgroup(process: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(process.join("cgroup")).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}
