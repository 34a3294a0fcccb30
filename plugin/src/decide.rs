//! The decision about a pod: leave it alone, redirect it by a policy, or refuse it. Pure.
//!
//! Its inputs are the configuration, the pod's facts and its addresses. It combines the results of `gates`,
//! `annotations` and `families` with Istio's fixed values (docs/ISTIO.md, sections 1 and 4). `inputs` names the source
//! of each value.

pub mod inputs;

use crate::annotations::{self, AnnotationError, InboundPorts, Interception, TrafficAnnotations};
use crate::conf::{InboundDefault, PluginConf};
use crate::families::{self, FamiliesError};
use crate::gates::{self, Gate, InitContainer, LeaveAloneReason};
use crate::names::{
    AMBIENT_DNS, BOOLEANS, BYPASS_INBOUND, DNS_CAPTURE, INTERCEPTION_MODE, INVALID_DROP, MODE, STATUS,
    unknown,
};
use crate::pod::{Ambient, Container, PROXY, PodFacts, parse_bool};
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::istio::{
    INBOUND_PORT, OUTBOUND_PORT, PROXY_ID, TPROXY_MARK, TPROXY_TABLE, TUNNEL_PORT,
};
use gybe_netfilter::model::policy::{
    AmbientPolicy, Dns, Families, Groups, Inbound, InvalidPackets, LoopbackCidr, Mode, Outbound, Owners,
    PortSet, RedirectPolicy,
};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// The decision about a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one per call, and it is taken apart at once")]
pub enum Decision {
    /// Nothing is done to the pod.
    LeaveAlone(LeaveAloneReason),
    /// The pod's traffic is redirected to its sidecar by this policy.
    Redirect(RedirectPolicy),
    /// The pod's traffic is redirected to the node's ztunnel by this policy.
    Ambient(AmbientPolicy),
    /// The pod must not start as it is.
    Refuse(PodRefusal),
}

/// Why a pod must not start as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PodRefusal {
    /// An annotation is invalid.
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    /// The proxy's user or group is not an id.
    #[error("istio-proxy's securityContext.{field} is {value}, which must be from 0 to {MAX_ID}")]
    ProxyId {
        /// `runAsUser` or `runAsGroup`.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// The address families cannot be chosen.
    #[error(transparent)]
    Families(#[from] FamiliesError),
}

impl Hint for PodRefusal {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Annotation(_) => Some("correct the annotation in the pod's template".into()),
            Self::ProxyId { .. } => Some("leave it out to run the proxy as 1337".into()),
            Self::Families(error) => error.hint(),
        }
    }
}

/// A pod's policy without the address families, which depend on the addresses in its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDraft {
    traffic: TrafficAnnotations,
    inbound: Inbound,
    uid: u32,
    gid: u32,
    dns: Dns,
    invalid: InvalidPackets,
}

/// The decision about a pod before its namespace is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one per call, and it is taken apart at once")]
pub enum PreliminaryDecision {
    /// Nothing is done to the pod, whatever its addresses are.
    LeaveAlone(LeaveAloneReason),
    /// The pod is redirected, unless `families` refuses its addresses.
    Redirect(PolicyDraft),
    /// The pod is ambient.
    Ambient(AmbientPolicy),
    /// The pod must not start as it is.
    Refuse(PodRefusal),
}

/// The greatest uid or gid: the kernel reserves `(uid_t)-1` for "no id".
const MAX_ID: u32 = u32::MAX - 1;

const TPROXY: Mode = Mode::Tproxy { mark: TPROXY_MARK, route_table: TPROXY_TABLE };

/// Decides about a pod. `addresses` are those of its namespace, in the kernel's order.
pub fn decide(conf: &PluginConf, pod: &PodFacts, addresses: &[IpAddr], init: InitContainer) -> Decision {
    match decide_without_addresses(conf, pod, init) {
        PreliminaryDecision::LeaveAlone(reason) => Decision::LeaveAlone(reason),
        PreliminaryDecision::Refuse(refusal) => Decision::Refuse(refusal),
        PreliminaryDecision::Ambient(policy) => Decision::Ambient(policy),
        PreliminaryDecision::Redirect(draft) => {
            match families::choose(conf.ipv6, families::stack(pod), addresses) {
                Ok(families) => Decision::Redirect(draft.complete(families)),
                Err(error) => Decision::Refuse(error.into()),
            }
        }
    }
}

/// Decides as far as possible without the pod's addresses.
pub fn decide_without_addresses(
    conf: &PluginConf,
    pod: &PodFacts,
    init: InitContainer,
) -> PreliminaryDecision {
    if let Some(decision) = ambient(conf, pod, init) {
        return decision;
    }
    match gates::check(conf, pod, init) {
        Ok(Some(reason)) => PreliminaryDecision::LeaveAlone(reason),
        Ok(None) => draft(conf, pod).map_or_else(PreliminaryDecision::Refuse, PreliminaryDecision::Redirect),
        // The gates parse only the mode; the refusal names every invalid annotation.
        Err(invalid_mode) => {
            let all_invalid = annotations::traffic(pod, conf.max_intervals).err();
            PreliminaryDecision::Refuse(all_invalid.unwrap_or(invalid_mode).into())
        }
    }
}

/// Decides about a pod that is ambient as the node agent knows it. Returns `None` for any other pod. Of the gates only
/// the excluded namespaces apply: the others are about sidecars, and a pod with the injector's annotation is not ambient.
fn ambient(conf: &PluginConf, pod: &PodFacts, init: InitContainer) -> Option<PreliminaryDecision> {
    let (Some(ambient), Ambient::Yes { .. }) = (conf.ambient, &pod.ambient) else { return None };
    if let Ok(Some(reason)) = Gate::Namespace.closed(conf, pod, init) {
        return Some(PreliminaryDecision::LeaveAlone(reason));
    }
    let policy = annotations::ambient(pod, ambient, conf.max_intervals);
    Some(policy.map_or_else(|why| PreliminaryDecision::Refuse(why.into()), PreliminaryDecision::Ambient))
}

