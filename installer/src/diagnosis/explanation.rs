//! What gybe-cni does with a pod, and why: each gate, each input of the policy, and the policy in words.
//!
//! Pure. The plugin's own functions decide; here their results are put into words. `explanation/injection.rs` explains
//! why a pod has no sidecar, `explanation/sentences.rs` puts a policy into words.

mod injection;
mod sentences;

pub use injection::Injection;

use crate::error::chain;
use crate::pod::manifest::{Labels, documents, printable};
use crate::pod::policy_file::PolicyFile;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::policy::istio::{INBOUND_PORT, OUTBOUND_PORT};
use gybe_netfilter::model::policy::{Families, Mode, Port, RedirectPolicy};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::inputs::{Input, Source, inputs};
use gybe_plugin::decide::{Decision, decide, warnings};
use gybe_plugin::families::is_usable;
use gybe_plugin::gates::{self, Gate, InitContainer, LeaveAloneReason};
use gybe_plugin::names::{DISABLE_ENVOY, INJECT, MODE, STATUS, misplaced};
use gybe_plugin::pod::{Ambient, PROXY, PodFacts};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::net::IpAddr;

/// The annotation with the proxy's configuration, in YAML.
const PROXY_CONFIG: &str = "proxy.istio.io/config";

/// The pod that is explained.
#[derive(Debug)]
pub struct Subject<'p> {
    /// Its kind and name.
    pub origin: &'p str,
    pub facts: &'p PodFacts,
    /// Its whole manifest, if it is known: the facts that an agent keeps have less.
    pub manifest: Option<&'p Value>,
    /// The labels of its namespace, if they are known.
    pub namespace_labels: Option<&'p Labels>,
    /// The addresses in its network namespace, in the kernel's order.
    pub addresses: &'p [IpAddr],
    /// Whether the addresses are those of its namespace or assumed ones.
    pub addresses_are: PodAddresses,
    /// The families that an operator chose in place of those that the addresses give.
    pub families: Option<Families>,
}

impl Subject<'_> {
    /// Reports whether the manifest has `hostNetwork: true`.
    fn is_host_network(&self) -> bool {
        let host_network = self.manifest.and_then(|pod| pod.pointer("/spec/hostNetwork"));
        host_network == Some(&Value::Bool(true))
    }

    /// Returns the proxy's container in the manifest.
    fn proxy(&self) -> Option<&Value> {
        let lists = ["/spec/containers", "/spec/initContainers"];
        let lists = lists.into_iter().filter_map(|list| self.manifest?.pointer(list)?.as_array());
        lists.flatten().find(|container| container.get("name").is_some_and(|name| name == PROXY))
    }

    /// Reports whether the manifest takes the proxy's variable from another object.
    fn has_value_from(&self, variable: &str) -> bool {
        let all = self.proxy().and_then(|proxy| proxy.get("env")?.as_array()).into_iter().flatten();
        let mut of_name = all.filter(|one| one.get("name").is_some_and(|name| name == variable));
        of_name.next_back().is_some_and(|one| one.get("valueFrom").is_some())
    }
}

/// Where the addresses of an explanation are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodAddresses {
    /// The pod's network namespace.
    Read,
    /// No namespace is known: one IPv4 and one IPv6 address, in this order.
    Assumed,
}

/// What gybe-cni does with a pod, and why.
#[derive(Debug)]
pub struct Explanation {
    origin: String,
    decision: Decision,
    gates: Vec<GateReport>,
    inputs: Vec<InputReport>,
    injection: Option<Injection>,
    /// Why the pod is ambient or not, if the node agent decided it.
    ambient: Option<String>,
    warnings: Vec<String>,
}

/// A gate, and what it found.
#[derive(Debug)]
struct GateReport {
    name: &'static str,
    observed: String,
    closed: Option<LeaveAloneReason>,
}

/// A value of the policy, and its source.
#[derive(Debug)]
struct InputReport {
    key: &'static str,
    value: Value,
    kind: &'static str,
    source: String,
}

