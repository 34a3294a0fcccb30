//! What a runtime is told: the one place that writes stdout, and the one that knows CNI's codes.

use crate::backend::SelectError;
use crate::decide::Cause;
use crate::error::PluginError;
use crate::facts::FactsError;
use crate::families::FamiliesError;
use crate::network::NetworkError;
use crate::probe_cache::LearnError;
use crate::request::{RequestError, Verb};
use crate::version::{NEWEST, SUPPORTED, VersionError};
use gybe_netfilter::hint::Hint;
use serde_json::{Value, json};
use std::io::{self, Write};

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A person ran the plugin: who it is, on stderr.
    About,
    /// Success without a word.
    Nothing,
    /// Success with a result.
    Answer(Value),
    /// Failure.
    Failure(Failure),
}

/// CNI's error object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The version it is written in.
    pub version: String,
    /// CNI's number for it.
    pub code: u32,
    /// Our name for it, stable across versions: `GYBE-ADD-011`.
    pub id: String,
    /// What went wrong, beginning with verb and id: the kubelet shows this, and not the code.
    pub message: String,
    /// What would help; may be empty.
    pub details: String,
}

/// The kubelet puts both into one event and cuts long ones; the cause must not be what is cut.
const MOST: usize = 300;

/// So much of a long message stays before a hint: it begins with the cause, and goes on with details
/// that are in the log too. What would help is nowhere else.
const CAUSE: usize = 180;

/// CNI's code for "no ADD would succeed here".
const UNAVAILABLE: u32 = 50;

impl Reply {
    /// Tells that `verb` failed. `version` is what the configuration says, if it could be read.
    pub fn failure(verb: Option<Verb>, version: Option<&str>, fault: &PluginError) -> Self {
        let (number, code) = match known_as(fault) {
            // What is wrong with the node's configuration is CNI's 50 when the node is what was asked about.
            (number, 7) if verb == Some(Verb::Status) && !matches!(fault, PluginError::Request(_)) => {
                (number, UNAVAILABLE)
            }
            known => known,
        };
        let id = format!("GYBE-{}-{number:03}", verb.map_or("CNI", Verb::as_str));
        let who = verb.map_or(String::new(), |verb| format!(" {}", command(verb)));
        let message = format!("gybe-cni{who} {id}: {}", fault.chain());
        let room = MOST - message.chars().count().min(CAUSE);
        // A hint that does not fit is no help.
        let details = fault.hint().filter(|hint| hint.chars().count() <= room).unwrap_or_default();
        let message = cut(&message, MOST - details.chars().count());
        let spoken = version.filter(|version| SUPPORTED.contains(version)).unwrap_or(NEWEST);
        Self::Failure(Failure {
            version: spoken.to_owned(),
            code,
            id,
            message,
            details: details.into_owned(),
        })
    }

    /// Writes the answer where the runtime reads it, and gives the exit status.
    pub fn send(&self) -> i32 {
        let written = match self {
            Self::About => writeln!(io::stderr(), "{}", about()),
            Self::Nothing => Ok(()),
            Self::Answer(result) => say(result),
            Self::Failure(failure) => say(&failure.json()),
        };
        match (self, written) {
            (Self::Failure(_), _) => 1,
            // Nobody reads the result, so nobody can know that we succeeded.
            (_, Err(fault)) => {
                tracing::error!(%fault, "gybe-cni: the answer cannot be written");
                1
            }
            (_, Ok(())) => 0,
        }
    }
}

/// In one piece: a line that is formatted into stdout's buffer is looked through at every comma.
fn say(json: &Value) -> io::Result<()> {
    let mut line = serde_json::to_vec(json)?;
    line.push(b'\n');
    io::stdout().write_all(&line)
}

impl Failure {
    fn json(&self) -> Value {
        let mut object = json!({ "cniVersion": self.version, "code": self.code, "msg": self.message });
        if let (Some(object), false) = (object.as_object_mut(), self.details.is_empty()) {
            object.insert("details".to_owned(), self.details.as_str().into());
        }
        object
    }
}

