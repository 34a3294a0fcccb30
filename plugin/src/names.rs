//! The names by which a pod decides about its redirection: the table of all annotations that the plugin reads, with the
//! form of their values and their effect, and the variables of the proxy. Finds misspelt annotations.

use crate::pod::PodFacts;

/// The annotation that the injector adds to a pod.
pub const STATUS: &str = "sidecar.istio.io/status";
/// The label, and the annotation, that asks for injection or forbids it.
pub const INJECT: &str = "sidecar.istio.io/inject";
/// The annotation of the mode.
pub const MODE: &str = "sidecar.istio.io/interceptionMode";
pub(crate) const INCLUDE_TO: &str = "traffic.sidecar.istio.io/includeOutboundIPRanges";
pub(crate) const EXCLUDE_TO: &str = "traffic.sidecar.istio.io/excludeOutboundIPRanges";
pub(crate) const INCLUDE_INBOUND: &str = "traffic.sidecar.istio.io/includeInboundPorts";
pub(crate) const EXCLUDE_INBOUND: &str = "traffic.sidecar.istio.io/excludeInboundPorts";
pub(crate) const INCLUDE_OUTBOUND: &str = "traffic.sidecar.istio.io/includeOutboundPorts";
pub(crate) const EXCLUDE_OUTBOUND: &str = "traffic.sidecar.istio.io/excludeOutboundPorts";
pub(crate) const EXCLUDE_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";
pub(crate) const VIRTUAL_INTERFACES: &str = "istio.io/reroute-virtual-interfaces";
/// The annotation with which the pod's inbound connections do not go to ztunnel.
pub(crate) const BYPASS_INBOUND: &str = "ambient.istio.io/bypass-inbound-capture";
/// The annotation that overrides whether DNS queries go to ztunnel.
pub(crate) const AMBIENT_DNS: &str = "ambient.istio.io/dns-capture";
pub(crate) const KUBEVIRT_INTERFACES: &str = "traffic.sidecar.istio.io/kubevirtInterfaces";

/// The variable of the proxy that switches it off.
pub const DISABLE_ENVOY: &str = "DISABLE_ENVOY";
/// The proxy's variable for listening on both families.
pub(crate) const DUAL_STACK: &str = "ISTIO_DUAL_STACK";
pub(crate) const DNS_CAPTURE: &str = "ISTIO_META_DNS_CAPTURE";
pub(crate) const INVALID_DROP: &str = "INVALID_DROP";

/// The mode that the injector sets for the proxy. Only the annotation of the mode has an effect.
pub(crate) const INTERCEPTION_MODE: &str = "ISTIO_META_INTERCEPTION_MODE";

/// Boolean variables of the proxy.
pub(crate) const BOOLEANS: [&str; 4] = [DNS_CAPTURE, INVALID_DROP, DUAL_STACK, DISABLE_ENVOY];

/// Reports whether a decision reads this variable of the proxy.
pub(crate) fn is_read_variable(variable: &str) -> bool {
    variable == INTERCEPTION_MODE || BOOLEANS.contains(&variable)
}

/// An annotation of a pod.
#[derive(Debug, Clone, Copy)]
pub struct Annotation {
    /// The full name.
    pub name: &'static str,
    /// The form of its value.
    pub form: ValueForm,
    /// The value with the effect of no annotation; none if no value has that effect.
    pub default: Option<&'static str>,
    /// Its effect.
    pub meaning: &'static str,
}

/// The form of an annotation's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueForm {
    /// Any text.
    Text,
    /// A boolean, as Go's `strconv.ParseBool` reads it. Another text counts as no annotation, except that with
    /// `gates: strict` `sidecar.istio.io/inject` then leaves the pod alone.
    Boolean,
    /// A mode.
    Mode,
    /// A list of ports and ranges.
    Ports,
    /// `*`, or a list of ports and ranges.
    PortsOrAll,
    /// A list of networks.
    Networks,
    /// `*`, or a list of networks.
    NetworksOrAll,
    /// A list of interfaces.
    Interfaces,
}

const fn of(name: &'static str, form: ValueForm, default: &'static str, meaning: &'static str) -> Annotation {
    Annotation { name, form, default: Some(default), meaning }
}

