//! The policies of the flow vectors that rustables cannot write completely, with the reason. The list may only shrink,
//! except for policies that are new in the vectors (the last line).

/// In rustables 0.9 an element of a set has a key and no flags: it can be the start of a range, not the end. All rules and
/// all other sets of these policies are written and compared.
pub(crate) const ENDS_OF_RANGES: &str = "the ends of ranges in a set";

/// Reasons and names of policies.
pub(crate) const RUSTABLES_CANNOT: [(&str, &str); 1] = [(
    ENDS_OF_RANGES,
    "
cni-default-v4 custom-ports dns-all-dual dns-all-tproxy-dual dns-enabled-no-servers dns-servers-dual
drop-invalid exclude-if exclude-if-tproxy inbound-list inject-default-dual inject-default-v4
loopback-cidr-8 outbound-exclude-cidr outbound-include-cidr outbound-none outbound-ports-exclude
outbound-ports-exclude-8080 outbound-ports-include owner-exclude owner-exclude-dns-all owner-include
owner-include-dns-all tproxy-default-dual uid-gid-lists virt-if-dns-all virt-if-tproxy
virt-if-wildcard
random-000 random-001 random-002 random-003 random-004 random-005 random-006 random-007 random-008
random-009 random-010 random-011 random-013 random-014 random-015 random-016 random-017 random-018
random-019 random-020 random-021 random-022 random-024 random-025 random-026 random-027 random-028
random-029 random-030 random-031 random-032 random-033 random-035 random-036 random-037 random-038
random-039
virt-if-include-cidr
",
)];
