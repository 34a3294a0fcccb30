//! The replies to a runtime: the only module that writes stdout, and the only map from errors to error
//! numbers and CNI codes.

use crate::backend::SelectError;
use crate::decide::PodRefusal;
use crate::error::PluginError;
use crate::facts::ambient::HandOverCause;
use crate::facts::{AgentError, AgentFault, FactsError};
use crate::families::FamiliesError;
use crate::network_conf::NetworkConfError;
use crate::probe_cache::ProbeCacheError;
use crate::request::{RequestError, Verb};
use crate::version::{NEWEST, SUPPORTED, VersionError};
use gybe_netfilter::model::Hint;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

/// The reply to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The plugin's name and versions on stderr, for a person who ran it without `CNI_COMMAND`.
    About,
    /// Success without output.
    Empty,
    /// Success with a result.
    Json(Value),
    /// Failure.
    Error(ErrorReply),
}

/// CNI's error object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    /// `cniVersion`.
    pub version: String,
    /// CNI's code.
    pub code: u32,
    /// Gybe's id of the error, stable across versions: `GYBE-ADD-011`.
    pub id: String,
    /// What failed, beginning with verb and id: the kubelet shows this, and not the code.
    pub message: String,
    /// The hint; may be empty.
    pub details: String,
}

/// The most characters of message and details together: the kubelet puts both into one event and truncates
/// long ones.
const MAX_EVENT: usize = 300;

/// A longer message is truncated to so many characters to make room for a hint. It begins with the cause;
/// the details that follow are in the log too, and the hint is nowhere else.
const MIN_MESSAGE: usize = 180;

/// CNI's code for "no ADD would succeed here".
const UNAVAILABLE: u32 = 50;

impl Reply {
    /// Returns the reply for an error of `verb`. `version` is `cniVersion`, if it could be read.
    pub fn error(verb: Option<Verb>, version: Option<&str>, error: &PluginError) -> Self {
        let (number, code) = match number_and_code(error) {
            // STATUS reports a wrong configuration of the node as CNI's 50.
            (number, 7) if verb == Some(Verb::Status) && !matches!(error, PluginError::Request(_)) => {
                (number, UNAVAILABLE)
            }
            other => other,
        };
        let id = format!("GYBE-{}-{number:03}", verb.map_or("CNI", Verb::as_str));
        let verb = verb.map_or(String::new(), |verb| format!(" {}", command(verb)));
        let message = format!("gybe-cni{verb} {id}: {}", error.chain());
        let room = MAX_EVENT - message.chars().count().min(MIN_MESSAGE);
        // A truncated hint is worse than none.
        let details = error.hint().filter(|hint| hint.chars().count() <= room).unwrap_or_default();
        let message = truncate(&message, MAX_EVENT - details.chars().count());
        let version = version.filter(|version| SUPPORTED.contains(version)).unwrap_or(NEWEST);
        Self::Error(ErrorReply {
            version: version.to_owned(),
            code,
            id,
            message,
            details: details.into_owned(),
        })
    }

    /// Writes the reply, and returns the exit status.
    pub fn send(&self) -> ExitCode {
        let written = match self {
            Self::About => writeln!(io::stderr(), "{}", about()),
            Self::Empty => Ok(()),
            Self::Json(result) => write(result),
            Self::Error(error) => write(&error.json()),
        };
        match (self, written) {
            (Self::Error(_), _) => ExitCode::FAILURE,
            // A runtime that cannot read the result must not take the call for a success.
            (_, Err(error)) => {
                tracing::error!(%error, "gybe-cni: cannot write the reply");
                ExitCode::FAILURE
            }
            (_, Ok(())) => ExitCode::SUCCESS,
        }
    }
}

/// Writes one line in one piece: formatting into stdout's line buffer searches each fragment for a line feed.
fn write(json: &Value) -> io::Result<()> {
    let mut line = serde_json::to_vec(json)?;
    line.push(b'\n');
    io::stdout().write_all(&line)
}

