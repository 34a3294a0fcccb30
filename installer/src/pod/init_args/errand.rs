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

/// The port and the patience of Istio (docs/ISTIO.md, section 5).
const PROBE_PORT: u16 = 15002;
const PATIENCE: Duration = Duration::from_secs(5);

impl Default for Probe {
    fn default() -> Self {
        Self { port: Port::new(PROBE_PORT).unwrap_or(Port::MIN), patience: PATIENCE }
    }
}

impl InitArgs {
    /// How a validation is to be made.
    pub fn probe(&self) -> Probe {
        self.probe
    }

    /// What is to write the rules.
    pub fn tool(&self) -> Tool {
        self.tool
    }

    pub(super) fn probe_asked_for(&self) -> Result<Probe, InitArgsError> {
        let mut probe = Probe::default();
        if let Some(text) = self.setting(Setting::ProbePort) {
            probe.port = text.parse().map_err(|_| not_a("--iptables-probe-port", text, "a port"))?;
        }
        if let Some(text) = self.setting(Setting::ProbeTimeout) {
            let wanted = "a time like 5s or 500ms, of an hour at most";
            probe.patience = duration::parse(text).ok_or_else(|| not_a("--probe-timeout", text, wanted))?;
        }
        Ok(probe)
    }

    /// Native nftables beats a kind of iptables, as in Istio.
    pub(super) fn tool_asked_for(&self) -> Result<Tool, InitArgsError> {
        match self.setting(Setting::IptablesBinary) {
            _ if self.orders(Order::NativeNftables) => Ok(Tool::Nftables),
            None => Ok(Tool::Any),
            Some("nft") => Ok(Tool::Nftables),
            Some("legacy") => Ok(Tool::IptablesLegacy),
            Some(other) => Err(not_a("--force-iptables-binary", other, "legacy or nft")),
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

fn not_a(name: &'static str, value: &str, wanted: &'static str) -> InitArgsError {
    InitArgsError::NotA { name, value: value.to_owned(), wanted }
}
