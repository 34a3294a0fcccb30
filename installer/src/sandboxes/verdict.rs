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
    if let Desired::Policy(policy) = desired
        && policy.families == Families::V4Only
        && !verdict.differences.is_empty()
        && is_ipv6_off()
    {
        let policy = RedirectPolicy { families: Families::V4AndV6, ..policy.clone() };
        let with_ipv6 = judge_namespace(Desired::Policy(&policy), context)?;
        // A rule that was changed otherwise differs from those of both policies.
        if !with_ipv6.differences.iter().any(|difference| verdict.differences.contains(difference)) {
            verdict.reasons.insert(0, IPV6_OFF.to_owned());
        }
    }
    Ok(verdict)
}