impl Explanation {
    /// Explains the decision with this configuration.
    #[must_use]
    pub fn of(subject: &Subject<'_>, conf: &PluginConf, init: InitContainer) -> Self {
        let Subject { facts, addresses, .. } = subject;
        let is_host_network = subject.is_host_network();
        let decision = match decide(conf, facts, addresses, init) {
            Decision::Redirect(_) if is_host_network => Decision::LeaveAlone(LeaveAloneReason::HostNetwork),
            Decision::Redirect(policy) => {
                let families = subject.families.unwrap_or(policy.families);
                Decision::Redirect(RedirectPolicy { families, ..policy })
            }
            other => other,
        };
        let gates = Gate::ALL.into_iter().filter(|gate| gate.applies(conf));
        let gates = gates.map(|gate| GateReport::of(gate, conf, subject, init));
        let gates = gates.chain(is_host_network.then(GateReport::of_host_network));
        let inputs = match &decision {
            Decision::Redirect(policy) => input_reports(subject, conf, policy),
            _ => Vec::new(),
        };
        let is_outside = matches!(
            decision,
            Decision::LeaveAlone(LeaveAloneReason::NoProxy | LeaveAloneReason::NotInjected)
        );
        let mut warnings = warnings(facts);
        warnings.extend(misplaced(facts));
        warnings.extend(port_warnings(subject));
        warnings.extend(owner_warnings(subject, &decision));
        warnings.extend(tproxy_warnings(subject, &decision));
        warnings.extend(env_from_warning(subject));
        warnings.extend(interface_warning(&decision));
        Self {
            origin: subject.origin.to_owned(),
            gates: gates.collect(),
            inputs,
            injection: is_outside.then(|| Injection::of(subject)),
            ambient: match &facts.ambient {
                Ambient::Yes { why, .. } => Some(format!("ambient: {why}")),
                Ambient::No { why } => Some(format!("not ambient: {why}")),
                Ambient::Unknown | Ambient::Undecided(_) => None,
            },
            warnings,
            decision,
        }
    }

    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the explanation as text. Control characters of the manifest are escaped.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.origin, self.headline());
        text += "\ngates: the first closed one leaves the pod alone\n";
        let widest = self.gates.iter().map(|gate| gate.name.len()).max().unwrap_or(0);
        for gate in &self.gates {
            let state = if gate.closed.is_some() { "CLOSED" } else { "open" };
            line(&mut text, &format!("{state:<6}  {:<widest$}  {}", gate.name, gate.observed));
        }
        if let Some(ambient) = &self.ambient {
            text += "\nambient mode\n";
            line(&mut text, ambient);
        }
        if let Some(injection) = &self.injection {
            text += "\ninjection\n";
            injection.lines().iter().for_each(|one| line(&mut text, one));
        }
        if !self.inputs.is_empty() {
            text += "\ninputs of the policy\n";
            let widest = self.inputs.iter().map(|input| input.key.len()).max().unwrap_or(0);
            for InputReport { key, value, source, .. } in &self.inputs {
                line(&mut text, &format!("{key:<widest$}  {}  ({source})", plain(value)));
            }
        }
        if let Decision::Redirect(policy) = &self.decision {
            text += "\npolicy\n";
            sentences::of(policy).iter().for_each(|one| line(&mut text, one));
        }
        text
    }

    #[must_use]
    pub fn json(&self) -> Value {
        let gates = self.gates.iter().map(|gate| {
            let reason = gate.closed.as_ref().map(ToString::to_string);
            json!({ "gate": gate.name, "observed": gate.observed, "closed": gate.closed.is_some(), "reason": reason })
        });
        let inputs = self.inputs.iter();
        let inputs = inputs
            .map(|it| json!({ "key": it.key, "value": it.value, "kind": it.kind, "source": it.source }));
        let (policy, sentences) = match &self.decision {
            Decision::Redirect(policy) => (Some(PolicyFile::entries(policy)), sentences::of(policy)),
            _ => (None, Vec::new()),
        };
        json!({
            "name": self.origin,
            "decision": match &self.decision {
                Decision::LeaveAlone(_) => "leave-alone",
                Decision::Redirect(_) => "redirect",
                Decision::Ambient(_) => "ambient",
                Decision::Refuse(_) => "refuse",
            },
            "reason": self.reason(),
            "gates": gates.collect::<Vec<_>>(),
            "injection": self.injection.as_ref().map(Injection::json),
            "inputs": inputs.collect::<Vec<_>>(),
            "policy": policy,
            "sentences": sentences,
            "ambient": self.ambient,
            "warnings": self.warnings,
        })
    }

    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn headline(&self) -> String {
        match (&self.decision, self.reason()) {
            (Decision::Redirect(policy), _) if policy.captures_nothing() => {
                "redirected, but its policy captures nothing".to_owned()
            }
            (Decision::Redirect(_), _) => "redirected".to_owned(),
            (Decision::Ambient(_), _) => "redirected to the node's ztunnel".to_owned(),
            (Decision::LeaveAlone(_), reason) => format!("left alone: {}", reason.unwrap_or_default()),
            (Decision::Refuse(refusal), reason) => {
                let hint = refusal.hint().map_or(String::new(), |hint| format!("; {hint}"));
                let reason = printable(&reason.unwrap_or_default());
                format!("refused, so it does not start: {reason}{hint}")
            }
        }
    }

    fn reason(&self) -> Option<String> {
        match &self.decision {
            Decision::LeaveAlone(reason) => Some(reason.to_string()),
            Decision::Refuse(refusal) => Some(chain(refusal)),
            Decision::Redirect(_) | Decision::Ambient(_) => None,
        }
    }
}

