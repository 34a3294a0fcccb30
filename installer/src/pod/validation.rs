//! Whether a pod's rules redirect, found out as Istio does (docs/ISTIO.md, section 5): a
//! connection of the proxy's user to a port where nobody listens must arrive at the proxy's ports.
//!
//! Writes no rule and needs no privilege but to be the proxy's user. What the outcome means to a
//! person stands in `report`.

mod call;
mod ears;
mod holder;
mod report;

pub use holder::Holder;

use crate::pod::init_args::Probe;
use crate::testnet::identity::act_as;
use call::{Call, CallEnd};
use ears::Ears;
use gybe_netfilter::compile::{PASSTHROUGH_V4, PASSTHROUGH_V6};
use gybe_netfilter::policy::RedirectPolicy;
use gybe_netfilter::ruleset::Family;
use gybe_netfilter::trace::Owner;
use nix::errno::Errno;
use nix::unistd::{getegid, geteuid};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use std::{io, panic, thread};

/// A call each second, as Istio makes them.
const BETWEEN_CALLS: Duration = Duration::from_secs(1);

/// What is called, by whom, and where the call must arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    target: SocketAddr,
    source: IpAddr,
    listeners: BTreeSet<SocketAddr>,
    uid: u32,
    patience: Duration,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The call arrived here.
    Redirected(SocketAddr),
    /// It did not, in the time there was.
    NotRedirected(Evidence),
}

/// What was seen instead of an arrival.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Whose connections were made.
    uid: u32,
    /// How the calls ended, and how many.
    calls: BTreeMap<CallEnd, u32>,
    /// Who listens where the calls went, if somebody does.
    answers: Option<Holder>,
    /// Is the called address the pod's own?
    target: Place,
    /// Where nothing could have arrived, since somebody else listens there.
    taken: BTreeMap<SocketAddr, Option<Holder>>,
    /// Other people's connections: where they arrived, and where they were to go.
    strays: Vec<Stray>,
}

/// Where the called address is: `127.0.0.6` is always here, `::6` where rules for IPv6 are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Here,
    Elsewhere,
}

/// A connection that arrived and is no call of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stray {
    at: SocketAddr,
    from: SocketAddr,
    meant_for: Option<SocketAddr>,
}

type Outcome = (Option<SocketAddr>, Evidence, Vec<SocketAddr>);

/// Why it cannot be found out.
#[derive(Debug, thiserror::Error)]
pub enum ValidationError {
    /// A port could not be listened on, and it is not that somebody else does.
    #[error("cannot listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: Errno,
    },
    /// The kernel would not wait for us.
    #[error("cannot wait for connections")]
    Wait(#[source] Errno),
    /// No thread to be another user with.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

impl Check {
    /// The check for a pod whose first address is of this family.
    pub fn of(policy: &RedirectPolicy, probe: Probe, family: Family) -> Self {
        let (here, nobody): (IpAddr, IpAddr) = match family {
            Family::V4 => (Ipv4Addr::LOCALHOST.into(), PASSTHROUGH_V4.into()),
            Family::V6 => (Ipv6Addr::LOCALHOST.into(), PASSTHROUGH_V6.into()),
        };
        let ports = [policy.outbound_port, policy.inbound_port];
        Self {
            target: SocketAddr::new(nobody, probe.port.get()),
            source: here,
            listeners: ports.map(|port| SocketAddr::new(here, port.get())).into(),
            uid: policy.proxy_uids.first,
            patience: probe.patience,
        }
    }

    /// Calls until a call arrives, or the time is over.
    ///
    /// # Errors
    /// When it cannot be found out.
    pub fn make(&self) -> Result<Verdict, ValidationError> {
        let outcome = thread::scope(|scope| {
            // A thread of its own, because one who acts as somebody else never goes back.
            let errand = thread::Builder::new().name("validation".into());
            let errand = errand.spawn_scoped(scope, || self.call_and_listen());
            let errand = errand.map_err(ValidationError::Thread)?;
            errand.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        });
        let (arrived, mut evidence, taken) = outcome?;
        if let Some(at) = arrived {
            return Ok(Verdict::Redirected(at));
        }
        // Here, since whose socket it is shows itself to root and not to the proxy's user.
        evidence.taken = taken.into_iter().map(|at| (at, Holder::of(at))).collect();
        evidence.answers = Holder::of(self.target);
        evidence.target = Place::of(self.target.ip());
        Ok(Verdict::NotRedirected(evidence))
    }

    /// Where a call arrived, what was seen, and where nothing could arrive.
    fn call_and_listen(&self) -> Result<Outcome, ValidationError> {
        let mut evidence = Evidence { uid: self.act_as_the_proxy(), ..Evidence::default() };
        let (ears, taken) = Ears::open(&self.listeners)?;
        // With nothing to listen on there is nothing to wait for.
        let arrived = if ears.is_empty() { Ok(None) } else { self.watch(&ears, &mut evidence) };
        Ok((arrived.map_err(ValidationError::Wait)?, evidence, taken))
    }

    /// The user whose sockets this thread makes from now on. Where it may not become the proxy's,
    /// it stays who it is: the outcome tells.
    fn act_as_the_proxy(&self) -> u32 {
        let own = Owner { uid: geteuid().as_raw(), gid: getegid().as_raw() };
        let proxy = Owner { uid: self.uid, ..own };
        if own.uid == self.uid || act_as(proxy).is_ok() { self.uid } else { own.uid }
    }

    fn watch(&self, ears: &Ears, evidence: &mut Evidence) -> nix::Result<Option<SocketAddr>> {
        let end = Instant::now() + self.patience;
        loop {
            let next = end.min(Instant::now() + BETWEEN_CALLS);
            let mut call = Call::begin(self.source, self.target);
            let arrived = ears.hear(&mut call, next, |stray| match stray.meant_for {
                Some(address) if address.port() == self.target.port() => true,
                _ => {
                    evidence.remember(stray);
                    false
                }
            })?;
            *evidence.calls.entry(call.end()).or_default() += 1;
            if arrived.is_some() || Instant::now() >= end {
                return Ok(arrived);
            }
        }
    }
}

impl Place {
    /// Only an address of this namespace can be bound to.
    fn of(address: IpAddr) -> Self {
        match TcpListener::bind((address, 0)) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Self::Elsewhere,
            _ => Self::Here,
        }
    }
}

impl Evidence {
    /// A few are enough to see what goes on.
    fn remember(&mut self, stray: Stray) {
        if self.strays.len() < 5 {
            self.strays.push(stray);
        }
    }
}
