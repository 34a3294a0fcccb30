//! What an operator wants of the agent: out of the environment, and out of the mounted ConfigMap, which
//! may change while the agent runs. Pure; only `Given::gather` reads anything.
//!
//! Where things are is the environment's alone, since a live pod's environment never changes; what an
//! operator chooses is in the ConfigMap, and a variable of the same meaning holds where it is silent.

mod choices;
mod exclusion;
mod faults;
mod given;
mod ground;
mod listen;
mod logging;
mod names;
mod plugin_conf;
mod reader;
mod template;
mod wants;

pub use choices::{Choices, Mode, PodSource, STANDALONE, TakeOverWish};
pub use faults::{Fault, SettingsError};
pub use given::{CONFIG, Given, Unread, config_directory};
pub use ground::{ApiServer, FACTS_SOCKET, Ground, KUBECONFIG, KUBECONFIG_TEMPORARY, SERVICE_ACCOUNT, Trust};
pub use listen::Listen;
pub use names::{Fate, INCUMBENTS, KEYS, Name, OURS};
pub use wants::{Burial, GRACE_PERIOD, OnNode, StandIn};

use reader::Reader;

/// Our plugin: the entry's type, and its program's name.
pub const PLUGIN: &str = "gybe-cni";

/// Everything the agent goes by.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where things are and who we are.
    pub ground: Ground,
    /// What an operator chose.
    pub choices: Choices,
    /// Not wrong, and worth knowing.
    pub notes: Vec<String>,
}

impl Settings {
    /// Reads them.
    ///
    /// # Errors
    /// Names everything that cannot be followed, at once.
    pub fn read(given: &Given) -> Result<Self, SettingsError> {
        let mut reader = Reader::of(given);
        names::judge(&mut reader);
        let ground = ground::read(&mut reader);
        let choices = choices::read(&mut reader, &ground);
        let Reader { faults, notes, .. } = reader;
        if faults.is_empty() { Ok(Self { ground, choices, notes }) } else { Err(SettingsError(faults)) }
    }
}
