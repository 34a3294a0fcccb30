//! Tests whether a pod's rules redirect, as Istio does (docs/ISTIO.md, section 5): a connection of the proxy's
//! user to a port without a listener must arrive at the proxy's ports.
//!
//! Writes no rule and needs only the privilege to act as the proxy's user.

mod connection;
mod socket_owner;

pub use socket_owner::SocketOwner;
pub(super) use socket_owner::{Listeners, processes_with};

use crate::pod::init_args::ValidationOptions;
use connection::{AttemptEnd, ConnectAttempt, ProxyListeners};
use gybe_netfilter::kernel::sockets::act_as;
use gybe_netfilter::model::packet::Owner;
use gybe_netfilter::model::policy::RedirectPolicy;
use gybe_netfilter::model::policy::istio::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use gybe_netfilter::model::ruleset::Family;
use nix::errno::Errno;
use nix::unistd::{getegid, geteuid};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use std::{fmt, io, panic, thread};

/// Istio makes one attempt a second too.
const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// The test connection, its user, and where it must arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validation {
    target: SocketAddr,
    source: IpAddr,
    listeners: BTreeSet<SocketAddr>,
    uid: u32,
    timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValidationResult {
    /// A test connection arrived at this address.
    Redirected(SocketAddr),
    /// None arrived within the timeout.
    NotRedirected(Evidence),
    /// Another process listens on a port of the proxy, and may have accepted the connections, or there was none.
    NotDetermined(Evidence),
}

/// What happened to the test connections instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The user that made the attempts.
    uid: u32,
    /// How the attempts ended, and how many ended so.
    attempts: BTreeMap<AttemptEnd, u32>,
    /// The process that listens on the target, if one does.
    target_owner: Option<SocketOwner>,
    /// The target is no address of this namespace. 127.0.0.6 always is one; ::6 is added with the rules for IPv6.
    target_is_elsewhere: bool,
    /// Addresses of the proxy on which other processes listen.
    taken: BTreeMap<SocketAddr, Option<SocketOwner>>,
    /// Connections of other clients that arrived.
    others: Vec<ArrivedConnection>,
}

/// A connection that arrived at one of the proxy's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ArrivedConnection {
    at: SocketAddr,
    from: SocketAddr,
    meant_for: Option<SocketAddr>,
}

