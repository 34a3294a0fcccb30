//! What each expression, object, match and target of Linux 6.18 can do to a connection. docs/VERDICT.md has the same
//! tables. The readers of live rules decode by them, the walk evaluates.

use std::fmt;

/// What a statement can do to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The walk evaluates it.
    Evaluated,
    /// It may end the rule, by facts that a walk does not have. It does no more.
    Test,
    /// It ends no rule, and changes nothing that decides where a packet goes.
    Nothing,
    /// Not evaluated: an outcome is unknown when the connection reaches it.
    Unknown,
    /// It decides about connections that do not reach it.
    OtherConnections,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Evaluated => "evaluated",
            Self::Test => "both results tried",
            Self::Nothing => "no effect",
            Self::Unknown => "`unknown`",
            Self::OtherConnections => "`unknown` for all",
        })
    }
}

/// A name, and the last revision of an extension of iptables that has this effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name(pub &'static str, pub u8);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            0 => write!(f, "`{}`", self.0),
            revision => write!(f, "`{}` {revision}", self.0),
        }
    }
}

/// Names with the same effect, for the same reason.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The names.
    pub names: &'static [Name],
    /// Their effect.
    pub effect: Effect,
    /// The reason, as the page has it.
    pub because: &'static str,
}

/// Declares a table: each row is an effect, its names with their revisions, and the reason.
macro_rules! rows {
    ($($effect:ident $because:literal: $($name:literal $($revision:literal)?),+;)+) => {
        &[$(Row {
            effect: Effect::$effect,
            because: $because,
            names: &[$(Name($name, 0 $(+ $revision)?)),+],
        }),+]
    };
}

/// The expressions of nf_tables. A name with `set` or `reset` is the form that writes.
pub const EXPRESSIONS: &[Row] = rows! {
    Evaluated "loads, compares or computes; what the packet does not show is tried with both results, `fib` too":
        "bitwise", "byteorder", "cmp", "ct", "immediate", "lookup", "meta", "payload", "range";
    Evaluated "marks decide routes and later rules": "meta set mark", "ct set mark";
    Evaluated "a packet of another zone belongs to another connection": "ct set zone", "notrack";
    Evaluated "fields that route no packet (DSCP, ECN, TTL, flow label, identification) may change, with the checksum of IPv4's \
        header; `unknown` for any other change or checksum, also of the hop limit, which neighbour discovery needs": "payload set";
    Evaluated "translates, intercepts (a listener is assumed) or refuses; `unknown` for more than one address or port":
        "masq", "nat", "redir", "reject", "tproxy";
    Evaluated "see the tables of objects, matches and targets": "match", "objref", "target";
    Test "loads what the sender, a socket, a route or chance decides, or ends the rule":
        "exthdr", "fib", "hash", "numgen", "osf", "rt", "socket", "tunnel", "xfrm";
    Test "packets change it: earlier ones decide whether the next passes": "connlimit", "limit", "quota";
    Test "ends the rule when the set is full; a set that any rule adds to has unknown elements, whatever its flags":
        "dynset";
    Test "ends the rule for what is not TCP; the connection's ends agree on what is left":
        "exthdr set maxseg", "exthdr reset";
    Nothing "counts or logs": "counter", "last", "log", "meta set nftrace";
    Nothing "a class of a queueing discipline, a label or an event": "ct set event", "ct set label", "meta set priority";
    Unknown "a copy of the proxy's reply reaches the client before it is translated back": "dup";
    Unknown "another interface, or a path that passes no hook": "flow_offload", "fwd";
    Unknown "a program decides": "queue";
    Unknown "the kernel answers in place of the server": "synproxy";
    Unknown "the kernel drops what it takes for another host's packet": "meta set pkttype";
    Unknown "not evaluated": "ct set", "exthdr set", "inner", "meta set";
};

/// The types of nf_tables' objects, by their number (`NFT_OBJECT_*`), which begins at 1.
const OBJECT_TYPES: [&str; 10] = [
    "counter",
    "quota",
    "ct helper",
    "limit",
    "connlimit",
    "tunnel",
    "ct timeout",
    "secmark",
    "ct expectation",
    "synproxy",
];

/// The objects of nf_tables.
pub const OBJECTS: &[Row] = rows! {
    Nothing "counts, or labels for SELinux": "counter", "secmark";
    Test "packets change it": "connlimit", "limit", "quota";
    Unknown "the entry of a connection ends early, and with it the translation": "ct timeout";
    Unknown "as the expression": "synproxy";
    Unknown "sends the packet through a tunnel": "tunnel";
    OtherConnections "an expected connection is translated like the one that announced it, before any rule":
        "ct helper";
    OtherConnections "an expected connection is `related`, and has the mark of the one that announced it":
        "ct expectation";
};

