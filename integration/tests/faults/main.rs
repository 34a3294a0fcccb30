//! Gybe's programs killed, and with failing system calls: the state that remains in the network namespace, as nft,
//! iptables and ip list it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "prints the number of tested system calls")]

mod injected;
mod killed;
mod restored;

use gybe_integration::invocation::Invocation;
use gybe_integration::namespace::sh;
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
