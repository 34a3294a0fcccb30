//! The agent's settings, from the environment and from the mounted ConfigMap, which may change while the agent
//! runs. Pure; only `SettingsSources::gather` reads anything.
//!
//! Paths and identities come only from the environment, because a running pod's environment never changes. An
//! operator's options come from the ConfigMap; a variable of the same meaning applies if the ConfigMap has no
//! value.

mod desired;
mod environment;
mod names;
mod options;
mod plugin_conf;
mod reader;
mod repair;
mod sources;
mod template;

pub use desired::{GRACE_PERIOD, NodeContext, ProgramRemoval, StandIn};
pub use environment::{
    AGENT_LEADER, AmbientEnvironment, ApiServer, Environment, FACTS_SOCKET, KUBECONFIG, KUBECONFIG_TEMPORARY,
    LeaderFiles, Listen, POD_DIRECTORY, PROBE_LEADER, SERVICE_ACCOUNT, STATUS_SOCKET, ServerTrust,
    ZTUNNEL_SOCKET,
};
pub use names::{INCUMBENTS, KEYS, OURS, SettingName, Support};
pub use options::{NodeMode, NodeTaint, Options, PodSource, STANDALONE, TakeOverSetting};
pub use repair::{FailedInit, PodLabel, RepairMode, RepairOptions};
pub use sources::{CONFIG, SettingsSources, SourceError, config_directory};

use reader::SettingsReader;
pub use reader::{InvalidSetting, SettingsError};

/// All settings of the agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Fixed for the life of the process.
    pub environment: Environment,
    /// May change while the agent runs.
    pub options: Options,
    /// Notes for operators, which are not errors.
    pub notes: Vec<String>,
}

impl Settings {
    /// Parses the settings.
    ///
    /// # Errors
    /// Lists every invalid setting at once.
    pub fn read(sources: &SettingsSources) -> Result<Self, SettingsError> {
        let mut reader = SettingsReader::of(sources);
        names::judge(&mut reader);
        let environment = environment::read(&mut reader);
        if environment.ambient.is_none() {
            names::note_without_ambient_mode(&mut reader);
        }
        let options = options::read(&mut reader, &environment);
        let SettingsReader { faults, notes, .. } = reader;
        if faults.is_empty() { Ok(Self { environment, options, notes }) } else { Err(SettingsError(faults)) }
    }
}