impl ErrorReply {
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

/// Returns the verb as logs and events have it, like the incumbent's.
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

/// Returns the error number (docs/TROUBLESHOOTING.md) and CNI's code: 1 version, 4 environment, 5 I/O, 6 JSON,
/// 7 configuration, 8 namespace, 11 try again later, 50 not available, 999 anything else, as in the incumbent.
fn number_and_code(error: &PluginError) -> (u16, u32) {
    use PluginError as E;
    match error {
        E::Request(error) => request_number(error),
        E::Stdin(_) => (3, 5),
        E::Version(VersionError::NotAVersion(_)) => (8, 6),
        E::Version(VersionError::Unsupported { .. } | VersionError::TooOldFor { .. }) => (8, 1),
        E::Conf(_) => (9, 7),
        E::Args(_) => (10, 999),
        E::Refused(PodRefusal::Annotation(_)) => (11, 999),
        E::Refused(PodRefusal::ProxyId { .. }) => (12, 999),
        E::Refused(PodRefusal::Families(FamiliesError::NoAddress)) => (13, 999),
        E::Refused(PodRefusal::Families(FamiliesError::Ipv6LeftAlone)) => (14, 999),
        E::Backend(error) => backend_number(error),
        E::Facts(error) => facts_number(error),
        E::Netns(_) => (20, 8),
        E::OwnNamespace(_) => (21, 8),
        E::Result(_) => (22, 999),
        E::Addresses(_) => (23, 999),
        E::Redirection(_) => (24, 999),
        E::Drifted(_) => (25, 999),
        E::Attachments => (26, 999),
        E::HandOver(AgentError { fault, .. }) => hand_over_number(fault),
    }
}

/// Returns the number and code of a malformed call.
fn request_number(error: &RequestError) -> (u16, u32) {
    use NetworkConfError as N;
    match error {
        RequestError::Missing(_) => (1, 4),
        RequestError::UnknownVerb(_) => (2, 4),
        RequestError::Network(N::Syntax(_) | N::Shape { .. }) => (4, 6),
        RequestError::Network(N::NoName | N::Name(_)) => (5, 7),
        RequestError::ContainerId(_) => (6, 4),
        RequestError::Interface(_) => (7, 4),
    }
}

/// Returns the number and code of an error about the backend.
fn backend_number(error: &SelectError) -> (u16, u32) {
    match error {
        SelectError::Programs { .. } => (15, 7),
        SelectError::Redirection(_) => (24, 999),
        SelectError::NoBackend(_) => (27, 50),
        SelectError::UnsupportedPolicy(_) => (28, 999),
        SelectError::Probe(ProbeCacheError::Busy(_)) => (29, 11),
        SelectError::Probe(_) => (30, 999),
        SelectError::Presence(_) => (31, 999),
    }
}

/// Returns the number and code of an error about an ambient pod's way to ztunnel.
fn hand_over_number(fault: &AgentFault) -> (u16, u32) {
    let cause = match fault {
        AgentFault::HandOver(fault) => fault.cause,
        AgentFault::Timeout => HandOverCause::NoAnswer,
        _ => HandOverCause::Other,
    };
    match cause {
        HandOverCause::NotConnected => (34, 11),
        HandOverCause::Refused => (35, 11),
        HandOverCause::NoAnswer => (36, 11),
        HandOverCause::Other => (32, 11),
    }
}

/// Returns the number and code of an error about the facts.
fn facts_number(error: &FactsError) -> (u16, u32) {
    match error {
        FactsError::NoSource => (16, 7),
        FactsError::Unknown(_) => (17, 11),
        FactsError::OtherPod { .. } | FactsError::Contradicted { .. } | FactsError::WithoutUid(_) => (18, 11),
        // The file may be half written; the next attempt may find it complete.
        FactsError::Directory(_) | FactsError::Agent(AgentError { fault: AgentFault::Manifest(_), .. }) => {
            (19, 11)
        }
        FactsError::Agent(_) => (32, 11),
        FactsError::Ambient | FactsError::AmbientPod(_) => (37, 11),
        // A wrong configuration stays wrong; an API server that does not answer may answer later.
        FactsError::Kubeconfig(error) if error.is_configured_wrong() => (33, 7),
        FactsError::Kubeconfig(_) => (33, 11),
        FactsError::Several { first, .. } => facts_number(first),
    }
}

/// Returns the first `max` characters.
fn truncate(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
