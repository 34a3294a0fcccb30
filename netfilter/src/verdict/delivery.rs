//! What keeps redirected packets from the proxy, apart from rules at netfilter's hooks: the loopback addresses, and the
//! kernel's check of sources. Only reads.

use crate::live::rules::Interface;
use crate::policy::{Families, Inbound, Mode, PortSet, RedirectPolicy};
use std::fs;
use std::net::IpAddr;

const LOOPBACK: &str = "lo";

/// The obstacles in the namespace of the calling thread, one sentence each.
pub(super) fn obstacles(policy: Option<&RedirectPolicy>, interfaces: &[Interface]) -> Vec<String> {
    let lo = interfaces.iter().find(|one| one.name == LOOPBACK);
    let has = |is_v6: bool| {
        let mut addresses = lo.into_iter().flat_map(|lo| &lo.addresses);
        addresses.any(|address| address.is_loopback() && address.is_ipv6() == is_v6)
    };
    let has_ipv6 = policy.is_some_and(|policy| policy.families == Families::V4AndV6);
    let mut all = Vec::new();
    if !lo.is_some_and(|lo| lo.is_raised) {
        all.push("no packet reaches the proxy: lo is down".to_owned());
    } else if !has(false) || (has_ipv6 && !has(true)) {
        all.push("redirected packets do not reach the proxy: lo has lost its address".to_owned());
    }
    let has_ipv4 = |one: &Interface| one.addresses.iter().any(IpAddr::is_ipv4);
    let intercepted =
        |one: &&Interface| policy.is_some_and(|policy| is_intercepted(policy, &one.name)) && has_ipv4(one);
    let names = interfaces.iter().filter(intercepted).map(|one| one.name.as_str());
    let dropped: Vec<&str> = names.filter(|name| are_marked_packets_dropped(name)).collect();
    if !dropped.is_empty() {
        all.push(format!(
            "the kernel drops intercepted IPv4 packets that arrive by {}: net.ipv4.conf.INTERFACE.src_valid_mark, or \
             that of all, is 1; set it to 0, and on the node for new pods",
            dropped.join(", ")
        ));
    }
    all
}

/// Reports whether TPROXY intercepts what arrives by this interface.
fn is_intercepted(policy: &RedirectPolicy, interface: &str) -> bool {
    let is_excluded = policy.excluded_interfaces.iter().any(|one| one.as_str() == interface);
    let is_tproxy = matches!(policy.mode, Mode::Tproxy { .. });
    is_tproxy && policy.inbound != Inbound::Only(PortSet::default()) && interface != LOOPBACK && !is_excluded
}

/// Reports whether the kernel looks up the source of a marked packet with its mark. It then finds the route that
/// delivers intercepted packets to this host, and drops the packet (`__fib_validate_source`, net/ipv4/fib_frontend.c,
/// v6.18). IPv6 has no such check.
fn are_marked_packets_dropped(interface: &str) -> bool {
    let is_set = |path: String| fs::read_to_string(path).is_ok_and(|value| value.trim() != "0");
    let is_on = |key: &str| {
        ["all", interface].iter().any(|name| is_set(format!("/proc/sys/net/ipv4/conf/{name}/{key}")))
    };
    is_on("src_valid_mark") && !is_on("accept_local")
}
