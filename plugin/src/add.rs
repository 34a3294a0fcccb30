//! ADD: redirects the pod's connections to its proxy before the pod's first process starts.
//!
//! Everything that can be refused is refused before the namespace is entered, so bad input changes nothing.

use crate::backend::forget_contradicted_findings;
use crate::conf::{PluginConf, SOCKET, unknown_keys};
use crate::decide::warnings;
use crate::error::PluginError;
use crate::facts::{self, AgentError};
use crate::families::ipv6_left_alone;
use crate::log::{CALL, micros, shorten};
use crate::loopback::wait_for_loopback_plugin;
use crate::reply::Reply;
use crate::request::Request;
use crate::result;
use crate::target::{self, CallTarget, TargetPod};
use gybe_netfilter::apply::redirection::RuleVariant;
use gybe_netfilter::model::policy::Families;
use std::net::IpAddr;
use std::time::Instant;

pub(crate) fn add(request: &mut Request) -> Result<Reply, PluginError> {
    let prev_result = request.network.take_prev_result();
    let result = result::for_reply(prev_result, request.network.version())?;
    let members = request.network.members();
    let conf = PluginConf::read(members)?;
    let unknown = unknown_keys(members);
    if !unknown.is_empty() {
        let keys = shorten(&unknown.join(", "));
        tracing::warn!(keys, "gybe-cni cmdAdd: unknown configuration keys");
    }
    match target::find(request, &conf)? {
        CallTarget::LeaveAlone { reason, pod } => {
            tracing::info!(target: CALL, pod, decision = "leave alone", reason = %reason, "gybe-cni cmdAdd");
        }
        CallTarget::Redirect(target) => redirect(*target, &conf, request)?,
    }
    Ok(Reply::Json(result))
}

fn redirect(mut target: TargetPod, conf: &PluginConf, request: &Request) -> Result<(), PluginError> {
    let pod = target.pod.to_string();
    for warning in warnings(&target.facts) {
        tracing::warn!(pod, doubt = warning, "gybe-cni cmdAdd: part of the pod's manifest has no effect");
    }
    let (facts_us, started) = (target.facts_us, Instant::now());
    let report = target.in_namespace(conf, |redirection, backend, network| {
        wait_for_loopback_plugin(redirection, network.rtnetlink, network.addresses, request);
        redirection.apply_over(network.rtnetlink, backend)
    });
    let report = report.inspect_err(|error| {
        if let PluginError::Redirection(error) = error {
            forget_contradicted_findings(error);
        }
    })?;
    for owner in &report.outcome.other_nat {
        tracing::warn!(pod, beside = %owner, "gybe-cni cmdAdd: other owners' rules translate addresses here");
    }
    if report.variant == RuleVariant::WithoutZones {
        tracing::warn!(
            pod,
            "gybe-cni cmdAdd: this kernel has no conntrack zones; DNS is captured without them"
        );
    }
    let families = match report.families {
        Families::V4Only if ipv6_left_alone(report.families, &report.addresses) => "ipv4, ipv6 left alone",
        Families::V4Only => "ipv4",
        Families::V4AndV6 => "ipv4 and ipv6",
    };
    let (tool, rules_us) = (report.backend.name(), micros(started));
    let decision = if hand_over(&target, &report.addresses, conf)? { "ambient" } else { "redirect" };
    tracing::info!(target: CALL, pod, decision, tool, families, facts_us, rules_us, "gybe-cni cmdAdd");
    Ok(())
}

/// Hands over an ambient pod to ztunnel, by the node agent, after its rules are written: until ztunnel listens in the
/// pod its connections are refused, and it has no process yet. Returns false for a pod with a sidecar. After an error
/// the rules stay; they are deleted with the namespace, and an ADD of the same one replaces them.
fn hand_over(target: &TargetPod, addresses: &[IpAddr], conf: &PluginConf) -> Result<bool, PluginError> {
    let Some((pod, netns)) = target.for_ztunnel() else { return Ok(false) };
    let pod = pod.clone().with_addresses(addresses.iter().copied().filter(|address| !is_local(*address)));
    // Only the agent knows that a pod is ambient.
    let socket = conf.facts.socket.clone().unwrap_or_else(|| SOCKET.into());
    facts::hand_over(&socket, &pod, netns, target.deadline)
        .map_err(|fault| PluginError::HandOver(AgentError { socket, fault }))?;
    Ok(true)
}

/// Reports whether the node reaches no pod at this address.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}
