//! What keeps redirected packets from the proxy, apart from rules at netfilter's hooks: the loopback addresses, and the
//! kernel's check of sources. Only reads.

use crate::live::rules::Interface;
use crate::policy::{Families, Inbound, Mode, PortSet, RedirectPolicy};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const LOOPBACK: &str = "lo";
const LOOPBACK_V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// The obstacles in the namespace of the calling thread, one sentence each.
pub(super) fn obstacles(policy: Option<&RedirectPolicy>, interfaces: &[Interface]) -> Vec<String> {
    let has_ipv6 = policy.is_some_and(|policy| policy.families == Families::V4AndV6);
    let lo = interfaces.iter().find(|one| one.name == LOOPBACK);
    let dropped = policy.and_then(|policy| dropped_arrivals(policy, interfaces));
    loopback(lo, has_ipv6).into_iter().chain(dropped).collect()
}

/// What is wrong with `lo`.
fn loopback(lo: Option<&Interface>, has_ipv6: bool) -> Vec<String> {
    let Some(lo) = lo.filter(|lo| lo.is_raised) else {
        let lost = "no connection of the application reaches the proxy, and the proxy reaches no application";
        return vec![format!("lo is down: {lost}; run ip link set lo up in the pod's namespace")];
    };
    let needed = [(LOOPBACK_V4, 8, true), (LOOPBACK_V6, 128, has_ipv6)].into_iter();
    let lost = needed.filter(|(address, _, is_needed)| {
        let has = lo.addresses.iter().any(|one| one.is_loopback() && one.is_ipv4() == address.is_ipv4());
        *is_needed && !has
    });
    let text = |(address, length, _)| {
        format!(
            "lo has lost {address}: no connection of the application reaches the proxy; run ip address add \
             {address}/{length} dev lo in the pod's namespace"
        )
    };
    lost.map(text).collect()
}

/// Names the interfaces by which TPROXY intercepts IPv4 packets and the kernel then drops them.
fn dropped_arrivals(policy: &RedirectPolicy, interfaces: &[Interface]) -> Option<String> {
    let has_ipv4 = |one: &&Interface| one.addresses.iter().any(IpAddr::is_ipv4);
    let intercepted = interfaces.iter().filter(|one| is_intercepted(policy, &one.name)).filter(has_ipv4);
    let names = intercepted.map(|one| one.name.as_str());
    let dropped: Vec<&str> = names.filter(|name| SourceCheck::read(name).drops_intercepted()).collect();
    let names = dropped.join(", ");
    (!dropped.is_empty()).then(|| {
        format!(
            "the kernel drops intercepted IPv4 packets that arrive by {names}: src_valid_mark is set, in \
             net.ipv4.conf.all or the interface's; set it to 0 in the pod's namespace, and on the node, from which new \
             namespaces copy it"
        )
    })
}

/// Reports whether TPROXY intercepts what arrives by this interface.
fn is_intercepted(policy: &RedirectPolicy, interface: &str) -> bool {
    let is_excluded = policy.excluded_interfaces.iter().any(|one| one.as_str() == interface);
    let is_tproxy = matches!(policy.mode, Mode::Tproxy { .. });
    is_tproxy && policy.inbound != Inbound::Only(PortSet::default()) && interface != LOOPBACK && !is_excluded
}

/// The kernel's check of the source of IPv4 packets that arrive by an interface (net.ipv4.conf). IPv6 has none.
#[derive(Debug, Clone, Copy)]
struct SourceCheck {
    src_valid_mark: u8,
    accept_local: u8,
    rp_filter: u8,
}

impl SourceCheck {
    /// Reads the settings of an interface. Of its value and that of all interfaces the larger counts
    /// (include/linux/inetdevice.h, v6.18).
    fn read(interface: &str) -> Self {
        let value = |key: &str| {
            let paths = ["all", interface].map(|name| format!("/proc/sys/net/ipv4/conf/{name}/{key}"));
            let values =
                paths.iter().filter_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u8>().ok());
            values.max().unwrap_or_default()
        };
        Self {
            src_valid_mark: value("src_valid_mark"),
            accept_local: value("accept_local"),
            rp_filter: value("rp_filter"),
        }
    }

    /// Reports whether intercepted packets are dropped: with `src_valid_mark` the kernel looks up their source with
    /// their mark, and finds the route that delivers intercepted packets to this host. It accepts that only with
    /// `accept_local`, and not where `rp_filter` is strict (`__fib_validate_source`, net/ipv4/fib_frontend.c, v6.18).
    fn drops_intercepted(self) -> bool {
        const STRICT: u8 = 1;
        self.src_valid_mark != 0 && (self.accept_local == 0 || self.rp_filter == STRICT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_looked_up_with_the_mark_must_be_accepted_as_local_and_not_strictly() {
        for (src_valid_mark, accept_local, rp_filter, is_dropped) in [
            (0, 0, 0, false),
            (0, 0, 1, false),
            (1, 0, 0, true),
            (1, 0, 2, true),
            (1, 1, 0, false),
            (1, 1, 1, true),
            (1, 1, 2, false),
        ] {
            let check = SourceCheck { src_valid_mark, accept_local, rp_filter };
            assert_eq!(check.drops_intercepted(), is_dropped, "{check:?}");
        }
    }
}