fn line(text: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  {}", printable(line).trim_end());
}

/// A list without its quotation marks.
fn plain(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Quotes a text of the manifest in one line, truncated.
fn quoted(text: &str) -> String {
    const MOST: usize = 60;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let short: String = text.chars().take(MOST).collect();
    let more = if short.len() < text.len() { "…" } else { "" };
    format!("{short:?}{more}")
}

impl GateReport {
    fn of_host_network() -> Self {
        let closed = Some(LeaveAloneReason::HostNetwork);
        Self { name: "host network", observed: "hostNetwork is true".to_owned(), closed }
    }

    fn of(gate: Gate, conf: &PluginConf, subject: &Subject<'_>, init: InitContainer) -> Self {
        let pod = subject.facts;
        let (name, observed) = match gate {
            Gate::Namespace if pod.namespace.is_empty() => {
                ("exclude_namespaces", "the manifest names no namespace".to_owned())
            }
            Gate::Namespace => ("exclude_namespaces", format!("the pod's namespace is {}", pod.namespace)),
            Gate::IstioInit => ("init container istio-init", istio_init(pod, init)),
            Gate::Proxy => ("container istio-proxy", proxy(pod)),
            Gate::Envoy => ("variable DISABLE_ENVOY", variable(subject, DISABLE_ENVOY)),
            Gate::ProxyType => ("arguments of istio-proxy", arguments(pod)),
            Gate::Inject => (INJECT, inject(pod)),
            Gate::StrictInject => ("gates: strict, inject", inject(pod)),
            Gate::Status => (STATUS, present(pod.annotation(STATUS).is_some(), "annotation")),
            Gate::StrictContainers => {
                ("gates: strict, containers", format!("{} run as long as the pod", pod.long_lived().count()))
            }
            Gate::Mode => (MODE, annotation(pod, MODE)),
        };
        // A mode that is not known closes no gate: the pod is refused.
        let closed = gate.closed(conf, pod, init).ok().flatten();
        Self { name, observed, closed }
    }
}

fn present(is_there: bool, what: &str) -> String {
    if is_there { format!("{what} present") } else { format!("no such {what}") }
}

fn istio_init(pod: &PodFacts, init: InitContainer) -> String {
    // The gate itself reports whether the container is there.
    let counted = Gate::IstioInit.closed(&PluginConf::default(), pod, InitContainer::Counts);
    match (matches!(counted, Ok(Some(_))), init) {
        (true, InitContainer::Ignored) => "present, and ignored on request".to_owned(),
        (is_there, _) => present(is_there, "container"),
    }
}

fn proxy(pod: &PodFacts) -> String {
    let is_native = pod.init_containers.iter().any(|container| container.name == PROXY);
    match pod.proxy() {
        Some(_) if is_native => "init container present (native sidecar)".to_owned(),
        proxy => present(proxy.is_some(), "container"),
    }
}

fn variable(subject: &Subject<'_>, name: &str) -> String {
    let value = subject.facts.proxy().and_then(|proxy| proxy.env.get(name));
    value.map_or("not set".to_owned(), |value| variable_value(subject, name, value))
}

fn arguments(pod: &PodFacts) -> String {
    match pod.proxy().map(|proxy| proxy.args.join(" ")) {
        Some(arguments) if !arguments.is_empty() => format!("they begin with {}", quoted(&arguments)),
        _ => "none".to_owned(),
    }
}

fn inject(pod: &PodFacts) -> String {
    match gates::inject(pod) {
        Some(inject) => {
            let what = if inject.is_label { "label" } else { "annotation" };
            format!("{what} {}", quoted(inject.value))
        }
        None => "neither label nor annotation".to_owned(),
    }
}

fn annotation(pod: &PodFacts, name: &str) -> String {
    pod.annotation(name)
        .map_or("no such annotation".to_owned(), |value| format!("annotation {}", quoted(value)))
}

fn input_reports(subject: &Subject<'_>, conf: &PluginConf, policy: &RedirectPolicy) -> Vec<InputReport> {
    let entries = PolicyFile::entries(policy);
    let report = |input: Input<'_>| InputReport {
        key: input.key,
        value: value(&entries, input.key),
        kind: kind(&input, subject),
        source: source(&input, subject),
    };
    inputs(conf, subject.facts).into_iter().map(report).collect()
}

