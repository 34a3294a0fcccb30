//! Annotations that nobody reads, and whose names look as if somebody should.

use super::{LISTS, MODE};
use crate::gates::{INJECT, STATUS};

/// The domain of Istio's traffic annotations, all of which are known here.
const TRAFFIC: &str = "traffic.sidecar.istio.io/";

/// So many are named.
const MOST: usize = 8;

/// A sentence for each name that is one edit away from a known one, or in Istio's traffic domain and
/// unknown. Nothing is redirected otherwise by it, which its author did not mean.
pub fn unknown<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.filter_map(sentence).take(MOST).collect()
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

/// The known annotation of this name, or one edit away from it.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    let all = || LISTS.into_iter().chain([MODE, STATUS, INJECT]);
    all().find(|known| *known == name).or_else(|| all().find(|known| is_one_edit(known, name)))
}

/// Whether one byte more, less or other, or two neighbours exchanged, make one text of the other.
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
    fn a_name_one_edit_away_is_told_with_the_one_that_was_meant() {
        for (name, meant) in [
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
            let told = unknown([name].into_iter());
            assert_eq!(told, [format!("annotation {name:?} is unknown: did you mean {meant}?")]);
        }
    }

    #[test]
    fn every_other_name_of_the_traffic_domain_is_told_too_and_known_ones_and_others_are_not() {
        let told = unknown(
            ["traffic.sidecar.istio.io/excludePorts", "traffic.sidecar.istio.io/\u{1b}[2J"].into_iter(),
        );
        assert_eq!(told.len(), 2);
        assert!(told.iter().all(|text| text.ends_with("is unknown") && !text.contains('\u{1b}')), "{told:?}");
        let others =
            ["sidecar.istio.io/proxyCPU", "sidecar.istio.io/rewriteAppHTTPProbers", "istio.io/rev", "app"];
        let known = LISTS.into_iter().chain([MODE, STATUS, INJECT]);
        assert_eq!(unknown(known.chain(others)), [""; 0]);
    }

    #[test]
    fn one_edit_is_one_edit() {
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