/// The matches of iptables. The number is the last revision.
pub const MATCHES: &[Row] = rows! {
    Evaluated "tests what a walk knows; the rest of it is tried with both results":
        "addrtype" 1, "comment", "connmark" 1, "conntrack" 3, "icmp", "icmp6", "iprange" 1, "mark" 1, "multiport" 1,
        "owner" 1, "state", "tcp", "udp";
    Evaluated "tried with both results; `unknown` with `--restore-skmark`, which sets the packet's mark": "socket" 3;
    Test "the sender chooses it":
        "ah", "dccp", "dscp", "dst", "ecn", "esp", "eui64", "frag", "hbh", "hl", "ipcomp", "ipv6header", "l2tp",
        "length", "mac", "mh", "pkttype", "rt", "sctp", "srh" 1, "string" 1, "tcpmss", "tos" 1, "ttl", "u32",
        "udplite";
    Test "packets, programs or time change it":
        "connbytes", "connlabel", "connlimit" 1, "limit", "nfacct", "quota", "rateest", "recent" 1,
        "set" 4, "statistic", "time";
    Test "the socket, the route, the interface or the machine decides":
        "bpf" 1, "cgroup" 2, "cluster", "cpu", "devgroup", "helper", "ipvs", "osf", "physdev", "policy", "realm",
        "rpfilter";
    Unknown "drops packets when its table is full": "hashlimit" 3;
};

/// The targets of iptables. The number is the last revision.
pub const TARGETS: &[Row] = rows! {
    Evaluated "as the expressions of nf_tables; `unknown` for more than one address or port":
        "CONNMARK" 2, "DNAT" 2, "MARK" 2, "MASQUERADE", "REDIRECT", "REJECT", "SNAT" 2, "TPROXY" 1;
    Evaluated "zones of both directions, of one, and by the mark; `unknown` with a timeout, `unknown` for all with a \
        helper": "CT" 2, "NOTRACK";
    Nothing "counts, logs, or notifies": "AUDIT" 1, "IDLETIMER" 1, "LED", "LOG", "NFLOG", "RATEEST", "TRACE";
    Nothing "changes fields that route no packet, unless a routing rule looks at them":
        "CHECKSUM", "CLASSIFY", "DSCP", "ECN", "TOS" 1, "TTL";
    Nothing "the connection's ends agree on what is left": "TCPMSS", "TCPOPTSTRIP";
    Nothing "labels for SELinux": "CONNSECMARK", "SECMARK" 1;
    Nothing "changes an ipset, which `set` reads; `unknown` with `--map-set`, which sets marks": "SET" 3;
    Unknown "hosts ignore neighbour discovery with another hop limit than 255": "HL";
    Unknown "sets a mark that is not known": "HMARK";
    Unknown "a program decides": "NFQUEUE" 3;
    Unknown "the kernel answers in place of the server": "SYNPROXY";
    Unknown "a copy of the proxy's reply reaches the client before it is translated back": "TEE" 1;
    Unknown "maps networks": "DNPT", "NETMAP", "SNPT";
};

/// The effect of a name in a table; [`Effect::Unknown`] for a name or revision that is not there.
pub fn effect(table: &[Row], name: &str, revision: u8) -> Effect {
    let has = |row: &&Row| row.names.iter().any(|one| one.0 == name && revision <= one.1);
    table.iter().find(has).map_or(Effect::Unknown, |row| row.effect)
}

/// The name of an object's type.
pub(crate) fn object_type(number: u32) -> Option<&'static str> {
    OBJECT_TYPES.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/VERDICT.md");

    const TABLES: [(&str, &[Row]); 4] = [
        ("Expressions of nf_tables", EXPRESSIONS),
        ("Objects of nf_tables", OBJECTS),
        ("Matches of iptables", MATCHES),
        ("Targets of iptables", TARGETS),
    ];

    #[test]
    fn the_page_has_the_tables_of_the_code() {
        let mut missing = String::new();
        for (title, table) in TABLES {
            let row = |Row { names, effect, because }: &Row| {
                let names: Vec<_> = names.iter().map(ToString::to_string).collect();
                format!("| {} | {effect} | {because} |\n", names.join(", "))
            };
            let rows: String = table.iter().map(row).collect();
            let expected = format!("\n| {title} | Decision | Reason |\n|---|---|---|\n{rows}\n");
            if !PAGE.contains(&expected) {
                missing.push_str(&expected);
            }
        }
        assert!(missing.is_empty(), "docs/VERDICT.md should have:\n{missing}");
    }

    #[test]
    fn a_name_or_revision_that_the_table_lacks_is_unknown() {
        assert_eq!(effect(MATCHES, "conntrack", 3), Effect::Evaluated);
        assert_eq!(effect(MATCHES, "conntrack", 4), Effect::Unknown);
        assert_eq!(effect(TARGETS, "TELEPORT", 0), Effect::Unknown);
        assert_eq!((object_type(0), object_type(3), object_type(11)), (None, Some("ct helper"), None));
        for (title, table) in TABLES {
            let mut names: Vec<_> = table.iter().flat_map(|row| row.names).map(|name| name.0).collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair.first() != pair.last()), "{title}: {names:?}");
        }
        assert!(
            OBJECT_TYPES
                .iter()
                .all(|name| OBJECTS.iter().any(|row| row.names.iter().any(|one| one.0 == *name)))
        );
    }
}
