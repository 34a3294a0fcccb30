//! What the process that repairs pods hands to the agent, which has access to the API server: one message for each
//! connection to a socket in `/run/gybe`. Before the agent deletes or labels the pod it requests a judgement over the
//! same connection.

use super::{RepairReport, Repaired};
use crate::host::settings::RepairMode;
use crate::sandboxes::Sandbox;
use gybe_plugin::args::{Namespace, PodName, PodRef};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::{Deserialize, Serialize};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

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
/// How long the agent may take until it requests a judgement, and until it has acted on it, in seconds.
const AGENT_TIMEOUT: i64 = 10;
/// The agent's request for a judgement.
pub(crate) const JUDGE: &[u8] = b"judge";

/// What was found about a running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepairFinding {
    /// Always with its uid.
    pub(crate) pod: PodRef,
    pub(crate) found: FindingKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FindingKind {
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
    /// The time since the sandbox's ADD ended; none if it is not known, or the sender is of an older version.
    pub(crate) since_add: Option<Duration>,
}

/// The judgement of all sandboxes of a pod, at the agent's request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodJudgement {
    /// When it began, as the time since the boot.
    pub(crate) at: Duration,
    pub(crate) verdict: PodVerdict,
}

/// Whether a pod may be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PodVerdict {
    /// Each of its sandboxes certainly should be redirected and is not.
    NotRedirected,
    /// It must be left alone.
    LeftAlone { why: String },
}

/// The message.
#[derive(Serialize, Deserialize)]
struct RepairMessage {
    namespace: String,
    name: String,
    uid: String,
    found: FindingKind,
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

impl RepairFinding {
    /// Returns what the agent has to know of a report; none if that is nothing.
    pub(super) fn of(report: &RepairReport, mode: RepairMode) -> Option<Self> {
        let pod = report.before.sandbox.pod.clone().filter(|pod| pod.uid.is_some())?;
        let found = match (&report.repair, mode) {
            (Some(Ok(repaired)), _) => {
                FindingKind::Repaired(RepairedPod::of(repaired, &report.before.sandbox))
            }
            (Some(Err(why)), _) => FindingKind::NotRepaired { why: short(why) },
            (None, RepairMode::Delete | RepairMode::Label) if report.is_to_be_repaired() => {
                FindingKind::NotRedirected { why: short(&report.before.line()) }
            }
            (None, _) => return None,
        };
        Some(Self { pod, found })
    }

    /// Sends it to the agent at the socket in `directory`, and answers its request for a judgement.
    ///
    /// # Errors
    /// When no agent accepts it in time.
    pub(super) fn send(
        &self,
        directory: &Path,
        judge: impl FnOnce(&PodRef) -> PodJudgement,
    ) -> Result<(), Errno> {
        let kind = SockType::SeqPacket;
        let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, sockopt::SendTimeout, &TimeVal::seconds(TIMEOUT))?;
        connect(fd.as_raw_fd(), &UnixAddr::new(&directory.join(REPAIR_SOCKET))?)?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(AGENT_TIMEOUT))?;
        let send = |message: &[u8]| send(fd.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL);
        send(self.encode().as_bytes())?;
        // The agent closes the connection when it has acted on the finding. An agent that ends, or takes longer, leaves
        // the pod alone.
        let mut request = [0; JUDGE.len() + 1];
        let length = recv(fd.as_raw_fd(), &mut request, MsgFlags::empty())?;
        if request.get(..length) == Some(JUDGE) && send(judge(&self.pod).encode().as_bytes()).is_ok() {
            // The agent has accepted the finding. It also logs when the judgement comes too late.
            let _ = recv(fd.as_raw_fd(), &mut request, MsgFlags::empty());
        }
        Ok(())
    }

    fn encode(&self) -> String {
        let message = RepairMessage {
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
        let RepairMessage { namespace, name, uid, found } =
            serde_json::from_slice(message).map_err(|_| FindingError::Shape)?;
        let is_uid = (1..=MAX_UID).contains(&uid.len())
            && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let names = Namespace::parse(&namespace).ok().zip(PodName::parse(&name).ok()).filter(|_| is_uid);
        let (namespace, name) = names.ok_or(FindingError::Pod)?;
        Ok(Self { pod: PodRef { namespace, name, uid: Some(uid) }, found })
    }
}

impl PodJudgement {
    fn encode(&self) -> String {
        let verdict = match &self.verdict {
            PodVerdict::NotRedirected => PodVerdict::NotRedirected,
            PodVerdict::LeftAlone { why } => PodVerdict::LeftAlone { why: short(why) },
        };
        serde_json::json!(Self { verdict, ..*self }).to_string()
    }

    /// Parses a message; none if it is no judgement.
    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        serde_json::from_slice(message).ok()
    }
}

