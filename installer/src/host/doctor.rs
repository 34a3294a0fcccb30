//! A node explained: what was seen, judged, in sentences with what to do about each. Pure; what is
//! looked at, and how, is in `sight`.

mod agent;
mod backend;
mod chain;
mod directories;
mod drop_in;
mod entry;
mod leftovers;
mod others;
mod pods;
mod programs;
pub mod sight;
mod watching;

use crate::host::install::seen::ConfDirectory;
use chain::Ours;
use gybe_plugin::conf::PluginConf;
use serde_json::{Value, json};
use sight::Sight;

/// One thing that is so on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub about: About,
    /// Whether it is well.
    pub state: State,
    /// One sentence.
    pub says: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// What a finding is about, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// What kind of node it is.
    Node,
    /// The runtime's directories and the file systems they are on.
    Directories,
    /// Which file the runtime takes, and our entry in it.
    Chain,
    /// What our entry says.
    Entry,
    /// The programs.
    Programs,
    /// The node agent's sockets.
    Agent,
    /// What writes rules.
    Backend,
    /// Who else writes there.
    Others,
    /// How changes become known, to us and to the runtime.
    Watching,
    /// What pods ask for.
    Pods,
    /// What is left of an earlier life.
    Leftovers,
}

impl About {
    /// Its word in the answer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Directories => "directories",
            Self::Chain => "chain",
            Self::Entry => "entry",
            Self::Programs => "programs",
            Self::Agent => "agent",
            Self::Backend => "backend",
            Self::Others => "others",
            Self::Watching => "watching",
            Self::Pods => "pods",
            Self::Leftovers => "leftovers",
        }
    }
}

/// Whether something is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is as it should be.
    Well,
    /// Nothing is wrong, and it should be known.
    Note,
    /// Pods suffer, or will.
    Wrong,
}

impl State {
    /// Its word in the answer.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Note => "note",
            Self::Wrong => "WRONG",
        }
    }
}

impl Finding {
    fn well(about: About, says: impl Into<String>) -> Self {
        Self { about, state: State::Well, says: says.into(), remedy: None }
    }

    fn note(about: About, says: impl Into<String>, remedy: Option<&str>) -> Self {
        Self { about, state: State::Note, says: says.into(), remedy: remedy.map(str::to_owned) }
    }

    fn wrong(about: About, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { about, state: State::Wrong, says: says.into(), remedy: Some(remedy.into()) }
    }

    /// For a program.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { about, state, says, remedy } = self;
        json!({ "about": about.name(), "state": state.name().to_lowercase(), "says": says, "remedy": remedy })
    }
}

/// Judges all that was seen.
#[must_use]
pub fn examine(sight: &Sight) -> Vec<Finding> {
    let ours = Ours::find(&sight.snapshot.conf);
    let mut found = directories::examine(sight);
    found.extend(chain::examine(sight, &ours));
    found.extend(drop_in::examine(sight, &ours));
    found.extend(others::examine(sight));
    found.extend(watching::examine(sight, &ours));
    // Without an entry and without programs there is nothing of ours to explain.
    if ours.is_anywhere() || programs::are_there(sight) {
        found.extend(entry::examine(sight, &ours));
        found.extend(programs::examine(sight, &ours));
        found.extend(leftovers::examine(sight, &ours));
    }
    if ours.is_anywhere() || programs::are_there(sight) {
        found.extend(agent::examine(sight, &ours));
    }
    if ours.is_anywhere() {
        found.extend(backend::examine(sight, &ours));
        found.extend(pods::examine(sight));
    }
    found.sort_by_key(|finding| finding.about);
    found
}

/// Whether a conf directory has an entry of ours, in whatever shape.
pub(crate) fn is_named(conf: &ConfDirectory) -> bool {
    Ours::find(conf).is_anywhere()
}

/// The plugin's configuration that a conf directory holds, if it has an entry of ours that can be read.
pub(crate) fn entry_conf(conf: &ConfDirectory) -> Option<PluginConf> {
    entry::conf(&Ours::find(conf))
}

/// Whether nothing is wrong.
#[must_use]
pub fn is_well(found: &[Finding]) -> bool {
    found.iter().all(|finding| finding.state != State::Wrong)
}

/// What the kernel's "no" means for somebody who is root: a security module has said it (F36).
fn of_security(sight: &Sight) -> String {
    let said = match sight.guard {
        sight::Guard::SeLinux => "SELinux is enforcing here: give the agent seLinuxOptions.type spc_t",
        sight::Guard::AppArmor => "AppArmor confines this process: give it the profile unconfined",
        sight::Guard::None => {
            "run gybe doctor as root; in a pod with SELinux it needs spc_t, with AppArmor unconfined"
        }
    };
    said.to_owned()
}
