//! Gybe's programs killed, and with failing system calls: the state that remains in the network namespace, as nft,
//! iptables and ip list it.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "prints the number of tested system calls")]

mod injected;

use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::invocation::Invocation;
use gybe_integration::namespace::sh;
use gybe_integration::programs::patient_iptables;
use gybe_integration::vectors;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Redirection, remove};
use gybe_netfilter::model::ruleset::Engine;
use gybe_netfilter::nft::Nft;
use gybe_test_support::TestDir;
use std::net::IpAddr;

/// A policy with every kind of object: sets, marks, zones, routes, routing rules and an address.
const TPROXY: &str = r#"{"mode": "TPROXY", "enable_ipv6": true, "redirect_dns": true, "capture_all_dns": true,
    "outbound_ports_exclude": [22, "8000-8100"], "outbound_cidrs_exclude": ["10.1.0.0/16", "fd01::/64"]}"#;

/// An earlier policy, which the one under test replaces.
const BEFORE: &str = r#"{"enable_ipv6": true, "outbound_ports_exclude": [1, 3, 5]}"#;

/// The plugin's ADD for a pod with addresses of both families.
fn add(directory: &TestDir) -> Invocation {
    let addresses: [IpAddr; 2] = ["10.9.9.9".parse().unwrap(), "fd00::9".parse().unwrap()];
    let invocation = Invocation::add(&addresses, directory).unwrap();
    invocation
        .namespace
        .run(|| sh("ip addr add 10.9.9.9/32 dev lo; ip addr add fd00::9/128 dev lo nodad"))
        .unwrap();
    invocation
}

/// Other owners' objects of every kind, some close to Gybe's in name, number or position.
const THEIRS: &str = "
    ip link add eth0 type bridge mcast_snooping 0
    ip link set eth0 addrgenmode none
    ip link set eth0 up
    ip addr add 10.9.9.9/24 dev eth0
    ip addr add fd00::9/64 dev eth0 nodad
    ip addr add 127.0.0.6/8 dev lo
    ip addr add 10.8.8.8/32 dev lo
    ip -6 addr add ::7/128 dev lo nodad
    ip -6 addr add fd00::8/128 dev lo nodad
    ip route add 192.0.2.0/24 via 10.9.9.1
    ip route add local 192.0.2.0/24 dev lo table 133
    ip route add default via 10.9.9.1 table 134
    ip -6 route add local fd07::/64 dev lo table 133
    ip -6 route add fd08::/64 dev eth0
    ip rule add fwmark 0x539 lookup 134
    ip rule add fwmark 7 lookup 133
    ip rule add from 10.9.9.9 lookup 134 priority 100
    ip -6 rule add fwmark 0x539 lookup 134
    ip -6 rule add to fd07::/64 lookup 133
    nft add table inet gybe-like
    nft add chain inet gybe-like nat-output '{ type nat hook output priority 7; }'
    nft add set inet gybe-like ports '{ type inet_service; flags interval; elements = { 22, 80-90 }; }'
    nft add rule inet gybe-like nat-output tcp dport @ports counter accept
    nft add table ip theirs
    nft add chain ip theirs gybe '{ type filter hook input priority 3; }'
    nft add rule ip theirs gybe ip saddr 192.0.2.1 counter packets 5 bytes 500 drop
    nft add table ip6 gybe
    nft add chain ip6 gybe nat-output
    nft add rule ip6 gybe nat-output meta mark 1337 counter packets 3 bytes 9
";

