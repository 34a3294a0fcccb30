//! (configuration, pod, addresses) → leave alone, redirect so, or refuse. Pure.
//!
//! The gates stand in `gates`, the annotations in `annotations`, the family rule in `families`;
//! here they come together, with Istio's fixed values (docs/ISTIO.md, sections 1 and 4).

use crate::annotations::{self, AnnotationError, InboundPorts, Interception, Traffic};
use crate::conf::{InboundDefault, PluginConf};
use crate::families::{self, FamiliesError};
use crate::gates::{self, InitContainer, Reason};
use crate::pod::{Container, PROXY, PodFacts, yes_or_no};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::policy::istio::{
    INBOUND_PORT, OUTBOUND_PORT, PROXY_ID, TPROXY_MARK, TPROXY_TABLE, TUNNEL_PORT,
};
use gybe_netfilter::policy::{
    Dns, Families, Groups, Inbound, InvalidPackets, LoopbackCidr, Mode, Outbound, Owners, PortSet,
    RedirectPolicy,
};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// What is to happen to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one per call, and it is taken apart at once")]
pub enum Decision {
    /// Nothing.
    LeaveAlone(Reason),
    /// Its traffic goes through its proxy.
    Redirect(RedirectPolicy),
    /// It must not start like this.
    Refuse(Cause),
}

/// Why a pod must not start as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// An annotation cannot be meant.
    #[error(transparent)]
    Annotation(#[from] AnnotationError),
    /// The proxy runs as nobody.
    #[error("istio-proxy's securityContext.{field} is {value}, which must be from 0 to {MOST_ID}")]
    ProxyId {
        /// `runAsUser` or `runAsGroup`.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// Which families to redirect cannot be told, or not as the operator wants.
    #[error(transparent)]
    Families(#[from] FamiliesError),
}

impl Hint for Cause {
    fn hint(&self) -> Option<Cow<'static, str>> {
        match self {
            Self::Annotation(_) => Some("correct the annotation in the pod's template".into()),
            Self::ProxyId { .. } => Some("leave it out to run the proxy as 1337".into()),
            Self::Families(fault) => fault.hint(),
        }
    }
}

/// A pod's wish, complete but for the families, which only its namespace's addresses can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    traffic: Traffic,
    inbound: Inbound,
    uid: u32,
    gid: u32,
    dns: Dns,
    invalid: InvalidPackets,
}

/// What can be said of a pod before its namespace is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one per call, and it is taken apart at once")]
pub enum Opinion {
    /// It is left alone, whatever its addresses are.
    LeaveAlone(Reason),
    /// It is ours.
    Redirect(Wish),
    /// It must not start like this.
    Refuse(Cause),
}

/// `(uid_t)-1` means "no id" to the kernel, so the greatest id is one less.
const MOST_ID: u32 = u32::MAX - 1;

const TPROXY: Mode = Mode::Tproxy { mark: TPROXY_MARK, route_table: TPROXY_TABLE };

/// Decides about a pod whose namespace has `addresses`, in the kernel's order.
pub fn decide(conf: &PluginConf, pod: &PodFacts, addresses: &[IpAddr], init: InitContainer) -> Decision {
    match opinion(conf, pod, init) {
        Opinion::LeaveAlone(reason) => Decision::LeaveAlone(reason),
        Opinion::Refuse(cause) => Decision::Refuse(cause),
        Opinion::Redirect(wish) => match families::choose(conf.ipv6, families::stack(pod), addresses) {
            Ok(families) => Decision::Redirect(wish.policy(families)),
            Err(fault) => Decision::Refuse(fault.into()),
        },
    }
}

/// Decides as far as that goes without the pod's addresses.
pub fn opinion(conf: &PluginConf, pod: &PodFacts, init: InitContainer) -> Opinion {
    match gates::closed(conf, pod, init) {
        Ok(Some(reason)) => Opinion::LeaveAlone(reason),
        Ok(None) => wish(conf, pod).map_or_else(Opinion::Refuse, Opinion::Redirect),
        // All that is wrong, and not the mode alone.
        Err(mode) => {
            let all = annotations::traffic(pod, conf.max_intervals).err();
            Opinion::Refuse(all.unwrap_or(mode).into())
        }
    }
}

