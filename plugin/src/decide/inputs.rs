//! The inputs of a pod's policy: which annotation, variable, field or configuration key gave each value.
//!
//! Pure. `gybe explain` prints them; the plugin itself does not need them. The names of the values are the keys of a
//! policy file.

use crate::annotations;
use crate::conf::{InboundDefault, Ipv6Setting, PluginConf};
use crate::families;
use crate::names::{self, DNS_CAPTURE, DUAL_STACK, INVALID_DROP};
use crate::pod::PodFacts;

/// A value of the policy and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input<'p> {
    /// The key of a policy file.
    pub key: &'static str,
    /// What gave the value.
    pub source: Source<'p>,
}

/// What gave a value.
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
    /// A variable of the proxy.
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
        /// Its value; 0 counts as absent.
        value: i64,
    },
    /// A key of the plugin's configuration.
    Key {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: &'static str,
    },
    /// The addresses in the pod's namespace.
    Addresses,
}

/// Returns the source of every value that an input can change, in the order of a policy file. The decision about
/// the pod is a redirection.
pub fn inputs<'p>(conf: &PluginConf, pod: &'p PodFacts) -> Vec<Input<'p>> {
    let (uid, gid) = pod.proxy().map_or((None, None), |proxy| (proxy.run_as_user, proxy.run_as_group));
    let annotation = |name| annotation(pod, name);
    let source = |key, source| Input { key, source };
    let mut inputs = vec![
        source("mode", annotation(names::MODE)),
        source("proxy_uids", security_context("runAsUser", uid)),
        source("proxy_gids", security_context("runAsGroup", gid)),
    ];
    let included = included_inbound(conf, pod);
    let is_listed = matches!(included, Source::Key { .. })
        || matches!(included, Source::Annotation { value, .. } if value.trim() != "*");
    inputs.push(source("inbound_ports_include", included));
    if !is_listed {
        inputs.push(source("inbound_ports_exclude", annotation(names::EXCLUDE_INBOUND)));
    }
    inputs.extend([
        source("outbound_ports_include", annotation(names::INCLUDE_OUTBOUND)),
        source("outbound_ports_exclude", annotation(names::EXCLUDE_OUTBOUND)),
        source("outbound_cidrs_include", annotation(names::INCLUDE_TO)),
        source("outbound_cidrs_exclude", annotation(names::EXCLUDE_TO)),
        source("exclude_interfaces", annotation(names::EXCLUDE_INTERFACES)),
        source("reroute_virtual_interfaces", annotation(annotations::virtual_interfaces_annotation(pod))),
        source("redirect_dns", variable(pod, DNS_CAPTURE)),
        source("drop_invalid", variable(pod, INVALID_DROP)),
        source("enable_ipv6", ipv6(conf, pod)),
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

fn included_inbound<'p>(conf: &PluginConf, pod: &'p PodFacts) -> Source<'p> {
    match (annotation(pod, names::INCLUDE_INBOUND), conf.inbound_default) {
        (Source::Default, InboundDefault::ContainerPorts) => {
            Source::Key { name: "inboundDefault", value: "containerPorts" }
        }
        (source, _) => source,
    }
}

fn ipv6<'p>(conf: &PluginConf, pod: &'p PodFacts) -> Source<'p> {
    let key = |value| Source::Key { name: "ipv6", value };
    match (conf.ipv6, families::stack(pod)) {
        (Ipv6Setting::Redirect, _) => key("redirect"),
        (Ipv6Setting::Leave, _) => key("leave"),
        (Ipv6Setting::Reject | Ipv6Setting::Auto, families::Stack::Dual) => variable(pod, DUAL_STACK),
        (Ipv6Setting::Reject | Ipv6Setting::Auto, families::Stack::Single) => Source::Addresses,
    }
}
