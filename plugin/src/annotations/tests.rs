//! Tables of annotations and their values.

use super::*;

mod hostile;

fn pod(annotations: &[(&str, &str)]) -> PodFacts {
    let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    PodFacts { annotations: annotations.collect(), ..PodFacts::default() }
}

/// With the default limit of intervals.
fn traffic_of(pod: &PodFacts) -> Result<TrafficAnnotations, AnnotationError> {
    traffic(pod, MaxIntervals::default())
}

fn ports(text: &str) -> PortSet {
    text.split(',').filter(|t| !t.is_empty()).map(|t| t.parse::<PortRange>().unwrap()).collect()
}

fn networks(text: &str) -> CidrSet {
    text.split(',').filter(|t| !t.is_empty()).map(|t| t.parse::<ipnet::IpNet>().unwrap()).collect()
}

fn names(text: &str) -> BTreeSet<InterfaceName> {
    text.split(',').filter(|t| !t.is_empty()).map(|t| InterfaceName::parse(t).unwrap()).collect()
}

#[test]
fn a_pod_without_annotations_has_istios_defaults() {
    let expected = TrafficAnnotations {
        interception: Interception::Redirect,
        included_to: Destinations::All,
        excluded_to: CidrSet::default(),
        included_inbound: InboundPorts::Unset,
        excluded_inbound: ports("15020,15021,15090"),
        included_outbound: PortSet::default(),
        excluded_outbound: ports("15020"),
        excluded_interfaces: BTreeSet::new(),
        virtual_interfaces: BTreeSet::new(),
    };
    assert_eq!(traffic_of(&pod(&[])), Ok(expected));
}

#[test]
fn the_proxys_ports_are_always_excluded_from_inbound() {
    for (value, expected) in [
        ("", "15020,15021,15090"),
        ("3306", "3306,15020,15021,15090"),
        ("15090, 15090", "15020,15021,15090"),
        ("8000-8100", "8000-8100,15020,15021,15090"),
        (" 80 , 81 ", "80,81,15020,15021,15090"),
        ("80,81\n", "80,81,15020,15021,15090"),
        ("0,65535", "0,65535,15020,15021,15090"),
    ] {
        let read = traffic_of(&pod(&[(EXCLUDE_INBOUND, value)])).unwrap();
        assert_eq!(read.excluded_inbound, ports(expected), "{value:?}");
    }
}

#[test]
fn included_inbound_ports_may_be_all_some_none_or_unset() {
    for (value, expected) in [
        ("*", InboundPorts::All),
        (" * ", InboundPorts::All),
        ("", InboundPorts::Only(PortSet::default())),
        ("80,443", InboundPorts::Only(ports("80,443"))),
    ] {
        assert_eq!(
            traffic_of(&pod(&[(INCLUDE_INBOUND, value)])).unwrap().included_inbound,
            expected,
            "{value:?}"
        );
    }
}

#[test]
fn excluded_outbound_ports_replace_the_default() {
    for (value, expected) in [("", ""), ("25,587", "25,587"), ("15020", "15020")] {
        let read = traffic_of(&pod(&[(EXCLUDE_OUTBOUND, value), (INCLUDE_OUTBOUND, value)])).unwrap();
        assert_eq!(
            (read.excluded_outbound, read.included_outbound),
            (ports(expected), ports(expected)),
            "{value:?}"
        );
    }
}

#[test]
fn networks_may_be_of_both_families_and_have_host_bits() {
    for (value, expected) in [
        ("*", Destinations::All),
        ("", Destinations::Only(CidrSet::default())),
        ("10.1.2.3/8, fd00::1/8", Destinations::Only(networks("10.0.0.0/8,fd00::/8"))),
        ("0.0.0.0/0,::/0", Destinations::Only(networks("0.0.0.0/0,::/0"))),
        ("::ffff:10.0.0.0/104", Destinations::Only(networks("::ffff:a00:0/104"))),
        ("127.0.0.1/32", Destinations::Only(networks("127.0.0.1/32"))),
    ] {
        assert_eq!(traffic_of(&pod(&[(INCLUDE_TO, value)])).unwrap().included_to, expected, "{value:?}");
    }
    let read = traffic_of(&pod(&[(EXCLUDE_TO, "10.0.0.0/9,10.128.0.0/9")])).unwrap();
    assert_eq!(read.excluded_to, networks("10.0.0.0/8"));
}

