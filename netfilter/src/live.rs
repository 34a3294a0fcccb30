//! The rules of a namespace as the kernel lists them, and the paths of connections through them.

pub(crate) mod rules;

use crate::ebpf::Programs;
use crate::live::rules::{Interface, NamespaceRules, location, read};
use crate::policy::RedirectPolicy;
use crate::redirection::RedirectionError;
use crate::ruleset::Ruleset;
use crate::trace::{Owner, Packet};
use crate::walk::{self, Budget, Listeners, RuleAt, WalkResult};

pub use crate::live::rules::ruleset::NotOurRule;
pub use crate::walk::Outcome;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Istio's user and group of the proxy, where no policy is given.
const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
/// The budget for one connection.
const TRACED_WITHIN: Duration = Duration::from_secs(5);
/// A user that is not the proxy.
const APPLICATION: u32 = 1000;

/// All rules at netfilter's hooks of a namespace, of every owner.
#[derive(Debug, Clone)]
pub struct LiveRules {
    pub(crate) rules: NamespaceRules,
    pub(crate) listeners: Listeners,
}

/// A rule that applied to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveStep {
    /// Hook and priority of the base chain, and the chain of the rule.
    pub place: String,
    /// The rule on one line.
    pub rule: String,
    /// The id of a rule of ours, by its comment.
    pub id: Option<String>,
    /// Whether the rule is ours.
    pub is_ours: bool,
}

impl fmt::Display for LiveStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.rule)
    }
}

/// The path of a connection through the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveTrace {
    /// Its outcome.
    pub outcome: Outcome,
    /// The rule that decided the outcome, or on which it depends when it is unknown.
    pub decided_by: Option<LiveStep>,
    /// The rules that applied to its first packet, in order.
    pub steps: Vec<LiveStep>,
    /// The first packet's mark at the end.
    pub mark: u32,
    /// The conntrack zone chosen for it, if any.
    pub zone: Option<u16>,
    /// Two chains of one priority, when the outcome depends on their order and the kernel does not report it.
    pub order: Option<[String; 2]>,
}

impl LiveRules {
    /// Reads the rules of the calling thread's namespace.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read() -> Result<Self, RedirectionError> {
        let application = Owner { uid: APPLICATION, gid: APPLICATION };
        Ok(Self { rules: read()?, listeners: Listeners { proxy: PROXY, application } })
    }

    /// Sets the identity of the policy's proxy, which accepts redirected connections.
    #[must_use]
    pub fn with_proxy_of(mut self, policy: &RedirectPolicy) -> Self {
        let (uid, gid) = (policy.proxy_uids.first, policy.proxy_gids.first);
        self.listeners.proxy = Owner { uid, gid };
        let another = |taken: Vec<u32>| (APPLICATION..).find(|id| !taken.contains(id)).unwrap_or(APPLICATION);
        let uid = another(policy.proxy_uids.all().into_iter().collect());
        let gid = another(policy.proxy_gids.all().into_iter().collect());
        self.listeners.application = Owner { uid, gid };
        self
    }

    /// Adds addresses to those of the namespace.
    #[must_use]
    pub fn with_addresses(mut self, addresses: &[IpAddr]) -> Self {
        self.rules.interfaces.push(Interface {
            index: 0,
            name: String::new(),
            is_raised: true,
            addresses: addresses.to_vec(),
        });
        self
    }

    /// Adds the eBPF programs of the pod's cgroups, which the namespace does not show.
    #[must_use]
    pub fn with_programs(mut self, programs: Programs) -> Self {
        self.rules.add_programs(programs);
        self
    }

    /// eBPF programs that can only pass or drop, and programs that could not be read, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.rules.notes
    }

    /// What was not evaluated and may change the outcome of a connection, one sentence each.
    pub fn not_evaluated(&self) -> &[String] {
        &self.rules.opaque
    }

    /// Returns the rules of the nft backend as the ruleset that it wrote.
    ///
    /// # Errors
    /// When Gybe's table has a rule or chain that Gybe does not write.
    pub fn gybes_ruleset(&self) -> Result<Ruleset, NotOurRule> {
        rules::ruleset::ruleset(&self.rules)
    }

    /// Follows the connection that begins with `packet`.
    pub fn trace(&self, packet: &Packet) -> LiveTrace {
        let walked = walk::walk(&self.rules, packet, self.listeners, Budget::of(TRACED_WITHIN));
        let order = walked.order.map(|(first, second)| [first, second].map(|at| self.chain_location(at)));
        LiveTrace {
            outcome: walked.outcome,
            decided_by: walked.decided_by.map(|at| self.step(at)),
            steps: walked.steps.iter().map(|at| self.step(*at)).collect(),
            mark: walked.mark,
            zone: walked.zone,
            order,
        }
    }

    fn chain_location(&self, index: usize) -> String {
        self.rules.chains.get(index).map_or_else(|| "address translation".to_owned(), location)
    }

    pub(crate) fn step(&self, at: RuleAt) -> LiveStep {
        let chain = self.rules.chains.get(at.chain);
        let rule = chain.and_then(|chain| chain.rules.get(at.rule));
        let base = self.chain_location(at.base);
        let place = match chain {
            Some(chain) if at.chain != at.base => format!("{base}, chain {}", chain.name),
            _ => base,
        };
        LiveStep {
            place,
            rule: rule.map_or_else(|| "policy drop".to_owned(), |rule| rule.text.clone()),
            id: rule.filter(|rule| rule.is_ours).and_then(|rule| rule.comment.clone()),
            is_ours: rule.is_some_and(|rule| rule.is_ours),
        }
    }

    /// Keeps our own rules only.
    pub(crate) fn ours_alone(&self) -> Self {
        Self { rules: self.rules.ours_alone(), listeners: self.listeners }
    }

    /// Follows a connection within a budget that several share.
    pub(crate) fn walked(&self, packet: &Packet, budget: Budget) -> WalkResult {
        walk::walk(&self.rules, packet, self.listeners, budget)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untouched => f.write_str("keeps its destination"),
            Self::Redirected(port) => write!(f, "goes to port {port} of the pod"),
            Self::Intercepted(port) => write!(f, "is handed to the transparent port {port}"),
            Self::Translated(address) => write!(f, "goes to {address}"),
            Self::Dropped => f.write_str("is dropped"),
            Self::RepliesLost => f.write_str("gets no answer"),
            Self::Unknown => f.write_str("goes to a destination that is not known"),
        }
    }
}
