//! Routes, routing rules and the address `::6`: added, found, removed, and nothing else with them.

use crate::namespace::{in_new_namespace, ip, without_privilege};
use crate::rules::policy;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::{Families, Inbound, Mode, PortSet};
use gybe_netfilter::redirection::{self, Redirection};
use gybe_netfilter::routes::{self, Routes, RoutesError, Rtnetlink, addresses};

const TPROXY: Mode = Mode::Tproxy { mark: 1337, route_table: 133 };

/// All of routing, less what the kernel writes by itself: that comes some time after an address.
fn everything() -> String {
    let parts =
        ["-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all", "-6 addr show dev lo"];
    let lines: String = parts.map(ip).concat();
    lines.lines().filter(|line| !line.contains("proto kernel")).map(|line| format!("{line}\n")).collect()
}

fn routing() -> Rtnetlink {
    Rtnetlink::open().unwrap()
}

/// A namespace whose loopback interface is up, as a runtime hands it over.
fn in_pod<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    in_new_namespace(|| {
        ip("link set lo up");
        work()
    })
}

#[test]
fn only_what_a_policy_needs_is_wanted() {
    let wanted = |mode, families, inbound| {
        let mut policy = policy();
        (policy.mode, policy.families, policy.inbound) = (mode, families, inbound);
        Routes::wanted(&policy)
    };
    let all = || Inbound::AllBut(PortSet::default());
    let none = || Inbound::Only(PortSet::default());
    assert!(wanted(Mode::Redirect, Families::V4Only, all()).is_empty());
    assert!(wanted(TPROXY, Families::V4Only, none()).is_empty());
    assert!(!wanted(Mode::Redirect, Families::V4AndV6, none()).is_empty());
    assert!(!wanted(TPROXY, Families::V4Only, all()).is_empty());
}

#[test]
fn tproxy_on_both_families_adds_rules_routes_and_the_address_once_however_often() {
    in_pod(|| {
        let mut policy = policy();
        policy.mode = TPROXY;
        let (wanted, mut routing) = (Routes::wanted(&policy), routing());
        assert_eq!(wanted.missing(&mut routing).unwrap().len(), 5);
        wanted.apply(&mut routing).unwrap();
        let once = everything();
        for family in ["-4", "-6"] {
            let rules = ip(&format!("{family} rule"));
            assert_eq!(rules.matches("from all fwmark 0x539 lookup 133").count(), 1, "{rules}");
            let routes = ip(&format!("{family} route show table 133"));
            assert!(routes.starts_with("local default dev lo proto 71"), "{routes}");
        }
        assert!(ip("-6 addr show dev lo").contains("inet6 ::6/128 scope global"), "{once}");
        wanted.apply(&mut routing).unwrap();
        assert_eq!(everything(), once);
        assert_eq!(wanted.missing(&mut routing).unwrap(), []);
    });
}

#[test]
fn removing_takes_what_is_ours_and_nothing_else() {
    in_pod(|| {
        ip("rule add fwmark 0x539 lookup 134");
        ip("-6 rule add fwmark 7 lookup 133");
        ip("route add local 192.0.2.0/24 dev lo table 133");
        ip("-6 addr add ::7/128 dev lo nodad");
        let before = everything();
        let mut policy = policy();
        policy.mode = TPROXY;
        Routes::wanted(&policy).apply(&mut routing()).unwrap();
        assert_ne!(everything(), before);
        routes::remove(&mut routing()).unwrap();
        assert_eq!(everything(), before);
        routes::remove(&mut routing()).unwrap();
        assert_eq!(everything(), before);
    });
}