/// Other owners' iptables rules, for either variant, in the tables and chains that Gybe uses and in others.
const THEIR_TABLES: &str = "
    iptables -t nat -N DOCKER
    iptables -t nat -A OUTPUT -d 192.0.2.0/24 -j DOCKER
    iptables -t nat -A OUTPUT -m comment --comment 'not -j ISTIO_OUTPUT' -j DOCKER
    iptables -t nat -A PREROUTING -p tcp -m tcp --dport 99 -j REDIRECT --to-ports 98
    iptables -t mangle -A PREROUTING -p icmp -j ACCEPT
    iptables -t mangle -A OUTPUT -p udp -j MARK --set-xmark 0x3/0xffffffff
    iptables -t raw -A OUTPUT -p udp -m udp --dport 7 -j CT --zone 9
    iptables -A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
    ip6tables -t nat -A OUTPUT -p tcp -m tcp --dport 99 -j REDIRECT --to-ports 98
    ip6tables -t mangle -N ISTIO
    ip6tables -t raw -A PREROUTING -p tcp -j NOTRACK
";

/// The commands that list everything, without counters, because the kernel may send packets of its own.
const EVERYTHING: &str = "
    ip -j addr
    ip -j -4 rule; ip -j -6 rule
    ip -j -4 route show table all; ip -j -6 route show table all
    nft -j -a -s list ruleset | sed 's/}, {/},\\n{/g'
    iptables-legacy-save | sed -e 's/^#.*//' -e 's/ \\[[0-9:]*\\]$//'
    ip6tables-legacy-save | sed -e 's/^#.*//' -e 's/ \\[[0-9:]*\\]$//'
";

fn tables(name: &str) -> String {
    let program = |line: &str| line.trim().replacen("tables", &format!("tables-{name}"), 1);
    THEIR_TABLES.lines().map(program).collect::<Vec<_>>().join("\n")
}

/// Twelve policies of both modes and families, with different exclusions.
const POLICIES: [&str; 12] = [
    "inject-default-dual",
    "tproxy-default-dual",
    "inject-default-v4",
    "dns-all-tproxy-dual",
    "outbound-include-cidr",
    "dns-servers-dual",
    "exclude-if-tproxy",
    "outbound-none",
    "drop-invalid",
    "custom-ports",
    "outbound-exclude-cidr",
    "dns-all-dual",
];

fn assert_restored(backend: &dyn Backend, their_tables: &str, used_before: &[&str]) {
    let recorded = vectors::all().unwrap();
    let policy = |name: &str| {
        let vector = recorded.iter().find(|vector| vector.name == name);
        Redirection::of(&vector.unwrap_or_else(|| panic!("no vector {name}")).policy)
    };
    Namespace::new()
        .unwrap()
        .run(|| {
            sh(THEIRS);
            sh(&tables(their_tables));
            for name in used_before {
                policy(name).apply(backend).unwrap();
            }
            remove(backend).unwrap();
            let before = sh(EVERYTHING);
            for round in [&POLICIES[..], &POLICIES[..1], &POLICIES[3..4], &[]] {
                for name in round {
                    let redirection = policy(name);
                    redirection.apply(backend).unwrap_or_else(|error| panic!("{name}: {error:?}"));
                    assert_eq!(
                        redirection.differences(backend, &Presence::look().unwrap()).unwrap(),
                        [],
                        "{name} by {}",
                        backend.name()
                    );
                    assert_ne!(sh(EVERYTHING), before, "{name} by {}", backend.name());
                }
                remove(backend).unwrap();
                let after = sh(EVERYTHING);
                let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
                let (before, after) = (lines(&before), lines(&after));
                let gone: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
                let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
                let name = backend.name();
                assert!(before == after, "{name} after {round:?}: gone {gone:#?}, new {new:#?}");
            }
        })
        .unwrap();
}

#[test]
fn after_apply_and_remove_by_nft_other_owners_objects_are_unchanged() {
    for theirs in ["legacy", "nft"] {
        assert_restored(&Nft, theirs, &[]);
    }
}

/// iptables leaves empty tables and built-in chains after their first use, so they are used once before the comparison.
#[test]
fn after_apply_and_remove_by_iptables_other_owners_objects_are_unchanged() {
    for (variant, theirs) in [(Engine::Legacy, "legacy"), (Engine::NfTables, "nft")] {
        let backend = patient_iptables(variant).unwrap();
        assert_restored(&backend, theirs, &["dns-all-tproxy-dual", "inject-default-dual"]);
    }
}
