//! Compares the outcome of every kind of connection under the desired rules with the outcome under the rules of the
//! namespace.

use super::connections::{self, CLIENT_PORT, MOST};
use super::values::Values;
use crate::inspect::live::rules::{Statement, location};
use crate::inspect::live::{LivePath, LiveRules};
use crate::inspect::walk::{Budget, Outcome, RuleAt, WalkResult};
use crate::model::packet::{Direction, Packet};
use crate::model::ruleset::Transport;
use ipnet::IpNet;

/// How many sentences of one kind are reported.
const REPORTED: usize = 5;

/// The most sentences about connections.
const MOST_FINDINGS: usize = 2 * REPORTED;

/// The budget for one namespace, in steps: a pod that may write rules can make them long.
const WITHIN: usize = 50_000_000;

/// The result of the comparison, one sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Connections that should be redirected and are not.
    pub(super) not_redirected: Vec<String>,
    /// Outcomes that are not known.
    pub(super) unknown: Vec<String>,
    /// Other owners' rules that change no redirected connection.
    pub(super) notes: Vec<String>,
}

/// The connections to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compared {
    /// Those that the desired rules redirect or drop.
    Redirected,
    /// The same, where the desired rules are our own of the namespace. Rules of ours that redirect nothing are a finding.
    OursAlone,
    /// Those that the desired rules redirect or drop, and all whose replies are lost.
    Captured,
    /// All, except those whose replies are lost: whether they are depends on rules of more than one owner.
    All,
    /// All: where the rules of one owner take the place of another's.
    AllWithReplies,
}

/// Compares the outcomes of connections.
pub(super) fn compare(desired: &LiveRules, live: &LiveRules, which: Compared) -> Comparison {
    compare_within(&Budget::of(WITHIN), MOST_FINDINGS, desired, live, which)
}

/// Reports whether all connections certainly end as one of these desired rules has it. All are evaluated within one
/// budget.
pub(super) fn is_like_one_of(forms: &[LiveRules], live: &LiveRules) -> bool {
    let budget = Budget::of(WITHIN);
    forms.iter().any(|desired| {
        let compared = compare_within(&budget, 1, desired, live, Compared::AllWithReplies);
        compared.not_redirected.is_empty() && compared.unknown.is_empty()
    })
}

/// Stops after `findings` findings.
fn compare_within(
    budget: &Budget,
    findings: usize,
    desired: &LiveRules,
    live: &LiveRules,
    which: Compared,
) -> Comparison {
    let mut values = Values::default();
    values.add(&desired.rules, budget);
    values.add(&live.rules, budget);
    let unknown = [live.not_evaluated(), &values.not_evaluated].concat();
    let mut compared = Comparison { unknown, ..Comparison::default() };
    let mut redirects = false;
    let mut reported: Vec<(Outcome, Option<RuleAt>)> = Vec::new();
    // The desired rules have a budget of their own: other owners' rules do not shorten it.
    let for_desired = Budget::of(WITHIN);
    let tried = connections::each(&live.rules, &values, live.listeners, budget, |packet| {
        let expected = desired.walked(&packet, &for_desired).walked;
        redirects |= expected.redirects();
        if expected.first == Outcome::Unknown {
            let why = "it is not known where the desired rules send some connections";
            if !compared.unknown.iter().any(|reason| reason == why) {
                compared.unknown.push(why.to_owned());
            }
            return true;
        }
        let keeps = expected.first == Outcome::Untouched;
        if keeps && matches!(which, Compared::Redirected | Compared::OursAlone) {
            return true;
        }
        let LivePath { walked, obstacle } = live.walked(&packet, budget);
        if budget.is_spent() {
            return false;
        }
        if walked.outcome == expected.first && walked.has_mark_of(&expected) {
            return true;
        }
        let skips = match which {
            Compared::All => walked.outcome == Outcome::RepliesLost,
            Compared::Captured => keeps && walked.outcome != Outcome::RepliesLost,
            Compared::Redirected | Compared::OursAlone | Compared::AllWithReplies => false,
        };
        if skips {
            return true;
        }
        if let Some(why) = obstacle {
            let reasons = match walked.outcome {
                Outcome::Unknown => &mut compared.unknown,
                _ => &mut compared.not_redirected,
            };
            if !reasons.iter().any(|reason| reason == why) {
                reasons.push(why.to_owned());
            }
            return true;
        }
        // Our own rules can lose replies too: they take a packet from port 53 for a DNS reply.
        if walked.outcome == Outcome::RepliesLost && expected.outcome == walked.outcome {
            return true;
        }
        let finding = (walked.outcome, walked.decided_by);
        if reported.contains(&finding) {
            return true;
        }
        reported.push(finding);
        let sentence = sentence(live, &packet, expected.first, &walked);
        match walked.outcome {
            Outcome::Unknown => compared.unknown.push(sentence),
            _ => compared.not_redirected.push(sentence),
        }
        compared.not_redirected.len() + compared.unknown.len() < findings
    });
    let is_spent = budget.is_spent();
    if tried.is_none() && !is_spent {
        compared.unknown.push(format!(
            "the rules distinguish more than {MOST} kinds of connections, which are not all tried"
        ));
    }
    if is_spent {
        compared.unknown.push(format!("not evaluated within {WITHIN} steps"));
    }
    if !matches!(which, Compared::All | Compared::AllWithReplies) {
        compared.unknown.extend(local_without_address(desired, live, budget));
    }
    let all_tried = tried.is_some() && !is_spent && live.not_evaluated().is_empty();
    if which == Compared::OursAlone && all_tried && !redirects {
        compared.not_redirected.push("our rules redirect no connection".to_owned());
    }
    let is_reported = |at: &RuleAt| {
        let mut rules = reported.iter().filter_map(|(_, by)| *by);
        rules.any(|other| (other.chain, other.rule) == (at.chain, at.rule))
    };
    let harmless = |rule| format!("a rule of another owner changes no redirected connection: {rule}");
    compared.notes = rules_of_other_owners(live, is_reported).into_iter().map(harmless).collect();
    compared
}

