//! What expressions, objects, matches and targets of other owners do to connections (docs/VERDICT.md): the verdict,
//! and real connections that show whether it is right.

use crate::other_owners::{Case, check, nft};
use gybe_integration::failure::Failure;
use gybe_integration::namespace::in_new_namespace;
use gybe_netfilter::inspect::verdict::RedirectionState;
use gybe_netfilter::xt::effect::{MATCHES, TARGETS};

const CASES: [Case; 25] = [
    // What VPN sidecars and traffic shapers write.
    (
        nft!(
            "route hook output priority -150",
            "tcp option maxseg size set 1360\ntcp option maxseg size set rt mtu\nip dscp set cs1\nip6 dscp set cs1\n\
             ip ttl set 65\nmeta priority set 1:10\nct label set 3\nct event set new\n\
             reset tcp option sack-permitted\nlog group 5\nmeta nftrace set 1"
        ),
        RedirectionState::Redirected,
        "",
    ),
    (
        nft!(
            "filter hook prerouting priority -150",
            "tcp option maxseg size set 1360\nip dscp set cs1\nip6 dscp set cs1\nip ttl set 65\n\
             ip ecn set not-ect"
        ),
        RedirectionState::Redirected,
        "",
    ),
    (
        "for ip in iptables-legacy ip6tables-nft; do
             for chain in OUTPUT PREROUTING POSTROUTING; do
                 $ip -t mangle -A $chain -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1360
                 $ip -t mangle -A $chain -j DSCP --set-dscp 10
                 $ip -t mangle -A $chain -j TOS --set-tos 8
                 $ip -t mangle -A $chain -p tcp -j CHECKSUM --checksum-fill
                 $ip -t mangle -A $chain -p tcp -j TCPOPTSTRIP --strip-options sack-permitted
                 $ip -t mangle -A $chain -j NFLOG --nflog-group 5
                 $ip -t mangle -A $chain -j AUDIT --type accept
                 $ip -t mangle -A $chain -j IDLETIMER --timeout 600 --label gybe-$chain
             done
             $ip -t mangle -A OUTPUT -p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu
             $ip -t mangle -A OUTPUT -j CLASSIFY --set-class 1:10
             $ip -t raw -A OUTPUT -j TRACE
         done
         iptables-nft -t mangle -A OUTPUT -j TTL --ttl-set 65
         iptables-nft -t mangle -A OUTPUT -p tcp -j ECN --ecn-tcp-remove",
        RedirectionState::Redirected,
        "",
    ),
    // Neighbour discovery needs a hop limit of 255.
    (nft!("filter hook prerouting priority -150", "ip6 hoplimit set 65"), RedirectionState::Unknown, ""),
    ("ip6tables-nft -t mangle -A PREROUTING -j HL --hl-set 65", RedirectionState::Unknown, ""),
    // A header that decides where the packet goes.
    (
        nft!("route hook output priority -150", "ip daddr 10.7.7.7 ip daddr set 10.1.2.3"),
        RedirectionState::Unknown,
        "ip daddr 10.7.7.7 @nh,128,32 set 0x0a010203",
    ),
    (nft!("route hook output priority -150", "tcp dport 443 tcp dport set 9000"), RedirectionState::Unknown, "tcp dport 443 @th,16,16 set 0x2328"),
    (nft!("filter hook prerouting priority -150", "meta pkttype set other"), RedirectionState::Unknown, "[meta set pkttype]"),
    (nft!("filter hook output priority -150", "tcp option timestamp tsval set 14"), RedirectionState::Unknown, "[exthdr set]"),
    // Packets add elements to a set that was created without a flag for it.
    (
        "nft add table inet other
         nft add set inet other known '{ type ipv4_addr; }'
         nft -f - <<'END'
table inet other {
    chain theirs {
        type filter hook output priority -150;
        ip daddr @known drop
        tcp dport 443 update @known { ip daddr }
    }
}
END",
        RedirectionState::Unknown,
        "ip daddr @known drop",
    ),
    // The helper and the expectation belong to connections that the policy leaves alone.
    (
        "nft -f - <<'END'
table inet other {
    ct helper files { type \"ftp\" protocol tcp; }
    chain theirs { type filter hook output priority 0; meta skuid 1337 tcp dport 21 ct helper set \"files\"; }
}
END",
        RedirectionState::Unknown,
        "ct helper files decides where expected connections go: hook output priority 0, inet other theirs: skuid 1337 tcp dport 21",
    ),
    (
        "nft -f - <<'END'
table inet other {
    ct helper files { type \"ftp\" protocol tcp; }
    chain theirs { type filter hook output priority 0; meta skuid 1337 ct helper set tcp dport map { 21 : \"files\" }; }
}
END",
        RedirectionState::Unknown,
        "ct helper @__objmap0 decides",
    ),
    (
        "nft -f - <<'END'
table inet other {
    ct expectation more { protocol tcp; dport 9876; timeout 2m; size 12; l3proto ip; }
    chain theirs { type filter hook output priority 0; meta skuid 1337 tcp dport 8888 ct expectation set \"more\"; }
}
END",
        RedirectionState::Unknown,
        "ct expectation",
    ),
    (
        "iptables-legacy -t raw -A OUTPUT -p tcp --dport 21 -m owner --uid-owner 1337 -j CT --helper ftp",
        RedirectionState::Unknown,
        "-j CT --helper ftp",
    ),
    (
        "nft -f - <<'END'
table inet other {
    ct timeout short { protocol tcp; l3proto ip; policy = { established: 1 }; }
    chain theirs { type filter hook output priority 0; ct timeout set \"short\"; }
}
END",
        RedirectionState::Unknown,
        "ct timeout",
    ),
    (
        "nft -f - <<'END'
table inet other {
    counter many { }
    quota much { 100 mbytes }
    chain theirs { type filter hook output priority 0; counter name \"many\"; quota name \"much\"; }
}
END",
        RedirectionState::Redirected,
        "",
    ),
    (
        "nft -f - <<'END'
table inet other {
    synproxy proxy { mss 1460; wscale 7; }
    chain theirs { type filter hook input priority 0; tcp dport 8080 synproxy name \"proxy\"; }
}
END",
        RedirectionState::Redirected,
        "",
    ),
    // The kernel has found the receiving socket of a known connection before this hook.
    (
        nft!("filter hook input priority -140", "meta skuid 1337 reject with tcp reset"),
        RedirectionState::Unknown,
        "skuid 1337 reject",
    ),
    // Zones: of both directions, of one, and by the packet's mark.
    (
        "iptables-legacy -t raw -A OUTPUT -m owner --uid-owner 1000 -j CT --zone 5",
        RedirectionState::NotRedirected,
        "-j CT --zone 5",
    ),
    (
        "iptables-legacy -t raw -A OUTPUT -m owner --uid-owner 1000 -j CT --zone-orig 5",
        RedirectionState::Redirected,
        "-j CT --zone-orig 5",
    ),
    (
        "iptables-nft -t raw -A OUTPUT -m owner --uid-owner 1000 -j CT --zone-reply 5",
        RedirectionState::NotRedirected,
        "-j CT --zone-reply 5",
    ),
    (
        "iptables-legacy -t raw -A OUTPUT -m owner --uid-owner 1000 -j MARK --set-mark 5
         iptables-legacy -t raw -A OUTPUT -j CT --zone mark",
        RedirectionState::NotRedirected,
        "-j CT --zone mark",
    ),
    (
        nft!("filter hook output priority -300", "meta skuid 1000 ct original zone set 5"),
        RedirectionState::Redirected,
        "ct original zone set 5",
    ),
    (
        nft!("filter hook output priority -300", "meta skuid 1000 ct reply zone set 5"),
        RedirectionState::NotRedirected,
        "ct reply zone set 5",
    ),
    // A template of connection tracking makes a packet new before it is tracked.
    (
        nft!("filter hook output priority -300", "meta skuid 1000 ct zone set 0\nct state new notrack"),
        RedirectionState::Redirected,
        "",
    ),
];

#[test]
fn statements_of_other_owners_are_judged_by_what_the_kernel_does_with_them() -> Result<(), Failure> {
    check(CASES.to_vec())
}

/// The kernel lists its extensions of iptables; of nf_tables' expressions there is no list.
#[test]
fn every_match_and_target_of_this_kernel_is_in_the_table() -> Result<(), Failure> {
    for (what, table) in [("matches", MATCHES), ("targets", TARGETS)] {
        for family in ["ip", "ip6"] {
            let path = format!("/proc/thread-self/net/{family}_tables_{what}");
            let registered = in_new_namespace(|| std::fs::read_to_string(&path))?;
            assert!(registered.lines().count() > 20, "{path}: {registered}");
            // The first entry of a user's chain has the target ERROR.
            let missing = |name: &&str| {
                *name != "ERROR" && !table.iter().any(|row| row.names.iter().any(|one| one.0 == *name))
            };
            assert_eq!(registered.lines().filter(missing).collect::<Vec<_>>(), [""; 0], "{path}");
        }
    }
    Ok(())
}
