//! What arguments ask for beside the policy, where that is more than yes or no.

use super::flags::Setting;
use super::{InitArgs, InitArgsError, Order, duration};
use gybe_netfilter::policy::Port;
use std::time::Duration;

/// The connection by which a validation finds out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The port that is called, where nobody listens.
    pub port: Port,
    /// How long somebody has to find the call redirected.
    pub patience: Duration,
}

/// What is to write the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Whatever does it here.
    Any,
    /// nftables.
    Nftables,
    /// iptables' older programs.
    IptablesLegacy,
}

/// The port and the patience of Istio (spec `istio-cni-behaviour.md` 3.4).
const PROBE_PORT: u16 = 15002;
const PATIENCE: Duration = Duration::from_secs(5);

impl InitArgs {
    /// How a validation is to be made.
    ///
    /// # Errors
    /// When the port or the time given is none.
    pub fn probe(&self) -> Result<Probe, InitArgsError> {
        let port = match self.setting(Setting::ProbePort) {
            None => Port::new(PROBE_PORT).unwrap_or(Port::MIN),
            Some(text) => text.parse().map_err(|_| InitArgsError::NotA {
                name: "--iptables-probe-port",
                value: text.to_owned(),
                wanted: "a port",
            })?,
        };
        let patience = match self.setting(Setting::ProbeTimeout) {
            None => PATIENCE,
            Some(text) => duration::parse(text).ok_or_else(|| InitArgsError::NotA {
                name: "--probe-timeout",
                value: text.to_owned(),
                wanted: "a time like 5s or 500ms, of an hour at most",
            })?,
        };
        Ok(Probe { port, patience })
    }

    /// What is to write the rules; native nftables beats a kind of iptables, as in Istio.
    ///
    /// # Errors
    /// When a kind of iptables is asked for that there is not.
    pub fn tool(&self) -> Result<Tool, InitArgsError> {
        match self.setting(Setting::IptablesBinary) {
            _ if self.orders(Order::NativeNftables) => Ok(Tool::Nftables),
            None => Ok(Tool::Any),
            Some("nft") => Ok(Tool::Nftables),
            Some("legacy") => Ok(Tool::IptablesLegacy),
            Some(other) => Err(InitArgsError::NotA {
                name: "--force-iptables-binary",
                value: other.to_owned(),
                wanted: "legacy or nft",
            }),
        }
    }

    /// Another network namespace than the one this runs in.
    pub fn network_namespace(&self) -> Option<&str> {
        self.setting(Setting::NetworkNamespace)
    }

    /// What was given and is not followed: one sentence each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.setting(Setting::IptablesBinary) == Some("nft") {
            notes.push("note: iptables-nft is asked for; nftables is written directly".to_owned());
        }
        if self.orders(Order::Reconcile) {
            notes.push("note: --reconcile changes nothing: rules of ours are always replaced".to_owned());
        }
        notes.extend(self.ignored.iter().map(|name| {
            let dashes = if name.starts_with(char::is_lowercase) { "--" } else { "" };
            format!("note: {dashes}{name} means nothing here and is ignored")
        }));
        notes
    }

    /// An empty value is none.
    fn setting(&self, setting: Setting) -> Option<&str> {
        self.settings.get(&setting).map(String::as_str).filter(|text| !text.is_empty())
    }
}
