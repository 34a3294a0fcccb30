//! The primary plugin's agent: it writes its conf again, whole, and knows nothing of Gybe.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gybe_containerd_tests::node::CONFLIST;
use gybe_containerd_tests::{Chain, Node, config};
use gybe_installer::host::watch::DirectoryWatch;

use crate::ground::PATIENCE;
use crate::state::State;

/// Somebody who writes the primary's file.
pub(crate) struct Primary {
    directory: PathBuf,
    chain: Chain,
    nth: u64,
}

impl Primary {
    /// It has written once: that is how the node began.
    pub(crate) fn of(node: &Node, chain: Chain) -> Primary {
        Primary { directory: node.stage().path(config::CONF_DIR), chain, nth: 0 }
    }

    /// Writes it once more, by rename; tells the how-manieth it is.
    pub(crate) fn writes(&mut self) -> u64 {
        self.nth += 1;
        let beside = self.directory.join(".primary");
        fs::write(&beside, self.chain.written(self.nth)).unwrap();
        fs::rename(beside, self.file()).unwrap();
        self.nth
    }

    /// What it wrote last.
    pub(crate) fn bytes(&self) -> String {
        self.chain.written(self.nth)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join(CONFLIST)
    }

    /// What is in the file, which is always whole.
    pub(crate) fn state(&self) -> State {
        State::of(&serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap())
    }

    /// Returns when Gybe is in the file; how long that took.
    pub(crate) fn healed(&self) -> Duration {
        let mut watch = DirectoryWatch::new([self.directory.clone()]);
        let start = Instant::now();
        while self.state() != (State { nth: self.nth, gybe: true }) {
            let left = PATIENCE.checked_sub(start.elapsed()).expect("nobody healed the conf");
            watch.wait(left, None);
        }
        start.elapsed()
    }
}