fn value(entries: &Map<String, Value>, key: &str) -> Value {
    entries.get(key).cloned().unwrap_or_default()
}

/// Reports whether the operator's choice of families replaces the value.
fn is_chosen(input: &Input<'_>, subject: &Subject<'_>) -> bool {
    input.key == "enable_ipv6" && subject.families.is_some()
}

fn kind(input: &Input<'_>, subject: &Subject<'_>) -> &'static str {
    match input.source {
        _ if is_chosen(input, subject) => "flag",
        Source::Default | Source::SecurityContext { value: 0, .. } => "default",
        Source::Annotation { .. } => "annotation",
        Source::Variable { .. } => "variable",
        Source::SecurityContext { .. } => "securityContext",
        Source::ConfKey { .. } => "configuration",
        Source::Addresses => "addresses",
    }
}

/// Returns the value of a variable of the proxy in words. One of another object counts as empty.
fn variable_value(subject: &Subject<'_>, name: &str, value: &str) -> String {
    match subject.manifest {
        Some(_) if subject.has_value_from(name) => "valueFrom, which counts as empty".to_owned(),
        None if value.is_empty() => "empty, or valueFrom, which counts as empty".to_owned(),
        _ => quoted(value),
    }
}

fn is_usable_ipv6(address: &IpAddr) -> bool {
    address.is_ipv6() && is_usable(address)
}

fn source(input: &Input<'_>, subject: &Subject<'_>) -> String {
    let source = match &input.source {
        _ if is_chosen(input, subject) => "--families".to_owned(),
        Source::Default => "default".to_owned(),
        Source::Annotation { name, value } => format!("annotation {name}: {}", quoted(value)),
        Source::Variable { name, value } => {
            format!("variable {name} of {PROXY}: {}", variable_value(subject, name, value))
        }
        Source::SecurityContext { field, value: 0 } => {
            format!("default; securityContext.{field} of {PROXY} is 0, which counts as absent")
        }
        Source::SecurityContext { field, value } => format!("securityContext.{field} of {PROXY}: {value}"),
        Source::ConfKey { name, value } => format!("{name}: {value} in the plugin's configuration"),
        Source::Addresses => match subject.addresses_are {
            PodAddresses::Read => "the pod's first address".to_owned(),
            PodAddresses::Assumed => "assuming that the pod's first address is IPv4".to_owned(),
        },
    };
    match input.key {
        "enable_ipv6"
            if matches!(input.source, Source::Variable { .. })
                && !is_chosen(input, subject)
                && !subject.addresses.iter().any(is_usable_ipv6) =>
        {
            format!("{source}; the pod has no usable IPv6 address")
        }
        "inbound_ports_exclude" if input.source != Source::Default => {
            format!("{source}; the proxy's own ports are always added")
        }
        _ => source,
    }
}

