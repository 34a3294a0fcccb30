//! Entries, encoded and recognised, without a kernel.

use super::entry::{LOOPBACK, ORIGIN, has_origin, is_our_address, is_our_route, is_our_rule};
use super::uapi::*;
use super::*;
use crate::kernel::netlink::attr::Writer;
use crate::model::Hint;
use std::io;
use std::net::IpAddr;

const MARK: MaskedMark = MaskedMark::new(0x539, u32::MAX);
const MARK_RULE: RoutingEntry = RoutingEntry::MarkRule { family: Family::V4, mark: MARK, table: 133 };
const MARK_RULE_V6: RoutingEntry = RoutingEntry::MarkRule { family: Family::V6, mark: MARK, table: 133 };
const ROUTE: RoutingEntry = RoutingEntry::LocalRoute { family: Family::V4, table: 133 };
const ROUTE_V6: RoutingEntry = RoutingEntry::LocalRoute { family: Family::V6, table: 133 };
const ADDRESS: RoutingEntry = RoutingEntry::PassthroughAddress;

/// The entry as the kernel lists it: the header and attributes of the message that added it.
fn listed(entry: RoutingEntry, priority: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    entry.attributes(priority, &mut writer);
    [entry.header(), writer.finish().unwrap()].concat()
}

/// The listed entry with another byte at this position of its header.
fn with_byte(entry: RoutingEntry, at: usize, byte: u8) -> Vec<u8> {
    let mut bytes = listed(entry, 9);
    bytes[at] = byte;
    bytes
}

/// The listed entry with one more attribute, before the others so that it counts in place of its like.
fn with_attribute(entry: RoutingEntry, kind: u16, value: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.attr(kind, value);
    entry.attributes(9, &mut writer);
    [entry.header(), writer.finish().unwrap()].concat()
}

#[test]
fn a_policy_needs_an_address_for_ipv6_and_a_table_for_tproxy() {
    let routes = |families, tproxy: bool, inbound: Inbound| {
        let mut policy = RedirectPolicy::injected(families);
        policy.inbound = inbound;
        if tproxy {
            policy.mode = Mode::Tproxy { mark: 0x539, route_table: 133 };
        }
        Routes::of(&policy)
    };
    let all = || Inbound::AllBut(Default::default());
    let none = routes(Families::V4Only, false, all());
    assert!(none.is_empty() && !none.needs_passthrough_address());
    let both = routes(Families::V4AndV6, false, all());
    assert!(!both.is_empty() && both.needs_passthrough_address());
    assert_eq!(both.entries, [ADDRESS]);
    assert_eq!(routes(Families::V4Only, true, all()).entries, [ROUTE, MARK_RULE]);
    assert!(!routes(Families::V4Only, true, all()).needs_passthrough_address());
    assert_eq!(
        routes(Families::V4AndV6, true, all()).entries,
        [ADDRESS, ROUTE, MARK_RULE, ROUTE_V6, MARK_RULE_V6]
    );
    let no_port = || Inbound::Only(Default::default());
    assert!(routes(Families::V4Only, true, no_port()).is_empty());
    assert_eq!(routes(Families::V4AndV6, false, no_port()).entries, [ADDRESS]);
}