#[test]
fn a04_interface_lists_are_valid_as_in_istio() {
    for value in [
        "",
        "eth0",
        "eth0,eth1,lo",
        "eth_0",
        "eth-0",
        "eth0.1",
        "veth123abc,br-docker0,bond0.100",
        "a23456789012345",
        " eth0",
        "eth0 ",
        "eth0 , eth1",
    ] {
        let read = traffic_of(&pod(&[(EXCLUDE_INTERFACES, value)]));
        assert_eq!(read.unwrap().excluded_interfaces, names(&value.replace(' ', "")), "{value:?}");
    }
    for value in [
        "0eth",
        "_eth0",
        "1234567890123456",
        "a234567890123456",
        "eth0 -d 10.0.0.50",
        "eth0 -j ACCEPT",
        "eth0;echo",
        "eth0|cat",
        "eth0`id`",
        "eth0$PATH",
        "eth0,,eth1",
        "eth0,",
        "eth0/1",
        "eth0:1",
        "veth@if123",
        "eth+",
        "éth0",
        "eth0\n,eth1",
    ] {
        for annotation in [EXCLUDE_INTERFACES, VIRTUAL_INTERFACES, KUBEVIRT_INTERFACES] {
            let error = traffic_of(&pod(&[(annotation, value)])).unwrap_err();
            assert_eq!(error.annotation, annotation, "{value:?}");
        }
    }
}

#[test]
fn the_older_annotation_of_virtual_interfaces_counts_only_without_the_newer() {
    for (newer, expected) in [(None, "old0"), (Some("new0"), "new0"), (Some(""), "")] {
        let mut value = vec![(KUBEVIRT_INTERFACES, "old0")];
        value.extend(newer.map(|value| (VIRTUAL_INTERFACES, value)));
        assert_eq!(traffic_of(&pod(&value)).unwrap().virtual_interfaces, names(expected), "{newer:?}");
    }
}

#[test]
fn unknown_modes_are_refused() {
    for (value, expected) in
        [("REDIRECT", Interception::Redirect), ("TPROXY", Interception::Tproxy), ("NONE", Interception::None)]
    {
        assert_eq!(interception(&pod(&[(MODE, value)])), Ok(expected));
    }
    for value in ["", "redirect", "TPROXY ", "none", "REDIRECT,TPROXY"] {
        assert!(interception(&pod(&[(MODE, value)])).is_err(), "{value:?}");
    }
}

#[test]
fn a01_an_invalid_value_is_refused_with_its_annotation_and_item() {
    for (annotation, value, item, right) in [
        (EXCLUDE_INBOUND, "70000", "\"70000\"", "0 to 65535"),
        (EXCLUDE_INBOUND, "05000", "\"05000\"", "octal"),
        (EXCLUDE_INBOUND, "80\n,81", r#""80\n""#, "0 to 65535"),
        (EXCLUDE_INBOUND, "80,", "beside a comma", ""),
        (EXCLUDE_INBOUND, ",", "beside a comma", ""),
        (EXCLUDE_INBOUND, "*", "\"*\"", "list the ports"),
        (EXCLUDE_OUTBOUND, "*", "\"*\"", "list the ports"),
        (EXCLUDE_OUTBOUND, "80;443", "\"80;443\"", "0 to 65535"),
        (EXCLUDE_OUTBOUND, "-80", "\"-80\"", "0 to 65535"),
        (EXCLUDE_OUTBOUND, "+80", "\"+80\"", "0 to 65535"),
        (EXCLUDE_OUTBOUND, "90-80", "\"90-80\"", "reversed"),
        (EXCLUDE_OUTBOUND, "٨٠", "\"٨٠\"", "0 to 65535"),
        (INCLUDE_OUTBOUND, "*", "\"*\"", "list the ports"),
        (INCLUDE_OUTBOUND, "80 81", "\"80 81\"", "0 to 65535"),
        (INCLUDE_INBOUND, "80,*", "\"*\"", "list the ports"),
        (INCLUDE_INBOUND, "http", "\"http\"", "0 to 65535"),
        (INCLUDE_TO, "10.0.0.0", "\"10.0.0.0\"", "prefix length"),
        (INCLUDE_TO, "*,10.0.0.0/8", "\"*\"", "prefix length"),
        (INCLUDE_TO, "10.0.0.0/8,,", "beside a comma", ""),
        (EXCLUDE_TO, "*", "\"*\"", "prefix length"),
        (EXCLUDE_TO, "10.0.0.0/33", "\"10.0.0.0/33\"", "prefix length"),
        (EXCLUDE_TO, "10.0.0.0/08", "\"10.0.0.0/08\"", "prefix length"),
        (EXCLUDE_TO, "10.0.0.0/+8", "\"10.0.0.0/+8\"", "prefix length"),
        (EXCLUDE_TO, "010.0.0.0/8", "\"010.0.0.0/8\"", "prefix length"),
        (EXCLUDE_TO, "10.0.0/24", "\"10.0.0/24\"", "prefix length"),
        (EXCLUDE_TO, "fe80::1%eth0/64", "\"fe80::1%eth0/64\"", "prefix length"),
        (EXCLUDE_TO, "10.0.0.0/8\n", "", ""),
        (EXCLUDE_INTERFACES, "eth0 -j ACCEPT", "\"eth0 -j ACCEPT\"", "a letter first"),
    ] {
        let read = traffic_of(&pod(&[(annotation, value)]));
        if item.is_empty() {
            assert!(read.is_ok(), "{value:?}");
            continue;
        }
        let text = read.unwrap_err().to_string();
        assert!(
            text.contains(annotation) && text.contains(item) && text.contains(right),
            "{value:?}: {text}"
        );
    }
}