/// All annotations.
pub static ANNOTATIONS: [Annotation; 14] = [
    Annotation {
        name: STATUS,
        form: ValueForm::Text,
        default: None,
        meaning: "the injector writes it; without it the pod is left alone",
    },
    of(
        INJECT,
        ValueForm::Boolean,
        "true",
        "`false` leaves the pod alone; a label of that name has precedence",
    ),
    of(
        MODE,
        ValueForm::Mode,
        "REDIRECT",
        "how inbound connections reach the proxy; `NONE` leaves the pod alone",
    ),
    of(
        INCLUDE_TO,
        ValueForm::NetworksOrAll,
        "*",
        "the destinations of outbound connections that are captured; with an empty list none is captured by its address",
    ),
    of(EXCLUDE_TO, ValueForm::Networks, "", "destinations that are left alone"),
    of(
        INCLUDE_INBOUND,
        ValueForm::PortsOrAll,
        "*",
        "the inbound ports that are captured; with an empty list none is. Without it, `inboundDefault: containerPorts` \
         has precedence",
    ),
    of(
        EXCLUDE_INBOUND,
        ValueForm::Ports,
        "",
        "ports that are left alone, in addition to 15020, 15021 and 15090; no effect with a list of included ports",
    ),
    of(INCLUDE_OUTBOUND, ValueForm::Ports, "", "ports that are captured for every destination, TCP"),
    of(EXCLUDE_OUTBOUND, ValueForm::Ports, "15020", "ports that are left alone, TCP and UDP"),
    of(EXCLUDE_INTERFACES, ValueForm::Interfaces, "", "interfaces on which nothing is captured"),
    of(
        VIRTUAL_INTERFACES,
        ValueForm::Interfaces,
        "",
        "interfaces of virtual machines, whose traffic counts as outbound",
    ),
    of(
        KUBEVIRT_INTERFACES,
        ValueForm::Interfaces,
        "",
        "the older name of the one above, used only without it, and only by pods with a sidecar",
    ),
    of(
        BYPASS_INBOUND,
        ValueForm::Boolean,
        "false",
        "of an ambient pod: `true` leaves its inbound connections alone, as an ingress gateway needs it",
    ),
    Annotation {
        name: AMBIENT_DNS,
        form: ValueForm::Boolean,
        default: None,
        meaning: "of an ambient pod: whether its DNS queries go to ztunnel, instead of the setting `ambient_dns_capture`",
    },
];

/// Reports whether the value of an annotation is a list.
pub(crate) fn is_list(name: &str) -> bool {
    ANNOTATIONS.iter().any(|annotation| annotation.name == name && annotation.form.is_list())
}

impl ValueForm {
    /// Reports whether the value is a list.
    pub fn is_list(self) -> bool {
        !matches!(self, Self::Text | Self::Boolean | Self::Mode)
    }
}

/// The prefix of Istio's traffic annotations, all of which are known.
const TRAFFIC: &str = "traffic.sidecar.istio.io/";

/// The maximum number of sentences.
const MAX_SENTENCES: usize = 8;

/// Returns a sentence for each unknown name that is one edit away from a known one, or that has the prefix of
/// traffic annotations. Such an annotation has no effect, which its author probably does not expect.
pub fn unknown<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.filter_map(sentence).take(MAX_SENTENCES).collect()
}

fn sentence(name: &str) -> Option<String> {
    let near = nearest(name);
    if near.map_or(!name.starts_with(TRAFFIC), |known| known == name) {
        return None;
    }
    Some(is_unknown(name, near))
}

fn is_unknown(name: &str, meant: Option<&str>) -> String {
    let shown: String = name.chars().take(80).collect();
    match meant {
        Some(known) => format!("annotation {shown:?} is unknown: did you mean {known}?"),
        None => format!("annotation {shown:?} is unknown"),
    }
}

/// Returns a sentence for each annotation that has a known name under another prefix of Istio and that [`unknown`] does
/// not report, and for each label that has the name of an annotation. Only `gybe explain` reports these.
pub fn misplaced(pod: &PodFacts) -> Vec<String> {
    let of_annotation = |name: &String| {
        let known = under_another_prefix(name).filter(|_| nearest(name).is_none())?;
        (!name.starts_with(TRAFFIC)).then(|| is_unknown(name, Some(known)))
    };
    let is_annotation = |name: &&String| {
        name.as_str() != INJECT && ANNOTATIONS.iter().any(|known| known.name == name.as_str())
    };
    let labels = pod.labels.keys().filter(is_annotation);
    let labels = labels.map(|name| format!("{name} is a label; it has to be an annotation"));
    pod.annotations.keys().filter_map(of_annotation).chain(labels).take(MAX_SENTENCES).collect()
}

/// Other components of Istio have annotations that end in `status`, too.
fn under_another_prefix(name: &str) -> Option<&'static str> {
    let (_, own) = name.split_once('/').filter(|(prefix, _)| prefix.ends_with("istio.io"))?;
    let mut known = ANNOTATIONS.iter().map(|annotation| annotation.name).filter(|known| *known != STATUS);
    known.find(|known| known.split_once('/').is_some_and(|(_, known)| known == own))
}