fn short(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

impl RepairedPod {
    fn of(repaired: &Repaired, sandbox: &Sandbox) -> Self {
        let added = sandbox.ended_add.as_ref().and_then(|ended| ended.at);
        Self {
            backend: repaired.backend.to_owned(),
            open_connections: repaired.open_connections,
            captures_dns: repaired.captures_dns,
            drops_invalid: repaired.drops_invalid,
            since_add: added.and_then(|at| at.elapsed().ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::socket::{Backlog, bind, listen};
    use serde_json::{Value, json};
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;
    use std::thread;

    fn finding(found: FindingKind) -> RepairFinding {
        let pod =
            PodRef::from_args("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0;K8S_POD_UID=5f1d-6c1e").unwrap();
        RepairFinding { pod: pod.unwrap(), found }
    }

    #[test]
    fn a_finding_is_decoded_as_it_was_encoded_and_never_too_long() {
        // A control character has six bytes in JSON.
        let why: String = std::iter::repeat_n('\u{1}', MAX_TEXT).collect();
        for found in [
            FindingKind::Repaired(RepairedPod {
                backend: "nft".to_owned(),
                open_connections: 3,
                captures_dns: true,
                drops_invalid: false,
                since_add: Some(Duration::from_millis(1_500)),
            }),
            FindingKind::NotRepaired { why: why.clone() },
            FindingKind::NotRedirected { why },
        ] {
            let finding = finding(found);
            let message = finding.encode();
            assert!(message.len() <= MAX_FINDING, "{}", message.len());
            assert_eq!(RepairFinding::decode(message.as_bytes()), Ok(finding));
        }
    }

    #[test]
    fn a_message_that_names_no_pod_is_refused() {
        let message = json!({
            "namespace": "shop", "name": "cart-0", "uid": "5f1d-6c1e", "found": { "not-redirected": { "why": "x" } },
        });
        assert!(RepairFinding::decode(message.to_string().as_bytes()).is_ok());
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
            assert_eq!(RepairFinding::decode(message.to_string().as_bytes()), Err(error), "{key}");
        }
    }

    #[test]
    fn a_judgement_without_a_verdict_or_with_another_one_is_none() {
        let at = json!({ "secs": 7, "nanos": 0 });
        let left_alone = |why: String| PodVerdict::LeftAlone { why };
        for verdict in [PodVerdict::NotRedirected, left_alone("\u{1}".repeat(MAX_TEXT))] {
            let judgement = PodJudgement { at: Duration::from_secs(7), verdict };
            let message = judgement.encode();
            assert!(message.len() <= MAX_FINDING, "{}", message.len());
            assert_eq!(PodJudgement::decode(message.as_bytes()), Some(judgement));
        }
        for message in [
            json!({ "at": at }),
            json!({ "at": at, "verdict": null }),
            json!({ "at": at, "left_alone": null }),
            json!({ "at": at, "verdict": "left-alone" }),
            json!({ "at": at, "verdict": "x" }),
            json!({ "verdict": "not-redirected" }),
        ] {
            assert_eq!(PodJudgement::decode(message.to_string().as_bytes()), None, "{message}");
        }
    }

    #[test]
    fn only_the_agents_exact_request_is_answered_and_an_agent_that_fails_has_accepted_nothing() {
        let directory = TestDir::new("finding");
        let path = directory.join(REPAIR_SOCKET);
        let kind = SockType::SeqPacket;
        let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let listener = UnixListener::from(listener);
        let finding = finding(FindingKind::NotRedirected { why: "x".to_owned() });
        for (reads, request, is_judged, accepted) in [
            (true, &b"judge"[..], true, Ok(())),
            (true, b"other", false, Ok(())),
            (true, b"judges", false, Ok(())),
            (true, b"", false, Ok(())),
            (false, b"", false, Err(Errno::ECONNRESET)),
        ] {
            let mut judged = false;
            let sent = thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut connection, _) = listener.accept().unwrap();
                    poll(&mut [PollFd::new(connection.as_fd(), PollFlags::POLLIN)], PollTimeout::MAX)
                        .unwrap();
                    if reads {
                        assert!(connection.read(&mut [0; MAX_FINDING]).unwrap() > 0);
                        if !request.is_empty() {
                            connection.write_all(request).unwrap();
                        }
                        if is_judged {
                            assert!(connection.read(&mut [0; MAX_FINDING]).unwrap() > 0);
                        }
                    }
                });
                finding.send(directory.path(), |_| {
                    judged = true;
                    PodJudgement { at: Duration::ZERO, verdict: PodVerdict::NotRedirected }
                })
            });
            assert_eq!((judged, sent), (is_judged, accepted), "{request:?}");
        }
    }
}