/// The networks that routes deliver to the pod itself and that no interface has an address of: whether connections to
/// them should stay inside is not known.
fn local_without_address(desired: &LiveRules, live: &LiveRules, budget: &Budget) -> Option<String> {
    let is_redirected = |network: &IpNet| {
        let packet = connections::outbound_to(network.addr(), live.listeners);
        desired.walked(&packet, budget).walked.redirects()
    };
    let networks = live.rules.local_without_address().into_iter().filter(is_redirected);
    let names: Vec<String> = networks.take(REPORTED).map(|network| network.to_string()).collect();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!(
            "routes deliver {names} to the pod itself (ip route show type local): connections to it stay inside the \
             pod, past the proxy"
        )
    })
}

/// `TCP from user 1000 to 198.51.100.1:80 goes to port 9999 of the pod instead of 15001: hook ...`.
fn sentence(live: &LiveRules, packet: &Packet, desired: Outcome, walked: &WalkResult) -> String {
    let protocol = match packet.protocol {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    };
    let mut from = match (&packet.direction, packet.owner) {
        (Direction::Leaves { .. }, Some(owner)) => format!("from user {} group {}", owner.uid, owner.gid),
        (Direction::Leaves { by } | Direction::Arrives { by }, _) => {
            format!("from {} by {}", packet.source.ip(), by.as_str())
        }
    };
    if packet.source.port() != CLIENT_PORT {
        from.push_str(&format!(" from port {}", packet.source.port()));
    }
    if packet.mark != 0 {
        from.push_str(&format!(" with mark {:#x}", packet.mark));
    }
    let instead = match desired {
        Outcome::Redirected(port) => format!("port {port} of the proxy"),
        Outcome::Intercepted(port) => format!("the proxy's transparent port {port}"),
        Outcome::Dropped => "being dropped".to_owned(),
        Outcome::Untouched => "keeping its destination".to_owned(),
        other => other.to_string(),
    };
    let to = packet.destination;
    let by = match (walked.order, walked.decided_by) {
        (Some((first, second)), _) => {
            let locations = [first, second]
                .map(|index| live.rules.chains.get(index).map_or("address translation".to_owned(), location));
            format!("the kernel does not report which comes first: {}", locations.join(" or "))
        }
        (None, Some(at)) => live.step(at).to_string(),
        (None, None) => "no rule decides".to_owned(),
    };
    format!("{protocol} {from} to {to} {} instead of {instead}: {by}", walked.outcome)
}

/// The rules of other owners that act on packets, without those that are reported already.
fn rules_of_other_owners(live: &LiveRules, is_reported: impl Fn(&RuleAt) -> bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut more = 0_usize;
    for (index, chain) in live.rules.chains.iter().enumerate() {
        for (number, rule) in chain.rules.iter().enumerate() {
            let at = RuleAt { base: index, chain: index, rule: number };
            if rule.is_ours || !rule.statements.iter().any(Statement::acts) || is_reported(&at) {
                continue;
            }
            match all.len() < REPORTED {
                true => all.push(live.step(at).to_string()),
                false => more += 1,
            }
        }
    }
    if more > 0 {
        all.push(format!("{more} more"));
    }
    all
}

#[cfg(test)]
mod tests;