#[test]
fn an_ambient_policy_needs_a_table_for_the_mark_of_original_sources() {
    let entries = |families| {
        let policy = AmbientPolicy { families, ..AmbientPolicy::default() };
        Routes::of_ambient(&policy).entries.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let v4 = ["IPv4 route local default dev lo table 100", "IPv4 rule fwmark 0x111/0xfff lookup 100"];
    let v6 = ["IPv6 route local default dev lo table 100", "IPv6 rule fwmark 0x111/0xfff lookup 100"];
    assert_eq!(entries(Families::V4Only), v4);
    assert_eq!(entries(Families::V4AndV6), [v4, v6].concat());
    let rule = |mask| RoutingEntry::MarkRule {
        family: Family::V4,
        mark: MaskedMark::new(0x111, mask),
        table: ORIGINAL_SOURCE_TABLE,
    };
    assert!(rule(0xfff).is(&listed(rule(0xfff), 9)) && !rule(0xfff).is(&listed(rule(0x1fff), 9)));
}

#[test]
fn ipv6_that_may_be_enabled_is_not_left_out() {
    for (value, expected) in [("0\n", true), ("1\n", false), ("2\n", false)] {
        assert_eq!(error::is_enabled(Ok(value.to_owned())).unwrap(), expected, "{value:?}");
    }
    let not_read = |kind: io::ErrorKind| error::is_enabled(Err(kind.into()));
    assert!(!not_read(io::ErrorKind::NotFound).unwrap());
    assert!(matches!(not_read(io::ErrorKind::PermissionDenied), Err(RoutesError::Sysctl { .. })));
}

#[test]
fn every_entry_has_the_header_of_its_message() {
    for (entry, message, header) in [
        (ADDRESS, 20, [&[10, 128, 2, 0][..], &1_u32.to_ne_bytes()].concat()),
        (MARK_RULE, 32, vec![2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
        (MARK_RULE_V6, 32, vec![10, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
        (ROUTE, 24, vec![2, 0, 0, 0, 0, 71, 254, 2, 0, 0, 0, 0]),
        (ROUTE_V6, 24, vec![10, 0, 0, 0, 0, 71, 0, 2, 0, 0, 0, 0]),
    ] {
        assert_eq!((entry.new_message(), entry.header()), (message, header), "{entry}");
    }
}

#[test]
fn entries_are_recognised_in_the_lists_of_their_family() {
    for (entry, text) in [
        (ADDRESS, "address ::6/128 on lo"),
        (MARK_RULE, "IPv4 rule fwmark 0x539 lookup 133"),
        (MARK_RULE_V6, "IPv6 rule fwmark 0x539 lookup 133"),
        (ROUTE, "IPv4 route local default dev lo table 133"),
        (ROUTE_V6, "IPv6 route local default dev lo table 133"),
    ] {
        assert_eq!(entry.to_string(), text);
        assert!(entry.is(&listed(entry, 9)), "{entry}");
        assert_eq!(entry.is_ipv6(), text.contains("IPv6") || text.contains("::6"), "{entry}");
        for other in [ADDRESS, MARK_RULE, MARK_RULE_V6, ROUTE, ROUTE_V6] {
            assert_eq!(entry.is(&listed(other, 9)), entry == other, "{entry} {other}");
        }
        for length in 0..12 {
            assert!(!entry.is(&listed(entry, 9)[..length]), "{entry} cut after {length} bytes");
        }
    }
    assert!(
        !MARK_RULE.is(&listed(RoutingEntry::MarkRule { family: Family::V4, mark: 1.into(), table: 133 }, 9))
    );
    assert!(!ROUTE.is(&listed(RoutingEntry::LocalRoute { family: Family::V4, table: 7 }, 9)));
}

#[test]
fn a_rule_that_selects_fewer_packets_is_another_rule() {
    // `struct fib_rule_hdr`: destination and source lengths, TOS, action, the bytes of the flags.
    let invert = FIB_RULE_INVERT.to_ne_bytes().iter().position(|byte| *byte != 0).unwrap();
    for (at, byte) in [(0, 7), (1, 8), (2, 8), (3, 4), (7, 2), (8 + invert, 2)] {
        assert!(!MARK_RULE.is(&with_byte(MARK_RULE, at, byte)), "byte {at}");
    }
    assert!(MARK_RULE.is(&with_byte(MARK_RULE, 8 + invert, 1)), "FIB_RULE_PERMANENT does not restrict");
    assert!(!MARK_RULE.is(&with_attribute(MARK_RULE, FRA_FWMASK, &0xff_u32.to_ne_bytes())));
    assert!(MARK_RULE.is(&with_attribute(MARK_RULE, FRA_SUPPRESS_PREFIXLEN, &u32::MAX.to_ne_bytes())));
    assert!(!MARK_RULE.is(&with_attribute(MARK_RULE, FRA_SUPPRESS_PREFIXLEN, &0_u32.to_ne_bytes())));
    assert!(!MARK_RULE.is(&with_attribute(MARK_RULE, 3, b"eth0\0")), "FRA_IIFNAME restricts");
}

#[test]
fn a_route_to_elsewhere_and_an_address_elsewhere_are_others() {
    // `struct rtmsg`: the destination's length, the type.
    for (at, byte) in [(0, 10), (1, 8), (7, 1)] {
        assert!(!ROUTE.is(&with_byte(ROUTE, at, byte)), "byte {at}");
    }
    assert!(!ROUTE.is(&with_attribute(ROUTE, RTA_OIF, &2_u32.to_ne_bytes())));
    // `struct ifaddrmsg`: family, prefix length, interface.
    for (at, byte) in [(0, 2), (1, 64), (4, 2)] {
        assert!(!ADDRESS.is(&with_byte(ADDRESS, at, byte)), "byte {at}");
    }
    assert!(!ADDRESS.is(&with_attribute(ADDRESS, IFA_ADDRESS, &[1; 16])));
}

#[test]
fn entries_of_gybe_are_those_with_its_origin() {
    assert!(is_our_rule(&listed(MARK_RULE, 9)) && is_our_route(&listed(ROUTE, 9)));
    assert!(!is_our_rule(&with_attribute(MARK_RULE, FRA_PROTOCOL, &[4])));
    assert!(!is_our_rule(&[]) && !is_our_route(&[]));
    assert!(!is_our_route(&with_byte(ROUTE, 5, 4)));
    let ours = listed(ADDRESS, 0);
    assert!(has_origin(&ours) && is_our_address(&ours, true));
    let of_another = with_attribute(ADDRESS, IFA_PROTO, &[4]);
    assert!(has_origin(&of_another) && !is_our_address(&of_another, true));
    // Before Linux 5.18 no address has an origin: then `::6` on `lo` is Gybe's.
    let mut writer = Writer::default();
    writer.attr(IFA_ADDRESS, &crate::model::policy::istio::PASSTHROUGH_V6.octets());
    let without = [ADDRESS.header(), writer.finish().unwrap()].concat();
    assert!(!has_origin(&without) && !has_origin(&[]));
    assert!(is_our_address(&without, false) && !is_our_address(&without, true));
    assert!(!is_our_address(&with_byte(ADDRESS, 4, 2), true), "::6 on another interface");
    assert!(!is_our_address(&with_byte(ADDRESS, 4, 2), false));
    assert_eq!(ORIGIN, 71);
}

#[test]
fn an_unknown_entry_of_gybe_is_named_by_its_list() {
    let stray = |list, bytes| Stray::of(&ListedEntry { list, bytes });
    assert_eq!(stray(RoutingList::Rules(Family::V4), listed(MARK_RULE, 9)), Stray::Known(MARK_RULE));
    let known = stray(RoutingList::Routes(Family::V6), listed(ROUTE_V6, 0));
    assert_eq!(known.to_string(), "IPv6 route local default dev lo table 133");
    let unknown = stray(RoutingList::Routes(Family::V4), with_byte(ROUTE, 7, 1));
    assert_eq!(unknown.to_string(), "an unknown entry of Gybe among the routes");
}

#[test]
fn a_rule_gets_the_priority_before_the_first_rule_that_is_not_for_table_local() {
    let rule = |table: u32, priority: u32| {
        let mut writer = Writer::default();
        writer.ne32(FRA_TABLE, table);
        if priority != 0 {
            writer.ne32(FRA_PRIORITY, priority);
        }
        [vec![Family::V4.number(), 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0], writer.finish().unwrap()]
            .concat()
    };
    let (local, main) = (|| rule(255, 0), || rule(254, 32766));
    let mut unreachable = rule(255, 50);
    unreachable[7] = 7;
    let of_earlier_policy =
        || listed(RoutingEntry::MarkRule { family: Family::V4, mark: 1.into(), table: 7 }, 5);
    for (found, priority) in [
        (vec![], RulePriority::Free(32765)),
        (vec![local()], RulePriority::Free(32765)),
        (vec![local(), main()], RulePriority::Free(32765)),
        (vec![local(), rule(100, 50), main()], RulePriority::Free(49)),
        // It names table `local`, and looks up none.
        (vec![unreachable, local()], RulePriority::Free(49)),
        (vec![local(), rule(100, 0), main()], RulePriority::None),
        (vec![local(), listed(MARK_RULE, 9), main()], RulePriority::Present),
        (vec![local(), rule(100, 50), listed(MARK_RULE, 60), main()], RulePriority::Free(49)),
        (vec![local(), of_earlier_policy(), main()], RulePriority::Free(32765)),
        (vec![local(), of_earlier_policy(), listed(MARK_RULE, 9), main()], RulePriority::Present),
    ] {
        assert_eq!(rule_priority(MARK_RULE, &found), priority, "{found:?}");
    }
}

#[test]
fn addresses_of_both_families_are_parsed() {
    let address = |family: u8, prefix: u8, attributes: &[(u16, &[u8])]| {
        let mut writer = Writer::default();
        for (kind, value) in attributes {
            writer.attr(*kind, value);
        }
        [&[family, prefix, 0, 0][..], &7_u32.to_ne_bytes(), &writer.finish().unwrap()].concat()
    };
    let v6 = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let found = parse_addresses(&[
        // A point-to-point link: IFA_ADDRESS is the peer's address.
        address(Family::V4.number(), 32, &[(IFA_ADDRESS, &[10, 0, 0, 2]), (IFA_LOCAL, &[10, 0, 0, 1])]),
        address(AF_INET6, 64, &[(IFA_ADDRESS, &v6)]),
        address(AF_INET6, 64, &[(IFA_ADDRESS, &[1, 2, 3])]),
        address(Family::V4.number(), 32, &[]),
        vec![Family::V4.number(), 32],
    ]);
    let expected = |ip: &str, prefix| Address { index: 7, ip: ip.parse::<IpAddr>().unwrap(), prefix };
    assert_eq!(found, [expected("10.0.0.1", 32), expected("fd00::1", 64)]);
}

#[test]
fn an_interface_is_parsed_with_its_index_name_and_state() {
    let mut writer = Writer::default();
    writer.attr(IFLA_IFNAME, b"eth0\0");
    // `struct ifinfomsg`: index and flags follow family, padding and type.
    let header = [&[0; 4][..], &7_u32.to_ne_bytes(), &IFF_UP.to_ne_bytes(), &[0; 4]].concat();
    let entry = [header.clone(), writer.finish().unwrap()].concat();
    let raised = |is_raised, is_up| {
        Some(Link { index: 7, name: "eth0".to_owned(), is_raised, is_up, xdp_programs: Vec::new() })
    };
    let eth0 = |is_up| raised(true, is_up);
    assert_eq!(link::parse_link(&entry), eth0(false));
    for (state, is_up) in [(0, false), (2, false), (IF_OPER_UP, true)] {
        let mut writer = Writer::default();
        writer.attr(IFLA_OPERSTATE, &[state]);
        let entry = [entry.clone(), writer.finish().unwrap()].concat();
        assert_eq!(link::parse_link(&entry), eth0(is_up), "{state}");
    }
    let down = [&entry[..8], &[0; 4], &entry[12..]].concat();
    assert_eq!(link::parse_link(&down), raised(false, false));
    assert_eq!(link::parse_link(&header), None);
    assert_eq!(link::parse_link(&[0; 8]), None);
}

#[test]
fn a_refusal_has_the_errno_and_the_hint_of_its_cause() {
    for errno in [Errno::EACCES, Errno::EOPNOTSUPP, Errno::EAFNOSUPPORT] {
        let off = RoutesError::refused(ADDRESS, errno);
        assert!(matches!(off, RoutesError::Ipv6Off { .. }), "{off:?}");
        assert_eq!(off.errno(), Some(errno));
        let add = RoutesError::refused(MARK_RULE, errno);
        assert!(matches!(add, RoutesError::Add { .. }), "{add:?}");
        assert_eq!((add.errno(), add.hint()), (Some(errno), None));
    }
    let hint = |error: &RoutesError| error.hint().unwrap().into_owned();
    let ipv6_off = |switch| RoutesError::Ipv6Off { entry: ADDRESS, switch, source: Errno::EACCES };
    let switch = "net.ipv6.conf.lo.disable_ipv6";
    assert!(hint(&ipv6_off(Some(switch))).starts_with("net.ipv6.conf.lo.disable_ipv6 is 1 in the pod"));
    assert!(hint(&ipv6_off(None)).starts_with("the kernel has no IPv6"));
    let refused = |errno| RoutesError::refused(ROUTE, errno);
    assert!(hint(&refused(Errno::EPERM)).contains("CAP_NET_ADMIN"));
    assert!(hint(&RoutesError::Remove { what: "routes", source: Errno::EPERM }).contains("CAP_NET_ADMIN"));
    assert!(hint(&refused(Errno::ENETDOWN)).contains("lo is down"));
    assert_eq!(hint(&RoutesError::Occupied { entry: ROUTE }), "choose another route table");
    let ambient = RoutingEntry::LocalRoute { family: Family::V6, table: ORIGINAL_SOURCE_TABLE };
    assert!(hint(&RoutesError::Occupied { entry: ambient }).contains("`ip -6 route show table 100`"));
    assert!(hint(&RoutesError::NoPriority { entry: MARK_RULE }).contains("a higher priority"));
    assert_eq!(RoutesError::Occupied { entry: ROUTE }.errno(), None);
    assert_eq!(LOOPBACK, 1);
}
