//! What an operator wants of the agent: out of the environment, and out of the mounted ConfigMap, which
//! may change while the agent runs. Pure; only `SettingsSources::gather` reads anything.
//!
//! Where things are is the environment's alone, since a live pod's environment never changes; what an
//! operator chooses is in the ConfigMap, and a variable of the same meaning holds where it is silent.

mod desired;
mod environment;
mod error;
mod exclusion;
mod listen;
mod logging;
mod names;
mod options;
mod placeholders;
mod plugin_conf;
mod reader;
mod sources;
mod template;

pub use desired::{GRACE_PERIOD, NodeContext, ProgramRemoval, StandIn};
pub use environment::{
    ApiServer, Environment, FACTS_SOCKET, KUBECONFIG, KUBECONFIG_TEMPORARY, SERVICE_ACCOUNT, ServerTrust,
};
pub use error::{InvalidSetting, SettingsError};
pub use listen::Listen;
pub use names::{INCUMBENTS, KEYS, OURS, SettingName, Support};
pub use options::{Mode, Options, PodSource, STANDALONE, TakeOverSetting};
pub use sources::{CONFIG, SettingsSources, SourceError, config_directory};

use reader::SettingsReader;

/// Everything the agent goes by.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where things are and who we are.
    pub ground: Environment,
    /// What an operator chose.
    pub choices: Options,
    /// Not wrong, and worth knowing.
    pub notes: Vec<String>,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// Names everything that cannot be followed, at once.
    pub fn read(given: &SettingsSources) -> Result<Self, SettingsError> {
        let mut reader = SettingsReader::of(given);
        names::judge(&mut reader);
        let ground = environment::read(&mut reader);
        let choices = options::read(&mut reader, &ground);
        let SettingsReader { faults, notes, .. } = reader;
        if faults.is_empty() { Ok(Self { ground, choices, notes }) } else { Err(SettingsError(faults)) }
    }
}
