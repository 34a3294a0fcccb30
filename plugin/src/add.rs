//! ADD: the pod's connections go through its proxy before its first process starts.
//!
//! Whatever can be refused is refused before the namespace is entered, so bad input changes nothing.

use crate::backend::forget_contradicted_findings;
use crate::conf::{PluginConf, unknown_keys};
use crate::decide::doubts;
use crate::error::PluginError;
use crate::families::ipv6_left_alone;
use crate::log::{CALL, brief, micros};
use crate::loopback;
use crate::reply::Reply;
use crate::request::Request;
use crate::result;
use crate::wanted::{self, Subject, Wanted};
use gybe_netfilter::policy::Families;
use gybe_netfilter::redirection::RuleVariant;
use std::path::Path;
use std::time::Instant;

pub(crate) fn add(request: &mut Request) -> Result<Reply, PluginError> {
    let before = request.network.take_prev_result();
    let answer = result::to_hand_on(before, request.network.version())?;
    let members = request.network.members();
    let conf = PluginConf::read(members)?;
    let unknown = unknown_keys(members);
    if !unknown.is_empty() {
        let keys = brief(&unknown.join(", "));
        tracing::warn!(keys, "gybe-cni cmdAdd: keys nobody knows in the configuration");
    }
    match wanted::wanted(request, &conf)? {
        Wanted::LeaveAlone(reason, pod) => {
            tracing::info!(target: CALL, pod, decision = "leave alone", reason = %reason, "gybe-cni cmdAdd");
        }
        Wanted::Redirect(subject) => redirect(*subject, &conf, request.netns.as_deref())?,
    }
    Ok(Reply::Answer(answer))
}

fn redirect(subject: Subject, conf: &PluginConf, netns: Option<&Path>) -> Result<(), PluginError> {
    let pod = subject.pod.to_string();
    for doubt in doubts(&subject.facts) {
        tracing::warn!(pod, doubt, "gybe-cni cmdAdd: the pod's manifest may not mean what it says");
    }
    let (facts_us, began) = (subject.facts_us, Instant::now());
    let done = subject.inside(conf, |redirection, backend, met| {
        loopback::settle(redirection, met.routes, met.addresses, netns.unwrap_or(Path::new("")));
        redirection.apply_over(met.routes, backend)
    });
    let done = done.inspect_err(|error| match error {
        PluginError::Redirection(error) => forget_contradicted_findings(error),
        _ => {}
    })?;
    for beside in &done.outcome.other_nat {
        tracing::warn!(pod, %beside, "gybe-cni cmdAdd: other owners' rules translate addresses here");
    }
    if done.variant == RuleVariant::WithoutZones {
        tracing::warn!(
            pod,
            "gybe-cni cmdAdd: this kernel has no conntrack zones, so DNS is captured without"
        );
    }
    let families = match done.families {
        Families::V4Only if ipv6_left_alone(done.families, &done.addresses) => "ipv4, ipv6 left alone",
        Families::V4Only => "ipv4",
        Families::V4AndV6 => "ipv4 and ipv6",
    };
    let (tool, rules_us) = (done.backend, micros(began));
    tracing::info!(target: CALL, pod, decision = "redirect", tool, families, facts_us, rules_us, "gybe-cni cmdAdd");
    Ok(())
}
