//! `gybe doctor`: judges an observed node and returns findings, most with a remedy. Pure; `observe` reads the node.

mod agent;
mod chain;
mod directories;
mod entry;
pub mod observe;
mod other_owners;
mod pods;
mod programs;

use crate::error::RUN_AS_ROOT;
use crate::host::entries::OurEntries;
use observe::{AgentContact, Observation};
use serde_json::{Value, json};
use std::fmt;

/// One finding about the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoctorFinding {
    pub about: About,
    pub severity: Severity,
    pub text: String,
    pub remedy: Option<Remedy>,
    pub section: Option<Section>,
}

/// What to do about a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Run the doctor as root: the kernel denied an access to its user.
    RunAsRoot,
    Text(String),
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunAsRoot => RUN_AS_ROOT,
            Self::Text(text) => text,
        })
    }
}

impl<T: Into<String>> From<T> for Remedy {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// A section of docs/TROUBLESHOOTING.md about the same cause. Its heading is the id of an error of the plugin, or the
/// name of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    WrongEntry,
    MissingPrograms,
    BrokenManifest,
    NoBackend,
    AgentDoesNotAnswer,
    WrongKubeconfig,
    NodeNotReady,
    PodsUnknown,
    PodsRefused,
    PodsNotRedirected,
    Conflict,
    SettingsRefused,
}

impl Section {
    #[cfg(test)]
    const ALL: [Self; 12] = [
        Self::WrongEntry,
        Self::MissingPrograms,
        Self::BrokenManifest,
        Self::NoBackend,
        Self::AgentDoesNotAnswer,
        Self::WrongKubeconfig,
        Self::NodeNotReady,
        Self::PodsUnknown,
        Self::PodsRefused,
        Self::PodsNotRedirected,
        Self::Conflict,
        Self::SettingsRefused,
    ];

    /// Its heading, which is also the finding's id in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WrongEntry => "GYBE-009",
            Self::MissingPrograms => "GYBE-015",
            Self::BrokenManifest => "GYBE-019",
            Self::NoBackend => "GYBE-027",
            Self::AgentDoesNotAnswer => "GYBE-032",
            Self::WrongKubeconfig => "GYBE-033",
            Self::NodeNotReady => "GybeNodeNotReady",
            Self::PodsUnknown => "GybePodsUnknown",
            Self::PodsRefused => "GybePodsRefused",
            Self::PodsNotRedirected => "GybePodsNotRedirected",
            Self::Conflict => "GybeConflict",
            Self::SettingsRefused => "GybeSettingsRefused",
        }
    }
}

/// The topics of findings, in the order of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// The kind of node.
    Node,
    /// The runtime's directories and their file systems.
    Directories,
    /// The conf file that the runtime uses, and our entry in it.
    Chain,
    /// The values of our entry.
    Entry,
    Programs,
    /// The node agent's sockets and status.
    Agent,
    /// The backend in use.
    Backend,
    /// Other owners' conf files, and other meshes.
    Others,
    /// How our agent and the runtime notice changes.
    Watching,
    /// The redirection of pods, and their annotations.
    Pods,
    /// Leftovers of an earlier install.
    Leftovers,
}

impl About {
    /// Its name in the output.
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

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Ok,
    /// Nothing is wrong, but an operator should know it.
    Note,
    /// Pods are affected, or will be.
    Wrong,
}

impl Severity {
    /// Its name in the output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Wrong => "WRONG",
        }
    }
}

impl DoctorFinding {
    fn well(about: About, text: impl Into<String>) -> Self {
        Self { about, severity: Severity::Ok, text: text.into(), remedy: None, section: None }
    }

    fn note(about: About, text: impl Into<String>, remedy: Option<&str>) -> Self {
        let remedy = remedy.map(Remedy::from);
        Self { about, severity: Severity::Note, text: text.into(), remedy, section: None }
    }

    fn wrong(about: About, text: impl Into<String>, remedy: impl Into<Remedy>) -> Self {
        Self {
            about,
            severity: Severity::Wrong,
            text: text.into(),
            remedy: Some(remedy.into()),
            section: None,
        }
    }

    fn in_section(self, section: Section) -> Self {
        Self { section: Some(section), ..self }
    }

    #[must_use]
    pub fn to_json(&self) -> Value {
        let Self { about, severity, text, remedy, section } = self;
        let (id, remedy) = (section.map(Section::name), remedy.as_ref().map(Remedy::to_string));
        json!({ "about": about.name(), "state": severity.name().to_lowercase(), "says": text, "remedy": remedy, "id": id })
    }
}

/// Judges the observed node.
#[must_use]
pub fn examine(observation: &Observation) -> Vec<DoctorFinding> {
    let ours = OurEntries::find(&observation.snapshot.conf);
    let mut found = directories::examine(observation);
    found.extend(chain::examine(observation, &ours));
    found.extend(chain::drop_in_support(observation, &ours));
    found.extend(other_owners::examine(observation));
    found.extend(directories::watching(observation, &ours));
    // Without an entry and without programs of Gybe these topics have no findings. An agent that has not changed the node
    // yet, for example because its first ConfigMap is invalid, says why.
    let is_installed = ours.is_anywhere() || programs::are_there(observation);
    if is_installed || observation.agent.as_ref().is_some_and(AgentContact::is_running) {
        found.extend(agent::examine(observation, &ours));
    }
    if is_installed {
        found.extend(entry::examine(observation, &ours));
        found.extend(programs::examine(observation, &ours));
        found.extend(programs::leftovers(observation, &ours));
        found.extend(entry::backend(observation, &ours));
        found.extend(pods::examine(observation));
    }
    found.sort_by_key(|finding| finding.about);
    observation.user.and_then(|user| refused(user, &found)).map_or(found, |refused| vec![refused])
}

/// Returns the only finding for a user who may not read the node: to that user, what cannot be read is missing.
fn refused(user: u32, found: &[DoctorFinding]) -> Option<DoctorFinding> {
    let refused = found.iter().filter(|finding| finding.remedy == Some(Remedy::RunAsRoot));
    let refused: Vec<&str> = refused.map(|finding| finding.text.as_str()).collect();
    let text = format!("user {user} cannot check this node: {}", refused.join("; "));
    (!refused.is_empty()).then(|| DoctorFinding::wrong(About::Node, text, Remedy::RunAsRoot))
}

/// Reports whether no finding is `Wrong`.
#[must_use]
pub fn is_well(found: &[DoctorFinding]) -> bool {
    found.iter().all(|finding| finding.severity != Severity::Wrong)
}

/// The remedy where the kernel denies an access (EACCES, EPERM). To root, only a security module denies one (F36).
fn access_remedy(observation: &Observation) -> Remedy {
    if observation.user.is_some() {
        return Remedy::RunAsRoot;
    }
    let remedy = match observation.security_module {
        observe::SecurityModule::SeLinux => {
            "set seLinuxOptions.type spc_t for the agent: SELinux is enforcing here"
        }
        observe::SecurityModule::AppArmor => {
            "set the AppArmor profile unconfined for this process: a profile confines it"
        }
        observe::SecurityModule::None => {
            "in a pod with SELinux the agent and gybe doctor need spc_t, with AppArmor the profile unconfined"
        }
    };
    remedy.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_of_a_finding_is_a_section_of_the_troubleshooting_page() {
        let page = include_str!("../../../docs/TROUBLESHOOTING.md");
        for section in Section::ALL {
            assert!(page.contains(&format!("\n### {}\n", section.name())), "{section:?}");
        }
    }
}
