//! The rules of a namespace as the kernel lists them, and the paths of connections through them.

mod delivery;
pub(crate) mod rules;

use crate::apply::backend::BackendError;
use crate::apply::redirection::RedirectionError;
use crate::compile::has_ambient_id;
use crate::inspect::ebpf::Programs;
use crate::inspect::live::delivery::Delivery;
use crate::inspect::live::rules::{Interface, NamespaceRules, location, of_ruleset, read};
use crate::inspect::walk::{self, Budget, Listeners, RuleAt, WalkResult};
use crate::kernel::routes::{Rtnetlink, ipsec_policies};
use crate::model::packet::{Owner, Packet};
use crate::model::policy::ambient::ZTUNNEL_MARK;
use crate::model::policy::{Policy, RedirectPolicy};
use crate::model::ruleset::Ruleset;

pub use crate::inspect::walk::Outcome;
use std::fmt;
use std::net::IpAddr;

/// Istio's user and group of the proxy, where no policy is given.
const PROXY: Owner = Owner { uid: 1337, gid: 1337 };
/// The user and group of ztunnel in Istio's chart.
const ZTUNNEL: Owner = Owner { uid: 0, gid: 1337 };
/// The budget for one connection, in steps.
const TRACED_WITHIN: usize = 10_000_000;
/// At most this many routes and routing rules are named.
const NAMED: usize = 20;
/// A user that is not the proxy.
const APPLICATION: u32 = 1000;
/// Where no policy is given.
pub(crate) const LISTENERS: Listeners =
    Listeners { proxy: PROXY, proxy_mark: 0, application: Owner { uid: APPLICATION, gid: APPLICATION } };
/// The same for an ambient pod.
const ZTUNNEL_LISTENERS: Listeners =
    Listeners { proxy: ZTUNNEL, proxy_mark: ZTUNNEL_MARK.value(), ..LISTENERS };

/// All rules at netfilter's hooks of a namespace, of every owner.
#[derive(Debug, Clone)]
pub struct LiveRules {
    pub(crate) rules: NamespaceRules,
    pub(crate) listeners: Listeners,
    /// `None` where only rules count.
    delivery: Option<Delivery>,
}

/// A rule that applied to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveStep {
    /// Hook and priority of the base chain, and the chain of the rule.
    pub place: String,
    /// The name of that chain.
    pub chain: String,
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveTrace {
    /// Its outcome.
    pub outcome: Outcome,
    /// The outcome of its first packet by the rules alone: without replies, and without regard to an obstacle.
    pub first: Outcome,
    /// The rule that decided the outcome, or on which it depends when it is unknown.
    pub decided_by: Option<LiveStep>,
    /// The rules that applied to its first packet, in order; the first thousand of them.
    pub steps: Vec<LiveStep>,
    /// The first packet's mark at the end.
    pub mark: u32,
    /// The conntrack zone chosen for it, if any.
    pub zone: Option<u16>,
    /// Two chains of one priority, when the outcome depends on their order and the kernel does not report it.
    pub order: Option<[String; 2]>,
    /// What keeps its packets from their destination, apart from rules, as a sentence.
    pub obstacle: Option<String>,
}

impl LiveTrace {
    /// The id of the deciding rule, when it is one of ours.
    pub fn rule(&self) -> Option<&str> {
        self.decided_by.as_ref()?.id.as_deref()
    }

    /// The path where the rules are not known: [`LiveRules::read`] failed.
    pub fn not_known() -> Self {
        Self::default()
    }
}

