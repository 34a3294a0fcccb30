//! Unknown annotations that resemble known ones.

use super::ANNOTATIONS;

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
    let shown: String = name.chars().take(80).collect();
    match nearest(name) {
        Some(known) if known == name => None,
        Some(known) => Some(format!("annotation {shown:?} is unknown: did you mean {known}?")),
        None if name.starts_with(TRAFFIC) => Some(format!("annotation {shown:?} is unknown")),
        None => None,
    }
}

/// Returns the known annotation of this name, or one that is one edit away.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    all().find(|known| *known == name).or_else(|| all().find(|known| is_one_edit(known, name)))
}

fn all() -> impl Iterator<Item = &'static str> {
    ANNOTATIONS.iter().map(|annotation| annotation.name)
}

/// Reports whether two names differ by one byte (inserted, deleted or replaced) or by two adjacent bytes swapped.
fn is_one_edit(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (one.get(same..).unwrap_or_default(), other.get(same..).unwrap_or_default());
    let same = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let differing = |rest: &[u8]| rest.len().saturating_sub(same);
    match (one, other) {
        ([a, b, ..], [c, d, ..]) if differing(one) == 2 && differing(other) == 2 => a == d && b == c,
        _ => matches!((differing(one), differing(other)), (0 | 1, 1) | (1, 0)),
    }
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
        assert_eq!(unknown(all().chain(unrelated)), [""; 0]);
    }

    #[test]
    fn one_edit_is_recognized() {
        for (one, other, is) in [
            ("abc", "abc", false),
            ("abc", "abd", true),
            ("abc", "ab", true),
            ("abc", "aabc", true),
            ("abc", "acb", true),
            ("abc", "cba", false),
            ("abc", "a", false),
            ("aab", "ab", true),
            ("", "a", true),
            ("ab", "cd", false),
            ("ab", "ca", false),
            ("ab", "bac", false),
        ] {
            assert_eq!((is_one_edit(one, other), is_one_edit(other, one)), (is, is), "{one} {other}");
        }
    }
}