/// Reports whether the facts do not show whether the pod is ambient, and nothing else decides. Such a pod must not be
/// left alone.
pub fn is_ambient_undecided(conf: &PluginConf, pod: &PodFacts) -> bool {
    let is_open = !matches!(pod.ambient, Ambient::No { .. }) && pod.annotation(STATUS).is_none();
    conf.ambient.is_some() && is_open && !conf.exclude_namespaces.contains(&pod.namespace)
}

fn draft(conf: &PluginConf, pod: &PodFacts) -> Result<PolicyDraft, PodRefusal> {
    // Never the default: `gates` leaves a pod without a proxy alone.
    let no_proxy = Container::default();
    let proxy = pod.proxy().unwrap_or(&no_proxy);
    let uid = proxy_id("runAsUser", proxy.run_as_user)?;
    let gid = proxy_id("runAsGroup", proxy.run_as_group)?;
    let traffic = annotations::traffic(pod, conf.max_intervals)?;
    let inbound = inbound(conf.inbound_default, &traffic, pod);
    let is_set = |variable| proxy.bool_env(variable) == Some(true);
    let dns = if is_set(DNS_CAPTURE) { Dns::All } else { Dns::Off };
    let invalid = if is_set(INVALID_DROP) { InvalidPackets::Drop } else { InvalidPackets::Pass };
    Ok(PolicyDraft { traffic, inbound, uid, gid, dns, invalid })
}

/// Returns the proxy's uid or gid. 0 counts as absent: the injector writes it for TPROXY, whose proxy runs as root, and
/// Istio then uses 1337.
fn proxy_id(field: &'static str, value: Option<i64>) -> Result<u32, PodRefusal> {
    match value {
        None | Some(0) => Ok(PROXY_ID),
        Some(value) => {
            u32::try_from(value).ok().filter(|id| *id <= MAX_ID).ok_or(PodRefusal::ProxyId { field, value })
        }
    }
}

fn inbound(default: InboundDefault, traffic: &TrafficAnnotations, pod: &PodFacts) -> Inbound {
    match (&traffic.included_inbound, default) {
        (InboundPorts::Only(ports), _) => Inbound::Only(ports.clone()),
        (InboundPorts::Unset, InboundDefault::ContainerPorts) => Inbound::Only(container_ports(pod)),
        (InboundPorts::All, _) | (InboundPorts::Unset, InboundDefault::All) => {
            Inbound::AllBut(traffic.excluded_inbound.clone())
        }
    }
}

/// Returns the TCP ports that the long-lived containers other than the proxy declare.
fn container_ports(pod: &PodFacts) -> PortSet {
    pod.long_lived().filter(|c| c.name != PROXY).flat_map(|c| c.tcp_ports.iter().copied()).collect()
}

/// Returns warnings about parts of the pod's manifest that have no effect: unknown annotations, boolean annotations of
/// an ambient pod that are not booleans, boolean variables of the proxy that are not booleans (they count as false, as in
/// Istio), and a mode that is only in a variable.
pub fn warnings(pod: &PodFacts) -> Vec<String> {
    let mut warnings = unknown(pod.annotations.keys().map(String::as_str));
    let is_unclear = |value: Option<&str>| value.is_some_and(|it| parse_bool(it).is_none());
    if matches!(pod.ambient, Ambient::Yes { .. }) {
        for name in [BYPASS_INBOUND, AMBIENT_DNS] {
            if is_unclear(pod.annotation(name)) {
                warnings.push(format!("annotation {name} is neither true nor false"));
            }
        }
    }
    let value = |variable: &str| {
        let value = pod.proxy().and_then(|proxy| proxy.env.get(variable)).map(String::as_str);
        value.filter(|it| !it.is_empty())
    };
    for variable in BOOLEANS {
        if is_unclear(value(variable)) {
            warnings.push(format!("variable {variable} of istio-proxy is neither true nor false"));
        }
    }
    if let Some(mode) = value(INTERCEPTION_MODE)
        && mode != "REDIRECT"
        && pod.annotation(MODE).is_none()
    {
        warnings.push(format!(
            "variable {INTERCEPTION_MODE} of istio-proxy is {mode:?}, and without annotation {MODE} the mode is REDIRECT"
        ));
    }
    warnings
}

impl PolicyDraft {
    /// Returns the policy for a namespace with these address families.
    pub fn complete(self, families: Families) -> RedirectPolicy {
        let traffic = self.traffic;
        RedirectPolicy {
            mode: if traffic.interception == Interception::Tproxy { TPROXY } else { Mode::Redirect },
            outbound_port: OUTBOUND_PORT,
            inbound_port: INBOUND_PORT,
            tunnel_port: TUNNEL_PORT,
            proxy_uids: Owners::new(self.uid, []),
            proxy_gids: Owners::new(self.gid, []),
            inbound: self.inbound,
            outbound: Outbound {
                excluded_ports: traffic.excluded_outbound,
                excluded_to: traffic.excluded_to,
                included_ports: traffic.included_outbound,
                included_to: traffic.included_to,
                groups: Groups::AllBut(BTreeSet::new()),
            },
            excluded_interfaces: traffic.excluded_interfaces,
            virtual_interfaces: traffic.virtual_interfaces,
            dns: self.dns,
            invalid: self.invalid,
            loopback: LoopbackCidr::default(),
            families,
        }
    }
}

#[cfg(test)]
mod tests;