#[test]
fn what_somebody_else_added_already_will_do_and_stays_theirs() {
    in_pod(|| {
        ip("rule add fwmark 0x539 lookup 133");
        ip("route add local default dev lo table 133");
        ip("-6 addr add ::6/128 dev lo nodad");
        let mut policy = policy();
        policy.mode = TPROXY;
        let wanted = Routes::wanted(&policy);
        wanted.apply(&mut routing()).unwrap();
        assert_eq!(wanted.missing(&mut routing()).unwrap(), []);
        routes::remove(&mut routing()).unwrap();
        assert!(ip("rule").contains("fwmark 0x539") && ip("-6 addr show dev lo").contains("::6/128"));
        assert!(ip("-6 route show table all").lines().all(|line| !line.contains("table 133")));
    });
}

#[test]
fn a_table_that_leads_elsewhere_is_not_taken_for_ours() {
    in_pod(|| {
        ip("route add blackhole default table 133");
        let mut policy = policy();
        (policy.mode, policy.families) = (TPROXY, Families::V4Only);
        let error = Routes::wanted(&policy).apply(&mut routing()).unwrap_err();
        assert!(matches!(error, RoutesError::Occupied { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "cannot add IPv4 route local default dev lo table 133: something else is in its place"
        );
    });
}

#[test]
fn f40_ipv6_that_is_switched_off_is_said_to_be() {
    in_pod(|| {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
        let error = Routes::wanted(&policy()).apply(&mut routing()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot add address ::6/128 on lo: IPv6 is off in this network namespace"
        );
        assert!(error.hint().unwrap().contains("disable_ipv6"));
    });
}

#[test]
fn without_privilege_the_hint_names_the_capability() {
    in_pod(|| {
        without_privilege();
        let error = Routes::wanted(&policy()).apply(&mut routing()).unwrap_err();
        assert!(error.hint().unwrap().contains("CAP_NET_ADMIN"), "{error:?}");
    });
}

#[test]
fn a_redirection_is_rules_and_routes_and_its_differences_name_both() {
    in_pod(|| {
        let mut policy = policy();
        policy.mode = TPROXY;
        let redirection = Redirection::of(&policy);
        redirection.apply(&Nft).unwrap();
        assert_eq!(redirection.differences(&Nft).unwrap(), []);
        ip("-6 addr del ::6/128 dev lo");
        ip("rule del fwmark 0x539 lookup 133");
        crate::namespace::nft(&["delete chain inet gybe mangle-output"]);
        let found: Vec<_> = redirection.differences(&Nft).unwrap().iter().map(ToString::to_string).collect();
        let sentences = [
            "chain mangle-output is missing",
            "address ::6/128 on lo is missing",
            "IPv4 rule fwmark 0x539 lookup 133 is missing",
        ];
        assert_eq!(found, sentences);
        redirection.apply_over(&mut routing(), &Nft).unwrap();
        assert_eq!(redirection.differences(&Nft).unwrap(), []);
        redirection::remove(&Nft).unwrap();
        assert!(Nft.inspect().unwrap().is_empty());
        assert_eq!(redirection.routes.missing(&mut routing()).unwrap().len(), 5);
    });
}

#[test]
fn addresses_come_in_the_kernels_order_with_their_interfaces_index() {
    in_pod(|| {
        ip("link add eth0 index 40 type bridge");
        ip("link add six index 41 type bridge");
        ip("addr add 10.1.2.3/24 dev eth0 label eth0:1");
        ip("addr add fd00::3/64 dev eth0 nodad");
        ip("addr add fd01::3/64 dev six nodad");
        ip("link set eth0 up");
        let found = addresses().unwrap();
        let short: Vec<_> = found.iter().map(|a| format!("{} {}/{}", a.index, a.ip, a.prefix)).collect();
        let of_order = ["1 127.0.0.1/8", "40 10.1.2.3/24", "1 ::1/128", "40 fd00::3/64"];
        assert_eq!(short[..4], of_order);
        assert!(short.contains(&"41 fd01::3/64".to_owned()), "{short:?}");
        assert!(short.iter().any(|address| address.starts_with("40 fe80:")), "{short:?}");
    });
}
