//! The primary plugin's agent: writes its whole conflist again, without Gybe.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gybe_containerd_tests::node::CONFLIST;
use gybe_containerd_tests::{Conflist, Node, containerd};
use gybe_installer::host::watch::DirectoryWatch;

use crate::conflist_state::ConflistState;
use crate::fixture::PATIENCE;

pub(crate) struct PrimaryPlugin {
    directory: PathBuf,
    conflist: Conflist,
    revision: u64,
}

impl PrimaryPlugin {
    /// Revision 0 is already in the file: the node starts with it.
    pub(crate) fn new(node: &Node, conflist: Conflist) -> PrimaryPlugin {
        PrimaryPlugin { directory: node.host().path(containerd::CONF_DIR), conflist, revision: 0 }
    }

    /// Writes the next revision by rename and returns its number.
    pub(crate) fn write(&mut self) -> u64 {
        self.revision += 1;
        let temporary = self.directory.join(".primary");
        fs::write(&temporary, self.text()).unwrap();
        fs::rename(temporary, self.file()).unwrap();
        self.revision
    }

    /// The text of the last revision.
    pub(crate) fn text(&self) -> String {
        self.conflist.text(self.revision)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join(CONFLIST)
    }

    /// The state of the file.
    pub(crate) fn state(&self) -> ConflistState {
        ConflistState::of(&serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap())
    }

    /// Waits until the agent has added Gybe to the last revision; returns how long that took.
    pub(crate) fn wait_until_repaired(&self) -> Duration {
        let mut watch = DirectoryWatch::new([self.directory.clone()]);
        let start = Instant::now();
        while self.state() != (ConflistState { revision: self.revision, has_gybe: true }) {
            let left = PATIENCE.checked_sub(start.elapsed()).expect("the agent did not repair the conflist");
            watch.wait(left, None);
        }
        start.elapsed()
    }
}
