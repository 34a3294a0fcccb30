//! What keeps redirected packets from the proxy, apart from rules at netfilter's hooks: the loopback addresses, and the
//! kernel's check of sources. Only reads.

use crate::live::rules::Interface;
use crate::policy::{Families, Inbound, Mode, PortSet, RedirectPolicy};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const LOOPBACK: &str = "lo";
const LOOPBACK_V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// `rp_filter`: the reply would have to leave by the interface.
const STRICT: u8 = 1;

/// The obstacles in the namespace of the calling thread, one sentence each.
pub(super) fn obstacles(policy: Option<&RedirectPolicy>, interfaces: &[Interface]) -> Vec<String> {
    let lo = interfaces.iter().find(|one| one.name == LOOPBACK);
    let has_ipv6 = policy.is_some_and(|policy| policy.families == Families::V4AndV6);
    let mut all = Vec::new();
    if !lo.is_some_and(|lo| lo.is_raised) {
        let lost = "no connection of the application reaches the proxy, and the proxy reaches no application";
        all.push(format!("lo is down: {lost}; run ip link set lo up in the pod's namespace"));
    } else {
        for (address, length, is_needed) in [(LOOPBACK_V4, 8, true), (LOOPBACK_V6, 128, has_ipv6)] {
            let has = lo.is_some_and(|lo| {
                lo.addresses.iter().any(|one| one.is_loopback() && one.is_ipv4() == address.is_ipv4())
            });
            if is_needed && !has {
                all.push(format!(
                    "lo has lost {address}: no connection of the application reaches the proxy; run \
                     ip address add {address}/{length} dev lo in the pod's namespace"
                ));
            }
        }
    }
    let has_ipv4 = |one: &Interface| one.addresses.iter().any(IpAddr::is_ipv4);
    let intercepted =
        |one: &&Interface| policy.is_some_and(|policy| is_intercepted(policy, &one.name)) && has_ipv4(one);
    let names = interfaces.iter().filter(intercepted).map(|one| one.name.as_str());
    let dropped: Vec<&str> = names.filter(|name| are_marked_packets_dropped(name)).collect();
    if !dropped.is_empty() {
        all.push(format!(
            "the kernel drops intercepted IPv4 packets that arrive by {}: src_valid_mark is set, in net.ipv4.conf.all or \
             the interface's; set it to 0 in the pod's namespace, and on the node, from which new namespaces copy it",
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
/// delivers intercepted packets to this host, and drops the packet, unless `accept_local` is set and `rp_filter` is not
/// strict (`__fib_validate_source`, net/ipv4/fib_frontend.c, v6.18). IPv6 has no such check.
fn are_marked_packets_dropped(interface: &str) -> bool {
    // Of all and of the interface, the larger value counts (include/linux/inetdevice.h, v6.18).
    let value = |key: &str| {
        let paths = ["all", interface].map(|name| format!("/proc/sys/net/ipv4/conf/{name}/{key}"));
        let values = paths.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u8>().ok());
        values.max().unwrap_or_default()
    };
    value("src_valid_mark") != 0 && (value("accept_local") == 0 || value("rp_filter") == STRICT)
}
