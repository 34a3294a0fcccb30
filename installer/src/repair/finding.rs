//! What the process that repairs pods hands to the agent, which has access to the API server: one message for each
//! connection to a socket in `/run/gybe`.

use super::{RepairReport, Repaired};
use crate::host::settings::RepairMode;
use gybe_plugin::args::{Namespace, PodName, PodRef};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The socket's name in `/run/gybe`.
pub(crate) const REPAIR_SOCKET: &str = "repair.sock";
/// The longest message in bytes.
pub(crate) const MAX_FINDING: usize = 4096;
/// The most characters of an error or a reason in a message, so that it is never too long: JSON needs up to six bytes
/// for a character.
const MAX_TEXT: usize = 500;
/// A uid has 36 characters; that of a static pod has 32.
const MAX_UID: usize = 64;
/// The deadline for connecting and for sending, in seconds.
const TIMEOUT: i64 = 1;

/// What was found about a running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Always with its uid.
    pub(crate) pod: PodRef,
    pub(crate) found: Found,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Found {
    /// It was not redirected, and its rules were written.
    Repaired(RepairedPod),
    /// It is not redirected, and its repair failed.
    NotRepaired { why: String },
    /// It is certainly not redirected, and the mode is not `repair`.
    NotRedirected { why: String },
}

/// What the repair of a pod changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepairedPod {
    pub(crate) backend: String,
    /// The number of TCP connections with other hosts that were open.
    pub(crate) open_connections: usize,
    /// Whether DNS queries go to the proxy now.
    pub(crate) captures_dns: bool,
    /// Whether packets that conntrack classifies as invalid are dropped now.
    pub(crate) drops_invalid: bool,
}

/// The message.
#[derive(Serialize, Deserialize)]
struct Message {
    namespace: String,
    name: String,
    uid: String,
    found: Found,
}

/// A message that no finding has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FindingError {
    #[error("the message has more than {MAX_FINDING} bytes")]
    TooLong,
    #[error("the message is not a finding")]
    Shape,
    #[error("the message names no pod")]
    Pod,
}

impl Finding {
    /// Returns what the agent has to know of a report; none if that is nothing.
    pub(super) fn of(report: &RepairReport, mode: RepairMode) -> Option<Self> {
        let pod = report.before.sandbox.pod.clone().filter(|pod| pod.uid.is_some())?;
        let short = |text: &str| text.chars().take(MAX_TEXT).collect();
        let found = match (&report.repair, mode) {
            (Some(Ok(repaired)), _) => Found::Repaired(repaired.into()),
            (Some(Err(why)), _) => Found::NotRepaired { why: short(why) },
            (None, RepairMode::Delete | RepairMode::Label) if report.is_to_be_repaired() => {
                Found::NotRedirected { why: short(&report.before.line()) }
            }
            (None, _) => return None,
        };
        Some(Self { pod, found })
    }

    /// Sends it to the agent at the socket in `directory`.
    ///
    /// # Errors
    /// When no agent accepts it in time.
    pub(super) fn send(&self, directory: &Path) -> Result<(), Errno> {
        let kind = SockType::SeqPacket;
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(TIMEOUT))?;
        connect(fd.as_raw_fd(), &UnixAddr::new(&directory.join(REPAIR_SOCKET))?)?;
        send(fd.as_raw_fd(), self.encode().as_bytes(), MsgFlags::MSG_NOSIGNAL).map(drop)
    }

    fn encode(&self) -> String {
        let message = Message {
            namespace: self.pod.namespace.to_string(),
            name: self.pod.name.to_string(),
            uid: self.pod.uid.clone().unwrap_or_default(),
            found: self.found.clone(),
        };
        serde_json::json!(message).to_string()
    }

    /// Parses a message.
    ///
    /// # Errors
    /// When it is not a finding about a pod.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, FindingError> {
        if message.len() > MAX_FINDING {
            return Err(FindingError::TooLong);
        }
        let Message { namespace, name, uid, found } =
            serde_json::from_slice(message).map_err(|_| FindingError::Shape)?;
        let is_uid = (1..=MAX_UID).contains(&uid.len())
            && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let names = Namespace::parse(&namespace).ok().zip(PodName::parse(&name).ok()).filter(|_| is_uid);
        let (namespace, name) = names.ok_or(FindingError::Pod)?;
        Ok(Self { pod: PodRef { namespace, name, uid: Some(uid) }, found })
    }
}

impl From<&Repaired> for RepairedPod {
    fn from(repaired: &Repaired) -> Self {
        Self {
            backend: repaired.backend.to_owned(),
            open_connections: repaired.open_connections,
            captures_dns: repaired.captures_dns,
            drops_invalid: repaired.drops_invalid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn finding(found: Found) -> Finding {
        let pod =
            PodRef::from_args("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=5f1d-6c1e").unwrap();
        Finding { pod: pod.unwrap(), found }
    }

    #[test]
    fn a_finding_is_decoded_as_it_was_encoded_and_never_too_long() {
        // A control character has six bytes in JSON.
        let why: String = std::iter::repeat_n('\u{1}', MAX_TEXT).collect();
        for found in [
            Found::Repaired(RepairedPod {
                backend: "nft".to_owned(),
                open_connections: 3,
                captures_dns: true,
                drops_invalid: false,
            }),
            Found::NotRepaired { why: why.clone() },
            Found::NotRedirected { why },
        ] {
            let finding = finding(found);
            let message = finding.encode();
            assert!(message.len() <= MAX_FINDING, "{}", message.len());
            assert_eq!(Finding::decode(message.as_bytes()), Ok(finding));
        }
    }

    #[test]
    fn a_message_that_names_no_pod_is_refused() {
        let message = json!({
            "namespace": "shop", "name": "cart-0", "uid": "5f1d-6c1e", "found": { "not-redirected": { "why": "x" } },
        });
        assert!(Finding::decode(message.to_string().as_bytes()).is_ok());
        for (key, value, error) in [
            ("namespace", json!("../shop"), FindingError::Pod),
            ("name", json!("cart/status"), FindingError::Pod),
            ("uid", json!(""), FindingError::Pod),
            ("uid", json!("a?b"), FindingError::Pod),
            ("uid", json!("5".repeat(65)), FindingError::Pod),
            ("uid", Value::Null, FindingError::Shape),
            ("found", json!({ "delete": {} }), FindingError::Shape),
            ("more", json!("x".repeat(MAX_FINDING)), FindingError::TooLong),
        ] {
            let mut message = message.clone();
            message[key] = value;
            assert_eq!(Finding::decode(message.to_string().as_bytes()), Err(error), "{key}");
        }
    }
}
