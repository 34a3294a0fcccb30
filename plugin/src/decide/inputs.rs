//! The inputs of a pod's policy: which annotation, variable, field or configuration key sets each value.
//!
//! Pure. `gybe explain` prints them; the plugin itself does not need them. Each value has the name of its key in a
//! policy file.

use crate::conf::{InboundDefault, Ipv6Setting, PluginConf};
use crate::names::{self, DNS_CAPTURE, DUAL_STACK, INVALID_DROP};
use crate::pod::PodFacts;
use crate::{annotations, families};

/// A value of the policy and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input<'p> {
    /// The value's key in a policy file.
    pub key: &'static str,
    /// What sets the value.
    pub source: Source<'p>,
}

/// What sets a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source<'p> {
    /// No input: the value is the default.
    Default,
    /// An annotation of the pod.
    Annotation {
        /// Its full name.
        name: &'static str,
        /// Its value as written.
        value: &'p str,
    },
    /// An environment variable of the proxy.
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value, truncated.
        value: &'p str,
    },
    /// A field of the proxy's `securityContext`.
    SecurityContext {
        /// `runAsUser` or `runAsGroup`.
        field: &'static str,
        /// Its value; 0 counts as absent, so the policy has the default.
        value: i64,
    },
    /// A key of the plugin's configuration.
    ConfKey {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: &'static str,
    },
    /// The addresses in the pod's namespace.
    Addresses,
}

/// Returns the source of every value that an input can change, in the order of a policy file. Only for a pod that the
/// plugin decides to redirect.
pub fn inputs<'p>(conf: &PluginConf, pod: &'p PodFacts) -> Vec<Input<'p>> {
    let (uid, gid) = pod.proxy().map_or((None, None), |proxy| (proxy.run_as_user, proxy.run_as_group));
    let annotation = |name| annotation(pod, name);
    let input = |key, source| Input { key, source };
    let mut inputs = vec![
        input("mode", annotation(names::MODE)),
        input("proxy_uids", security_context("runAsUser", uid)),
        input("proxy_gids", security_context("runAsGroup", gid)),
    ];
    let included = included_inbound_ports(conf, pod);
    let only_listed_ports = matches!(included, Source::ConfKey { .. })
        || matches!(included, Source::Annotation { value, .. } if value.trim() != "*");
    inputs.push(input("inbound_ports_include", included));
    // Excluded ports count only where all ports are included.
    if !only_listed_ports {
        inputs.push(input("inbound_ports_exclude", annotation(names::EXCLUDE_INBOUND)));
    }
    inputs.extend([
        input("outbound_ports_include", annotation(names::INCLUDE_OUTBOUND)),
        input("outbound_ports_exclude", annotation(names::EXCLUDE_OUTBOUND)),
        input("outbound_cidrs_include", annotation(names::INCLUDE_TO)),
        input("outbound_cidrs_exclude", annotation(names::EXCLUDE_TO)),
        input("exclude_interfaces", annotation(names::EXCLUDE_INTERFACES)),
        input("reroute_virtual_interfaces", annotation(annotations::virtual_interfaces_annotation(pod))),
        input("redirect_dns", variable(pod, DNS_CAPTURE)),
        input("drop_invalid", variable(pod, INVALID_DROP)),
        input("enable_ipv6", ipv6(conf, pod)),
    ]);
    inputs
}

fn annotation<'p>(pod: &'p PodFacts, name: &'static str) -> Source<'p> {
    pod.annotation(name).map_or(Source::Default, |value| Source::Annotation { name, value })
}

fn variable<'p>(pod: &'p PodFacts, name: &'static str) -> Source<'p> {
    let value = pod.proxy().and_then(|proxy| proxy.env.get(name));
    value.map_or(Source::Default, |value| Source::Variable { name, value })
}

fn security_context(field: &'static str, value: Option<i64>) -> Source<'static> {
    value.map_or(Source::Default, |value| Source::SecurityContext { field, value })
}

fn included_inbound_ports<'p>(conf: &PluginConf, pod: &'p PodFacts) -> Source<'p> {
    match (annotation(pod, names::INCLUDE_INBOUND), conf.inbound_default) {
        (Source::Default, InboundDefault::ContainerPorts) => {
            Source::ConfKey { name: "inboundDefault", value: "containerPorts" }
        }
        (source, _) => source,
    }
}

fn ipv6<'p>(conf: &PluginConf, pod: &'p PodFacts) -> Source<'p> {
    let conf_key = |value| Source::ConfKey { name: "ipv6", value };
    match (conf.ipv6, families::stack(pod)) {
        (Ipv6Setting::Redirect, _) => conf_key("redirect"),
        (Ipv6Setting::Leave, _) => conf_key("leave"),
        (Ipv6Setting::Reject | Ipv6Setting::Auto, families::Stack::Dual) => variable(pod, DUAL_STACK),
        (Ipv6Setting::Reject | Ipv6Setting::Auto, families::Stack::Single) => Source::Addresses,
    }
}
