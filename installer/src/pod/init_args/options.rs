//! The options that are not part of the policy and have a value: those of the validation, and the backend.

use super::flags::Setting;
use super::{InitArgs, InitArgsError, RunOption, flags};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::model::policy::{Port, port};
use serde_json::Value;
use std::time::Duration;

/// The test connection of a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidationOptions {
    /// The port to connect to, on which no process listens.
    pub port: Port,
    /// How long a test connection may take to arrive.
    pub timeout: Duration,
}

/// Istio's defaults (docs/ISTIO.md, section 5).
const VALIDATION_PORT: u16 = 15002;
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(5);
const PROXY_USER: &str = "istio-proxy";

impl Default for ValidationOptions {
    fn default() -> Self {
        Self { port: Port::new(VALIDATION_PORT).unwrap_or(Port::MIN), timeout: VALIDATION_TIMEOUT }
    }
}

impl InitArgs {
    pub fn validation(&self) -> ValidationOptions {
        self.validation
    }

    /// The backend that writes the rules.
    pub fn backend(&self) -> BackendKind {
        self.backend
    }

    pub(super) fn read_validation(&self) -> Result<ValidationOptions, InitArgsError> {
        let mut options = ValidationOptions::default();
        if let Some(text) = self.setting(Setting::ProbePort) {
            // A leading zero means octal to Istio's parser.
            let port = port(&flags::number(text)).ok().and_then(Port::new);
            options.port = port.ok_or_else(|| invalid("--iptables-probe-port", text, "a port"))?;
        }
        if let Some(text) = self.setting(Setting::ProbeTimeout) {
            let expected = "a time like 5s or 500ms, of an hour at most";
            options.timeout = duration(text).ok_or_else(|| invalid("--probe-timeout", text, expected))?;
        }
        Ok(options)
    }

    /// --native-nftables overrides --force-iptables-binary, as in Istio.
    pub(super) fn read_backend(&self) -> Result<BackendKind, InitArgsError> {
        match self.setting(Setting::IptablesBinary) {
            _ if self.requests(RunOption::NativeNftables) => Ok(BackendKind::Nft),
            None | Some("nft") => Ok(BackendKind::Nft),
            Some("legacy") => Ok(BackendKind::IptablesLegacy),
            Some(other) => Err(invalid("--force-iptables-binary", other, "legacy or nft")),
        }
    }

    /// Returns the path in --network-namespace.
    pub fn network_namespace(&self) -> Option<&str> {
        self.setting(Setting::NetworkNamespace)
    }

    /// Returns the file that a dry run also writes the rules to.
    pub fn dry_run_file(&self) -> Option<&str> {
        self.setting(Setting::DryRunFile)
    }

    /// Returns the arguments with the uid of the proxy's user, if no argument names uids: Istio looks up `ENVOY_USER`,
    /// or `istio-proxy`, in the container's `/etc/passwd`, and uses 1337 if that has no such user.
    #[must_use]
    pub fn with_proxy_user(mut self, uid_of: impl FnOnce(&str) -> Option<u32>) -> Self {
        let is_given =
            self.policy.get("proxy_uids").and_then(Value::as_array).is_some_and(|it| !it.is_empty());
        if is_given {
            return self;
        }
        let configured = self.setting(Setting::ProxyUser).map(str::to_owned);
        match uid_of(configured.as_deref().unwrap_or(PROXY_USER)) {
            Some(uid) => self.set("proxy_uids", vec![uid.to_string()]),
            None => {
                if let Some(name) = configured {
                    let note = "cannot be found in this container's /etc/passwd; the proxy's uid is 1337, as in Istio";
                    self.notes.insert(format!("note: the user {name:?} in ENVOY_USER {note}"));
                }
            }
        }
        self
    }

    /// One note for each argument that has no effect.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.setting(Setting::IptablesBinary) == Some("nft") {
            let note = "note: --force-iptables-binary nft has no effect: gybe writes nftables rules without iptables-nft";
            notes.push(note.to_owned());
        }
        if self.requests(RunOption::Reconcile) {
            notes.push("note: --reconcile has no effect: gybe always replaces its own rules".to_owned());
        }
        notes.extend(self.notes.iter().cloned());
        notes
    }

    /// An empty value counts as absent.
    fn setting(&self, setting: Setting) -> Option<&str> {
        self.settings.get(&setting).map(String::as_str).filter(|text| !text.is_empty())
    }
}

fn invalid(name: &'static str, value: &str, expected: &'static str) -> InitArgsError {
    InitArgsError::Invalid { name, value: value.to_owned(), expected }
}

/// The longest accepted timeout; it also keeps `Instant` arithmetic from overflowing.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// Parses a duration as Go writes it (`5s`, `1m30s`, `1.5s`, `500ms`), without a sign.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.')?;
        let (unit, after) = split(after, |c| !c.is_ascii_digit() && c != '.')?;
        let seconds = number.parse::<f64>().ok()? * seconds(unit)?;
        sum = sum.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        rest = after;
    }
    (!text.is_empty() && sum <= LONGEST_TIMEOUT).then_some(sum)
}

/// Splits after the leading characters that `belongs` accepts; returns `None` if it does not accept the first one.
fn split(text: &str, belongs: impl Fn(char) -> bool) -> Option<(&str, &str)> {
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn seconds(unit: &str) -> Option<f64> {
    match unit {
        "ns" => Some(1e-9),
        "us" | "µs" | "μs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, milliseconds) in [
            ("5s", Some(5000)),
            ("1m30s", Some(90_000)),
            ("1.5s", Some(1500)),
            (".5s", Some(500)),
            ("500ms", Some(500)),
            ("0", Some(0)),
            ("1h", Some(3_600_000)),
            ("1h1s", None),
            ("", None),
            ("5", None),
            ("-5s", None),
            ("s", None),
            ("5 s", None),
            ("1.2.3s", None),
            ("5d", None),
            ("999999999999999999h", None),
        ] {
            assert_eq!(duration(text).map(|t| t.as_millis()), milliseconds, "{text}");
        }
    }
}