/// Gybe redirects to fixed ports. The facts truncate the annotation, so the manifest's is read if it is known.
fn port_warnings(subject: &Subject<'_>) -> Vec<String> {
    let annotations = subject.manifest.and_then(|pod| pod.pointer("/metadata/annotations"));
    let whole = annotations.and_then(|all| all.get(PROXY_CONFIG)).and_then(Value::as_str);
    let Some(text) = whole.or_else(|| subject.facts.annotation(PROXY_CONFIG)) else { return Vec::new() };
    let config = documents(text).unwrap_or_default().into_iter().next().unwrap_or_default();
    let ports = [("proxyListenPort", OUTBOUND_PORT), ("proxyInboundListenPort", INBOUND_PORT)];
    let warning = |(key, expected): (&str, Port)| {
        let port = plain(config.get(key)?);
        (port != expected.to_string()).then(|| {
            format!("annotation {PROXY_CONFIG} sets {key} to {port}, and Gybe redirects to {expected}")
        })
    };
    ports.into_iter().filter_map(warning).collect()
}

/// Containers with an id of the proxy. An init container that ends before the proxy starts may need it.
fn owner_warnings(subject: &Subject<'_>, decision: &Decision) -> Vec<String> {
    let Decision::Redirect(policy) = decision else { return Vec::new() };
    let context = subject.manifest.and_then(|pod| pod.pointer("/spec/securityContext"));
    let of_pod = |field| context.and_then(|context| context.get(field)).and_then(Value::as_i64);
    let others = subject.facts.long_lived().filter(|container| container.name != PROXY);
    let warnings = others.flat_map(|container| {
        let user = container.run_as_user.or_else(|| of_pod("runAsUser"));
        let group = container.run_as_group.or_else(|| of_pod("runAsGroup"));
        [("user", user, &policy.proxy_uids), ("group", group, &policy.proxy_gids)].into_iter().filter_map(
            move |(what, id, exempt)| {
                let id = u32::try_from(id?).ok().filter(|id| exempt.contains(*id))?;
                let name = &container.name;
                Some(format!(
                    "container {name} runs as {what} {id}, the proxy's: its connections are not redirected"
                ))
            },
        )
    });
    warnings.collect()
}

/// The proxy's transparent sockets need a capability, which only the whole manifest shows.
fn tproxy_warnings(subject: &Subject<'_>, decision: &Decision) -> Vec<String> {
    let Decision::Redirect(RedirectPolicy { mode: Mode::Tproxy { .. }, .. }) = decision else {
        return Vec::new();
    };
    if subject.manifest.is_none() {
        return vec![
            "whether istio-proxy has NET_ADMIN, which TPROXY needs, is not known: name a manifest".to_owned(),
        ];
    }
    let mut warnings = Vec::new();
    if !has_net_admin(subject.proxy()) {
        warnings.push(
            "the mode is TPROXY, and istio-proxy has no capability NET_ADMIN: it cannot accept redirected connections"
                .to_owned(),
        );
    }
    if subject.facts.proxy().and_then(|proxy| proxy.run_as_user) != Some(0) {
        warnings.push(
            "the mode is TPROXY, and istio-proxy does not run as user 0: its connections to its own pod may return to it"
                .to_owned(),
        );
    }
    warnings
}

fn has_net_admin(proxy: Option<&Value>) -> bool {
    let context = proxy.and_then(|proxy| proxy.get("securityContext"));
    let is_privileged = context.and_then(|context| context.get("privileged")) == Some(&Value::Bool(true));
    let added = context.and_then(|context| context.pointer("/capabilities/add")).and_then(Value::as_array);
    let has = |name: &Value| ["NET_ADMIN", "CAP_NET_ADMIN", "ALL"].iter().any(|known| name == known);
    is_privileged || added.is_some_and(|added| added.iter().any(has))
}

/// Returns a warning if the proxy has `envFrom`: the plugin does not read these variables.
fn env_from_warning(subject: &Subject<'_>) -> Option<String> {
    let is_used = subject.proxy()?.get("envFrom")?.as_array().is_some_and(|sources| !sources.is_empty());
    is_used.then(|| format!("{PROXY} has envFrom: Gybe reads the variables of env alone"))
}

/// The runtimes name the interface of the pod's network eth0; it is usually the only one.
fn interface_warning(decision: &Decision) -> Option<String> {
    let Decision::Redirect(policy) = decision else { return None };
    let is_excluded = policy.excluded_interfaces.iter().any(|name| name.as_str() == "eth0");
    let warning = "excludeInterfaces names eth0: the connections through it, usually all of the pod's, are not redirected";
    is_excluded.then(|| warning.to_owned())
}
