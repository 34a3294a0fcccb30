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