/// Returns the known annotation of this name, or one that is one edit away.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    nearest_of(name, &ANNOTATIONS.iter().map(|annotation| annotation.name), 1)
}

/// Returns the known name that the fewest edits make of `name`, `edits` at most: bytes inserted, deleted or replaced,
/// or two adjacent ones swapped.
pub fn nearest_of<'a>(
    name: &str,
    known: &(impl Iterator<Item = &'a str> + Clone),
    edits: usize,
) -> Option<&'a str> {
    (0..=edits).find_map(|edits| known.clone().find(|it| is_within(it.as_bytes(), name.as_bytes(), edits)))
}

/// Reports whether `edits` or fewer make one name of the other.
fn is_within(one: &[u8], other: &[u8], edits: usize) -> bool {
    if one.len().abs_diff(other.len()) > edits {
        return false;
    }
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (one.get(same..).unwrap_or_default(), other.get(same..).unwrap_or_default());
    let ([a, one_rest @ ..], [b, other_rest @ ..]) = (one, other) else { return true };
    let Some(fewer) = edits.checked_sub(1) else { return false };
    let is_swapped = || match (one_rest, other_rest) {
        ([c, one @ ..], [d, other @ ..]) => a == d && b == c && is_within(one, other, fewer),
        _ => false,
    };
    is_within(one_rest, other_rest, fewer)
        || is_within(one_rest, other, fewer)
        || is_within(one, other_rest, fewer)
        || is_swapped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_one_edit_away_is_reported_with_the_known_name() {
        for (name, known) in [
            ("traffic.sidecar.istio.io/excludeOutboundPort", "traffic.sidecar.istio.io/excludeOutboundPorts"),
            (
                "traffic.sidecar.istio.io/excludeOutboundPortss",
                "traffic.sidecar.istio.io/excludeOutboundPorts",
            ),
            ("traffic.sidecar.istio.io/exlcudeInboundPorts", "traffic.sidecar.istio.io/excludeInboundPorts"),
            (
                "traffic.sidecar.istio.io/includeOutboundIpRanges",
                "traffic.sidecar.istio.io/includeOutboundIPRanges",
            ),
            ("trafic.sidecar.istio.io/excludeInterfaces", "traffic.sidecar.istio.io/excludeInterfaces"),
            ("traffic.sidecar.istio.oi/excludeInterfaces", "traffic.sidecar.istio.io/excludeInterfaces"),
            ("sidecar.istio.io/interceptionmode", "sidecar.istio.io/interceptionMode"),
            ("istio.io/reroute-virtual-interface", "istio.io/reroute-virtual-interfaces"),
        ] {
            let sentences = unknown([name].into_iter());
            assert_eq!(sentences, [format!("annotation {name:?} is unknown: did you mean {known}?")]);
        }
    }

    #[test]
    fn unknown_traffic_annotations_are_reported_and_known_and_unrelated_ones_are_not() {
        let sentences = unknown(
            ["traffic.sidecar.istio.io/excludePorts", "traffic.sidecar.istio.io/\u{1b}[2J"].into_iter(),
        );
        assert_eq!(sentences.len(), 2);
        assert!(
            sentences.iter().all(|text| text.ends_with("is unknown") && !text.contains('\u{1b}')),
            "{sentences:?}"
        );
        let unrelated =
            ["sidecar.istio.io/proxyCPU", "sidecar.istio.io/rewriteAppHTTPProbers", "istio.io/rev", "app"];
        assert_eq!(unknown(ANNOTATIONS.iter().map(|annotation| annotation.name).chain(unrelated)), [""; 0]);
    }

    #[test]
    fn the_known_name_that_the_fewest_edits_make_is_found() {
        for (one, other, edits) in [
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ab", 1),
            ("abc", "aabc", 1),
            ("abc", "acb", 1),
            ("abc", "cba", 2),
            ("abc", "a", 2),
            ("aab", "ab", 1),
            ("", "a", 1),
            ("ab", "cd", 2),
            ("ab", "ca", 2),
            ("ab", "bac", 2),
            ("mode", "moed_", 2),
            ("abc", "xyz", 3),
            ("", "abc", 3),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                let near = |edits| nearest_of(one, &[other].into_iter(), edits);
                assert_eq!(near(edits), Some(other), "{one} {other}");
                assert_eq!(edits.checked_sub(1).and_then(near), None, "{one} {other}");
            }
        }
        assert_eq!(nearest_of("abd", &["xbd", "abd", "ab"].into_iter(), 2), Some("abd"));
        assert_eq!(nearest_of("abcd", &["abxy", "abcx"].into_iter(), 2), Some("abcx"));
    }
}