fn wish(conf: &PluginConf, pod: &PodFacts) -> Result<Wish, Cause> {
    // The gates let no pod without a proxy pass; one without would run as Istio's default.
    let nobody = Container::default();
    let proxy = pod.proxy().unwrap_or(&nobody);
    let uid = proxy_id("runAsUser", proxy.run_as_user)?;
    let gid = proxy_id("runAsGroup", proxy.run_as_group)?;
    let traffic = annotations::traffic(pod, conf.max_intervals)?;
    let inbound = inbound(conf.inbound_default, &traffic, pod);
    let yes = |variable| proxy.says(variable) == Some(true);
    let dns = if yes(DNS_CAPTURE) { Dns::All } else { Dns::Off };
    let invalid = if yes(INVALID_DROP) { InvalidPackets::Drop } else { InvalidPackets::Pass };
    Ok(Wish { traffic, inbound, uid, gid, dns, invalid })
}

const DNS_CAPTURE: &str = "ISTIO_META_DNS_CAPTURE";
const INVALID_DROP: &str = "INVALID_DROP";

/// What the injector also writes into the annotation of the mode, which alone decides.
const INTERCEPTION_MODE: &str = "ISTIO_META_INTERCEPTION_MODE";

/// Variables that say yes or no.
const SWITCHES: [&str; 4] = [DNS_CAPTURE, INVALID_DROP, families::DUAL_STACK, gates::DISABLE_ENVOY];

/// Whether a variable of the proxy is looked at.
pub(crate) fn is_read(variable: &str) -> bool {
    variable == INTERCEPTION_MODE || SWITCHES.contains(&variable)
}

/// 0 counts as unsaid: the injector writes it for a proxy that runs as root (TPROXY), and Istio
/// then takes 1337.
fn proxy_id(field: &'static str, said: Option<i64>) -> Result<u32, Cause> {
    match said {
        None | Some(0) => Ok(PROXY_ID),
        Some(value) => {
            u32::try_from(value).ok().filter(|id| *id <= MOST_ID).ok_or(Cause::ProxyId { field, value })
        }
    }
}

fn inbound(default: InboundDefault, traffic: &Traffic, pod: &PodFacts) -> Inbound {
    match (&traffic.included_inbound, default) {
        (InboundPorts::Only(ports), _) => Inbound::Only(ports.clone()),
        (InboundPorts::Unsaid, InboundDefault::ContainerPorts) => Inbound::Only(container_ports(pod)),
        (InboundPorts::All, _) | (InboundPorts::Unsaid, InboundDefault::All) => {
            Inbound::AllBut(traffic.excluded_inbound.clone())
        }
    }
}

/// The TCP ports that every container but the proxy declares.
fn container_ports(pod: &PodFacts) -> PortSet {
    pod.long_lived().filter(|c| c.name != PROXY).flat_map(|c| c.tcp_ports.iter().copied()).collect()
}

/// What the pod's owner most likely did not mean, in sentences: annotations that nobody knows, variables
/// of the proxy that ought to say yes or no and say neither (they count as no, as in Istio), and a mode
/// that stands in a variable alone.
pub fn doubts(pod: &PodFacts) -> Vec<String> {
    let unknown = annotations::unknown(pod.annotations.keys().map(String::as_str));
    let value =
        |variable: &str| pod.proxy().and_then(|proxy| proxy.env.get(variable)).filter(|it| !it.is_empty());
    let unclear =
        SWITCHES.into_iter().filter(|variable| value(variable).is_some_and(|it| yes_or_no(it).is_none()));
    let unclear =
        unclear.map(|variable| format!("variable {variable} of istio-proxy is neither true nor false"));
    let mode = value(INTERCEPTION_MODE)
        .filter(|mode| *mode != "REDIRECT" && pod.annotation(annotations::MODE).is_none());
    let mode = mode.map(|mode| {
        let annotation = annotations::MODE;
        format!("variable {INTERCEPTION_MODE} of istio-proxy is {mode:?}, and without annotation {annotation} the mode is REDIRECT")
    });
    unknown.into_iter().chain(unclear).chain(mode).collect()
}

impl Wish {
    /// The whole wish for a namespace of these families.
    pub fn policy(self, families: Families) -> RedirectPolicy {
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