/// What the thread that acts as the proxy's user found.
struct TestConnection {
    arrived_at: Option<SocketAddr>,
    evidence: Evidence,
    taken: Vec<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum ValidationError {
    /// For another reason than a process that already listens there.
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: Errno },
    #[error("cannot wait for connections")]
    Wait(#[source] Errno),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

impl Validation {
    /// The validation of a pod whose first address is of this family.
    pub fn of(policy: &RedirectPolicy, options: ValidationOptions, family: Family) -> Self {
        let (loopback, passthrough): (IpAddr, IpAddr) = match family {
            Family::V4 => (Ipv4Addr::LOCALHOST.into(), PASSTHROUGH_V4.into()),
            Family::V6 => (Ipv6Addr::LOCALHOST.into(), PASSTHROUGH_V6.into()),
        };
        let ports = [policy.outbound_port, policy.inbound_port];
        Self {
            target: SocketAddr::new(passthrough, options.port.get()),
            source: loopback,
            listeners: ports.map(|port| SocketAddr::new(loopback, port.get())).into(),
            uid: policy.proxy_uids.first,
            timeout: options.timeout,
        }
    }

    /// Makes attempts until one arrives or the timeout has passed.
    pub fn run(&self) -> Result<ValidationResult, ValidationError> {
        let found = thread::scope(|scope| {
            // A thread that has changed its user cannot change back, so it ends afterwards.
            let thread = thread::Builder::new().name("validation".into());
            let thread = thread.spawn_scoped(scope, || self.connect_and_listen());
            let thread = thread.map_err(ValidationError::Thread)?;
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        });
        let TestConnection { arrived_at, mut evidence, taken } = found?;
        if let Some(at) = arrived_at {
            return Ok(ValidationResult::Redirected(at));
        }
        // On this thread: root can see a socket's process, the proxy's user cannot.
        evidence.taken = taken.into_iter().map(|at| (at, SocketOwner::of(at))).collect();
        evidence.target_owner = SocketOwner::of(self.target);
        evidence.target_is_elsewhere = is_elsewhere(self.target.ip());
        let may_be_accepted =
            evidence.attempts.is_empty() || evidence.attempts.contains_key(&AttemptEnd::Accepted);
        Ok(match !evidence.taken.is_empty() && may_be_accepted {
            true => ValidationResult::NotDetermined(evidence),
            false => ValidationResult::NotRedirected(evidence),
        })
    }

    fn connect_and_listen(&self) -> Result<TestConnection, ValidationError> {
        let mut evidence = Evidence { uid: self.act_as_the_proxy(), ..Evidence::default() };
        let (listeners, taken) = ProxyListeners::open(&self.listeners)?;
        // Without a listener no connection can arrive.
        let arrived_at =
            if listeners.is_empty() { Ok(None) } else { self.attempt(&listeners, &mut evidence) };
        Ok(TestConnection { arrived_at: arrived_at.map_err(ValidationError::Wait)?, evidence, taken })
    }

    /// Makes this thread create sockets as the proxy's user, and returns the user it has then: without the
    /// privilege it keeps its own, and the result reports that.
    fn act_as_the_proxy(&self) -> u32 {
        let own = Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let proxy = Owner { uid: self.uid, ..own };
        if own.uid == self.uid || act_as(proxy).is_ok() { self.uid } else { own.uid }
    }

    fn attempt(
        &self,
        listeners: &ProxyListeners,
        evidence: &mut Evidence,
    ) -> nix::Result<Option<SocketAddr>> {
        let deadline = Instant::now() + self.timeout;
        loop {
            let next = deadline.min(Instant::now() + BETWEEN_ATTEMPTS);
            let mut attempt = ConnectAttempt::start(self.source, self.target);
            let arrived =
                listeners.wait_for(&mut attempt, next, |connection| match connection.meant_for {
                    Some(address) if address.port() == self.target.port() => true,
                    _ => {
                        // A few examples are enough for an operator.
                        if evidence.others.len() < 5 {
                            evidence.others.push(connection);
                        }
                        false
                    }
                })?;
            *evidence.attempts.entry(attempt.end()).or_default() += 1;
            if arrived.is_some() || Instant::now() >= deadline {
                return Ok(arrived);
            }
        }
    }
}

/// Reports whether `address` does not belong to this namespace: a socket cannot bind it.
fn is_elsewhere(address: IpAddr) -> bool {
    let bound = TcpListener::bind((address, 0));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

impl ValidationResult {
    /// Returns one line; if the pod is not redirected, also the evidence and a hint.
    pub fn text(&self, validation: &Validation) -> String {
        match self {
            Self::Redirected(at) => {
                format!("redirected: a connection to {} arrived at {at}\n", validation.target)
            }
            Self::NotRedirected(evidence) | Self::NotDetermined(evidence) => {
                let lines = evidence.lines(validation);
                let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
                let (summary, hint) = (evidence.summary(validation), evidence.hint(validation));
                let state = match self {
                    Self::NotDetermined(_) => "not determined",
                    _ => "not redirected",
                };
                format!("{state}: {summary}\n{lines}hint: {hint}\n")
            }
        }
    }

    pub fn json(&self, validation: &Validation) -> Value {
        match self {
            Self::Redirected(at) => {
                json!({ "redirected": true, "target": validation.target, "arrived_at": at })
            }
            Self::NotRedirected(evidence) | Self::NotDetermined(evidence) => json!({
                "redirected": matches!(self, Self::NotRedirected(_)).then_some(false),
                "target": validation.target,
                "evidence": evidence.lines(validation),
                "hint": evidence.hint(validation),
            }),
        }
    }
}

impl Evidence {
    fn summary(&self, validation: &Validation) -> String {
        let ports: Vec<String> = validation.listeners.iter().map(ToString::to_string).collect();
        let (target, uid, ports) = (validation.target, self.uid, ports.join(" or "));
        if self.attempts.is_empty() {
            return format!("no connection to {target} could arrive: other processes listen on {ports}");
        }
        let seconds = validation.timeout.as_secs_f64();
        format!("no connection to {target} by uid {uid} arrived at {ports} within {seconds} s")
    }

    fn lines(&self, validation: &Validation) -> Vec<String> {
        let attempts = self.attempts.iter().map(|(end, times)| {
            let times = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
            self.attempt(*end, &times, validation)
        });
        let taken = self.taken.iter().map(|(at, owner)| match owner {
            Some(owner) => format!("cannot listen on {at}: {owner} listens there"),
            None => format!("cannot listen on {at}: a process listened there that is gone now"),
        });
        attempts.chain(taken).chain(self.others.iter().map(ToString::to_string)).collect()
    }

    fn attempt(&self, end: AttemptEnd, times: &str, validation: &Validation) -> String {
        let target = validation.target;
        match (end, &self.target_owner) {
            (AttemptEnd::Accepted, _) if !self.taken.is_empty() => {
                format!("accepted {times}: perhaps by a process whose port is named below")
            }
            (AttemptEnd::Accepted, Some(owner)) => {
                format!("accepted {times}: {target} was not redirected but reached {owner}")
            }
            (AttemptEnd::Accepted, None) => {
                format!(
                    "accepted {times}, although no process listens on {target}: a rule sends it to another port"
                )
            }
            (AttemptEnd::Refused, Some(owner)) => {
                format!(
                    "refused {times}, although {owner} listens: a rule sends it to a port without a listener"
                )
            }
            (AttemptEnd::Refused, None) => {
                format!("refused {times}: no process listens on {target}, so no rule sent it to these ports")
            }
            (AttemptEnd::Unanswered, _) => format!("unanswered {times}: a packet was dropped"),
            (AttemptEnd::Failed(errno), _) => {
                format!("not started {times}: {}", Errno::from_raw(errno).desc())
            }
        }
    }

    fn hint(&self, validation: &Validation) -> String {
        if self.uid != validation.uid {
            let (own, proxy) = (self.uid, validation.uid);
            return format!(
                "uid {own} may not act as the proxy's uid {proxy}, and only the proxy's connections to its own pod \
                 are redirected: run this as {proxy} (runAsUser), or with CAP_SETUID"
            );
        }
        if !self.taken.is_empty() {
            return "run the validation before the proxy starts: it works only while no process listens on the \
                    proxy's ports"
                .into();
        }
        if self.target_is_elsewhere {
            return format!(
                "address {} is not on lo, so this pod's IPv6 is not redirected: the rules for IPv6 add it",
                validation.target.ip()
            );
        }
        "the pod's rules are missing, or are for other ports or another user. If a CNI plugin was to write them, the \
         pod started before the plugin was ready: delete the pod, so that its controller creates a new one. If an \
         init container was to write them, its log has the reason. On the node, gybe inspect --netns \
         /proc/PID/ns/net lists the pod's rules"
            .into()
    }
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, uid, process } = self;
        match process {
            Some(process) => write!(f, "process {process} of uid {uid} at {address}"),
            None => write!(f, "a process in another container, of uid {uid}, at {address}"),
        }
    }
}

impl fmt::Display for ArrivedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, from, meant_for } = self;
        match meant_for {
            Some(address) => write!(f, "{at} received a connection from {from} to {address}"),
            None => write!(f, "{at} received a connection from {from} that conntrack does not know"),
        }
    }
}
