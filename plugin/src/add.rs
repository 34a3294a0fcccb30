//! ADD: redirects the pod's connections to its proxy before the pod's first process starts.
//!
//! Everything that can be refused is refused before the namespace is entered, so bad input changes nothing.

use crate::backend::forget_contradicted_findings;
use crate::conf::{PluginConf, unknown_keys};
use crate::decide::warnings;
use crate::error::PluginError;
use crate::facts::ambient::HandOverBy;
use crate::facts::{self, AgentError, FactsError};
use crate::families::{ipv6_left_alone, is_usable};
use crate::log::{CALL, micros, shorten};
use crate::loopback::wait_for_loopback_plugin;
use crate::reply::Reply;
use crate::request::Request;
use crate::result;
use crate::target::{self, AmbientTarget, CallTarget, TargetPod};
use gybe_netfilter::apply::redirection::RuleVariant;
use gybe_netfilter::model::policy::Families;
use std::net::IpAddr;
use std::os::fd::AsFd;
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

fn redirect(target: TargetPod, conf: &PluginConf, request: &Request) -> Result<(), PluginError> {
    let pod = target.pod.to_string();
    for warning in warnings(&target.facts) {
        tracing::warn!(pod, doubt = warning, "gybe-cni cmdAdd: part of the pod's manifest has no effect");
    }
    let (facts_us, deadline, started) = (target.facts_us, target.deadline, Instant::now());
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
    let decision = match report.ambient {
        Some(ambient) => {
            hand_over(ambient, report.addresses, conf, deadline)?;
            "ambient"
        }
        None => "redirect",
    };
    tracing::info!(target: CALL, pod, decision, tool, families, facts_us, rules_us, "gybe-cni cmdAdd");
    Ok(())
}

/// Hands over an ambient pod to ztunnel, by the node agent, after its rules are written: until ztunnel listens in the
/// pod its connections are refused, and it has no process yet. After an error the rules stay; they are deleted with the
/// namespace, and an ADD of the same one replaces them.
fn hand_over(
    AmbientTarget { pod, netns }: AmbientTarget,
    addresses: Vec<IpAddr>,
    conf: &PluginConf,
    deadline: Instant,
) -> Result<(), PluginError> {
    // Only the agent knows that a pod is ambient.
    let Some(socket) = conf.facts.socket.clone() else { return Err(FactsError::Ambient.into()) };
    let pod = pod.with_addresses(addresses.into_iter().filter(is_usable));
    facts::hand_over(&socket, &pod, netns.as_fd(), HandOverBy::Add, deadline)
        .map_err(|fault| PluginError::HandOver(AgentError { socket, fault }))
}