impl LiveRules {
    /// Reads the rules of the calling thread's namespace.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read() -> Result<Self, RedirectionError> {
        let mut rules = read()?;
        let mut routing = Rtnetlink::open()?.routing()?;
        // The kernel adds the local route of an IPv6 address some milliseconds later, or when no other host has it
        // (`addrconf_dad_completed`, net/ipv6/addrconf.c, v6.18).
        let own = rules.interfaces.iter().filter(|one| one.is_raised && one.name != "lo");
        let own = own.flat_map(|one| one.addresses.iter().filter(|address| address.is_ipv6()));
        own.for_each(|address| routing.add_local(*address));
        rules.opaque.extend(routing.not_evaluated.iter().cloned());
        match ipsec_policies() {
            Ok(0) => {}
            Ok(count) => rules.opaque.push(format!("{count} IPsec policies (ip xfrm policy)")),
            Err(why) => rules.opaque.push(format!("the IPsec policies, which cannot be listed: {why}")),
        }
        let refused = routing.refused.iter().take(NAMED);
        rules.notes.extend(refused.map(|(network, kind)| {
            format!("the kernel refuses connections to {network}, before any rule: route type {kind}")
        }));
        rules.routing = Some(routing);
        let delivery = Some(Delivery::read(&rules));
        Ok(Self { listeners: listeners_of(&rules), rules, delivery })
    }

    /// The rules of a ruleset, as the nft backend writes them, in a namespace without interfaces.
    ///
    /// # Errors
    /// When the nft backend cannot write them.
    pub fn of_ruleset(rules: &Ruleset) -> Result<Self, RedirectionError> {
        let rules = of_ruleset(rules).map_err(BackendError::from)?;
        Ok(Self { listeners: listeners_of(&rules), rules, delivery: None })
    }

    /// The rules of a ruleset in a namespace with the addresses of this one. Routes are not copied, and every address is
    /// local, so that a lost route does not change the desired outcome.
    ///
    /// # Errors
    /// As [`LiveRules::of_ruleset`].
    pub(crate) fn replaced_by(&self, rules: &Ruleset) -> Result<Self, RedirectionError> {
        let own = self.rules.interfaces.iter().flat_map(|one| &one.addresses);
        let own: Vec<IpAddr> = own.copied().collect();
        Ok(Self { listeners: self.listeners, ..Self::of_ruleset(rules)? }.with_interface("", &own))
    }

    /// These rules alone: nothing else decides.
    pub(crate) fn of(rules: NamespaceRules, listeners: Listeners) -> Self {
        Self { rules, listeners, delivery: None }
    }

    /// Sets the identity of the policy's proxy, which accepts redirected connections.
    #[must_use]
    pub fn with_proxy_of(mut self, policy: &RedirectPolicy) -> Self {
        let (uid, gid) = (policy.proxy_uids.first, policy.proxy_gids.first);
        self.listeners.proxy = Owner { uid, gid };
        self.listeners.proxy_mark = LISTENERS.proxy_mark;
        let another = |taken: Vec<u32>| (APPLICATION..).find(|id| !taken.contains(id)).unwrap_or(APPLICATION);
        let uid = another(policy.proxy_uids.all().into_iter().collect());
        let gid = another(policy.proxy_gids.all().into_iter().collect());
        self.listeners.application = Owner { uid, gid };
        self
    }

    /// Sets the identity and the mark of ztunnel, which accepts redirected connections of an ambient pod.
    #[must_use]
    pub fn with_ztunnel(mut self) -> Self {
        self.listeners = ZTUNNEL_LISTENERS;
        self
    }

    /// [`LiveRules::with_proxy_of`] or [`LiveRules::with_ztunnel`].
    #[must_use]
    pub fn with_listeners_of(self, policy: &Policy) -> Self {
        match policy {
            Policy::Sidecar(policy) => self.with_proxy_of(policy),
            Policy::Ambient(_) => self.with_ztunnel(),
        }
    }

    /// Adds an interface with these addresses, so that packets to them stay in the namespace.
    #[must_use]
    pub fn with_interface(mut self, name: &str, addresses: &[IpAddr]) -> Self {
        self.rules.interfaces.push(Interface {
            index: 0,
            name: name.to_owned(),
            is_raised: true,
            addresses: addresses.to_vec(),
        });
        let routing = self.rules.routing.iter_mut();
        routing.for_each(|routing| addresses.iter().for_each(|address| routing.add_local(*address)));
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

    /// Follows the connection that begins with `packet`.
    pub fn trace(&self, packet: &Packet) -> LiveTrace {
        let LivePath { mut walked, obstacle } = self.walked(packet, &Budget::of(TRACED_WITHIN));
        let mut obstacle = obstacle.map(str::to_owned);
        if let Some(what) = self.not_evaluated().first() {
            walked.outcome = Outcome::Unknown;
            obstacle = Some(format!("not evaluated: {what}"));
        }
        let order = walked.order.map(|(first, second)| [first, second].map(|at| self.chain_location(at)));
        LiveTrace {
            outcome: walked.outcome,
            first: walked.first,
            decided_by: walked.decided_by.map(|at| self.step(at)),
            steps: walked.steps.iter().map(|at| self.step(*at)).collect(),
            mark: walked.mark,
            zone: walked.zone,
            order,
            obstacle,
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
            chain: chain.map(|chain| chain.name.clone()).unwrap_or_default(),
            rule: rule.map_or_else(|| "policy drop".to_owned(), |rule| rule.text.clone()),
            id: rule.filter(|rule| rule.is_ours).and_then(|rule| rule.comment.clone()),
            is_ours: rule.is_some_and(|rule| rule.is_ours),
        }
    }

    /// Keeps our own rules only.
    pub(crate) fn ours_alone(&self) -> Self {
        Self::of(self.rules.ours_alone(), self.listeners)
    }

    /// Keeps other owners' rules only.
    pub(crate) fn without_ours(&self) -> Self {
        Self { rules: self.rules.without_ours(), ..self.clone() }
    }

    /// Follows a connection within a budget that several share.
    pub(crate) fn walked(&self, packet: &Packet, budget: &Budget) -> LivePath<'_> {
        let walked = walk::walk(&self.rules, packet, self.listeners, budget);
        let obstacle =
            self.delivery.as_ref().and_then(|delivery| delivery.obstacle(&self.rules, packet, &walked));
        let outcome = obstacle.map_or(walked.outcome, |obstacle| obstacle.outcome);
        LivePath { walked: WalkResult { outcome, ..walked }, obstacle: obstacle.map(|obstacle| obstacle.why) }
    }
}

/// The listeners that our own rules lead to.
fn listeners_of(ns: &NamespaceRules) -> Listeners {
    let ours = ns.chains.iter().flat_map(|chain| &chain.rules).filter(|rule| rule.is_ours);
    let is_ambient = has_ambient_id(ours.filter_map(|rule| rule.comment.as_deref()));
    if is_ambient { ZTUNNEL_LISTENERS } else { LISTENERS }
}

/// The path of a connection, and what keeps its packets from their destination apart from rules.
pub(crate) struct LivePath<'l> {
    pub(crate) walked: WalkResult,
    pub(crate) obstacle: Option<&'l str>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::{compile, compile_ambient};
    use crate::model::policy::{AmbientPolicy, Families};

    #[test]
    fn without_a_policy_our_own_rules_show_whose_listeners_they_lead_to() {
        let (sidecar, ambient) = (RedirectPolicy::injected(Families::V4Only), AmbientPolicy::default());
        let read = |rules| LiveRules::of_ruleset(&rules).unwrap();
        let mark = |rules: &LiveRules| rules.listeners.proxy_mark;
        assert_eq!(mark(&read(compile(&sidecar))), 0);
        let live = read(compile_ambient(&ambient));
        assert_eq!([mark(&live), mark(&live.ours_alone())], [0x539, 0x539]);
        assert_eq!(mark(&live.with_proxy_of(&sidecar)), 0);
    }
}
