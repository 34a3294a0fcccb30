//! The verdict on a pod's network namespace, as `gybe verify` and `gybe doctor` report it.

use crate::error::chain;
use crate::pod::cgroups::Cgroups;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::redirection::RedirectionError;
use gybe_netfilter::inspect::verdict::{
    Desired, NamespaceVerdict, RedirectionState, VerdictContext, judge_namespace,
};
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};
use gybe_netfilter::probe::Profile;
use gybe_netfilter::probe::choose::does;
use gybe_plugin::probe_cache::ProbeCache;
use std::error::Error;

/// Judges `netns`. A namespace that cannot be entered or read is `Unknown`, with the reason.
pub fn verdict_of(netns: &Netns, desired: Desired<'_>, cgroups: &Cgroups) -> NamespaceVerdict {
    let unknown = |what: &str, why: &dyn Error| {
        NamespaceVerdict::because(RedirectionState::Unknown, format!("{what}: {}", chain(why)))
    };
    match netns.run(|| judge(desired, None, cgroups)) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => unknown("the rules cannot be read", &error),
        Err(error) => unknown("the namespace cannot be entered", &error),
    }
}

/// Why a namespace without IPv6 has rules for it.
const IPV6_OFF: &str = "IPv6 is off (net.ipv6.conf.all.disable_ipv6), and was on when the rules were written";
/// Why a namespace has the rules of a policy for IPv4 alone.
const IPV4_ALONE: &str = "the rules are those of a policy for IPv4 alone: since they were written the pod got an IPv6 address, or \
     the policy or the setting ipv6 changed";
/// Instead of each rule, address and route that differs then: none of them was changed.
const IPV6_MISSING: &str = "the rules and routes for IPv6 are missing";

fn is_ipv6_off() -> bool {
    let switch = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    switch.is_ok_and(|value| value.trim() != "0")
}

/// Judges the namespace of the calling thread. With `only`, reads Gybe's rules with that backend alone.
pub(crate) fn judge(
    desired: Desired<'_>,
    only: Option<BackendKind>,
    cgroups: &Cgroups,
) -> Result<NamespaceVerdict, RedirectionError> {
    let report = ProbeCache::default().load();
    let is_whole =
        |kind: &BackendKind| report.as_ref().is_some_and(|report| does(report, *kind, Profile::Dns));
    let whole: Vec<BackendKind> =
        BackendKind::ALL.into_iter().filter(|kind| only == Some(*kind) || is_whole(kind)).collect();
    let context = VerdictContext { only, whole: &whole, programs: Some(&cgroups.programs()) };
    let mut verdict = match judge_namespace(desired, context) {
        Err(error) if error.is_incomplete() => {
            return Ok(NamespaceVerdict::because(RedirectionState::Unknown, chain(&error)));
        }
        judged => judged?,
    };
    let Desired::Policy(policy) = desired else { return Ok(verdict) };
    if verdict.differences.is_empty() {
        return Ok(verdict);
    }
    let differences_from = |families| {
        let policy = RedirectPolicy { families, ..policy.clone() };
        Ok::<_, RedirectionError>(judge_namespace(Desired::Policy(&policy), context)?.differences)
    };
    match policy.families {
        // A rule that was changed otherwise differs from those of both policies.
        Families::V4Only if is_ipv6_off() => {
            let other = differences_from(Families::V4AndV6)?;
            if !other.iter().any(|one| verdict.differences.contains(one)) {
                verdict.reasons.insert(0, IPV6_OFF.to_owned());
            }
        }
        Families::V4AndV6 if differences_from(Families::V4Only)?.is_empty() => {
            verdict.reasons.insert(0, IPV4_ALONE.to_owned());
            verdict.differences = vec![IPV6_MISSING.to_owned()];
        }
        Families::V4Only | Families::V4AndV6 => {}
    }
    Ok(verdict)
}