fn about() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("CNI plugin gybe-cni {version}\nCNI protocol versions supported: {}", SUPPORTED.join(", "))
}

/// The name operators know a verb by in logs and events.
pub(crate) fn command(verb: Verb) -> &'static str {
    match verb {
        Verb::Add => "cmdAdd",
        Verb::Check => "cmdCheck",
        Verb::Del => "cmdDel",
        Verb::Gc => "cmdGC",
        Verb::Status => "cmdStatus",
        Verb::Version => "cmdVersion",
    }
}

/// Our number for a fault (docs/TROUBLESHOOTING.md) and CNI's code: 1 version, 4 environment, 5 I/O, 6 JSON,
/// 7 configuration, 8 namespace, 11 try again later, 50 not available, 999 anything else, as the incumbent has it.
fn known_as(fault: &PluginError) -> (u16, u32) {
    use PluginError as E;
    match fault {
        E::Request(RequestError::Missing(_)) => (1, 4),
        E::Request(RequestError::UnknownVerb(_)) => (2, 4),
        E::Stdin(_) => (3, 5),
        E::Request(RequestError::Network(NetworkError::Syntax(_) | NetworkError::Shape { .. })) => (4, 6),
        E::Request(RequestError::Network(NetworkError::NoName | NetworkError::Name(_))) => (5, 7),
        E::Request(RequestError::ContainerId(_)) => (6, 4),
        E::Request(RequestError::Interface(_)) => (7, 4),
        E::Version(VersionError::NotAVersion(_)) => (8, 6),
        E::Version(VersionError::Unsupported { .. } | VersionError::TooOldFor { .. }) => (8, 1),
        E::Conf(_) => (9, 7),
        E::Args(_) => (10, 999),
        E::Refused(Cause::Annotation(_)) => (11, 999),
        E::Refused(Cause::ProxyId { .. }) => (12, 999),
        E::Refused(Cause::Families(FamiliesError::NoAddress)) => (13, 999),
        E::Refused(Cause::Families(FamiliesError::Ipv6LeftAlone)) => (14, 999),
        E::Backend(fault) => known_backend(fault),
        E::Facts(fault) => known_facts(fault),
        E::Netns(_) => (20, 8),
        E::OwnNamespace(_) => (21, 8),
        E::Result(_) => (22, 999),
        E::Addresses(_) => (23, 999),
        E::Redirection(_) => (24, 999),
        E::Drifted(_) => (25, 999),
        E::Attachments(_) => (26, 999),
    }
}

/// The same for what is wrong with the backend.
fn known_backend(fault: &SelectError) -> (u16, u32) {
    match fault {
        SelectError::Programs { .. } => (15, 7),
        SelectError::Redirection(_) => (24, 999),
        SelectError::NoBackend(_) => (27, 50),
        SelectError::Unserved(_) => (28, 999),
        SelectError::Probe(LearnError::Busy(_)) => (29, 11),
        SelectError::Probe(_) => (30, 999),
        SelectError::Presence(_) => (31, 999),
    }
}

/// The same for what is wrong with the facts.
fn known_facts(fault: &FactsError) -> (u16, u32) {
    match fault {
        FactsError::NobodyToAsk => (16, 7),
        FactsError::Unknown(_) => (17, 11),
        FactsError::Another { .. } | FactsError::Contradicted { .. } => (18, 11),
        // Perhaps half written: the next try may find it whole.
        FactsError::Directory(_) => (19, 11),
        FactsError::Agent(_) => (32, 11),
        // Who is to be asked is the operator's word; whether they answer may change.
        FactsError::Kubeconfig(fault) if fault.is_configured_wrong() => (33, 7),
        FactsError::Kubeconfig(_) => (33, 11),
        FactsError::Several { first, .. } => known_facts(first),
    }
}

/// The first `most` characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
