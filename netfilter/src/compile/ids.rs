//! The ids of all rules that [`compile`](super::compile) can return, for tests that show the purpose of each rule.
//! The rules are in the files of their chains.

/// Every rule id, sorted.
pub const RULE_IDS: [&str; 68] = [
    "answer-to-proxy",
    "dns-to-agent-tcp",
    "dns-to-agent-tcp-v4",
    "dns-to-agent-tcp-v6",
    "dns-to-agent-udp",
    "dns-to-agent-udp-v4",
    "dns-to-agent-udp-v6",
    "drop-invalid",
    "excluded-interface-in",
    "excluded-interface-out",
    "excluded-interface-unmarked",
    "excluded-owner-group",
    "inbound-excluded-port",
    "inbound-passthrough-on-lo-v4",
    "inbound-passthrough-on-lo-v6",
    "inbound-passthrough-v4",
    "inbound-passthrough-v6",
    "inbound-to-proxy",
    "inside-the-pod",
    "intercept-v4",
    "intercept-v6",
    "intercepted-before",
    "keep-mark",
    "mark-proxy-gid-v4",
    "mark-proxy-gid-v6",
    "mark-proxy-uid-v4",
    "mark-proxy-uid-v6",
    "not-intercepted-v4",
    "not-intercepted-v6",
    "outbound-excluded-dns",
    "outbound-excluded-port",
    "outbound-excluded-v4",
    "outbound-excluded-v6",
    "outbound-included-port",
    "outbound-to-proxy",
    "outbound-to-proxy-v4",
    "outbound-to-proxy-v6",
    "over-loopback",
    "own-pod-but-dns",
    "own-pod-proxy-gid",
    "own-pod-proxy-uid",
    "own-pod-to-capture",
    "proxy-gid",
    "proxy-group-to-own-pod-v4",
    "proxy-group-to-own-pod-v6",
    "proxy-keeps-source",
    "proxy-to-app",
    "proxy-to-own-pod-v4",
    "proxy-to-own-pod-v6",
    "proxy-uid",
    "to-capture",
    "to-loopback-v4",
    "to-loopback-v6",
    "tunnel-port",
    "virtual-interface",
    "virtual-interface-to-proxy",
    "virtual-interface-to-proxy-v4",
    "virtual-interface-to-proxy-v6",
    "zone-app-queries",
    "zone-app-queries-v4",
    "zone-app-queries-v6",
    "zone-proxy-gid-answers",
    "zone-proxy-gid-queries",
    "zone-proxy-uid-answers",
    "zone-proxy-uid-queries",
    "zone-upstream-answers",
    "zone-upstream-answers-v4",
    "zone-upstream-answers-v6",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The source of the chains contains no string literals other than rule ids, so the test reads the source: it also
    /// finds a rule that no policy in a test produces.
    #[test]
    fn the_list_contains_exactly_the_ids_in_the_source_of_the_chains() {
        let chains = [
            include_str!("raw.rs"),
            include_str!("mangle.rs"),
            include_str!("inbound.rs"),
            include_str!("outbound.rs"),
        ];
        let code = chains.iter().flat_map(|text| text.lines()).filter(|line| !line.trim().starts_with("//"));
        let written: BTreeSet<&str> = code.flat_map(|line| line.split('"').skip(1).step_by(2)).collect();
        assert_eq!(written.into_iter().collect::<Vec<_>>(), RULE_IDS);
    }
}
