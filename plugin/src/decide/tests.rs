//! Pods and the policies that follow from them.

use super::*;
use crate::conf::AmbientConf;
use gybe_netfilter::model::policy::{CidrSet, Destinations, InterfaceName, Port};

fn container(name: &str) -> Container {
    Container { name: name.to_owned(), ..Container::default() }
}

fn meshed() -> PodFacts {
    PodFacts {
        annotations: [("sidecar.istio.io/status".to_owned(), "{}".to_owned())].into(),
        containers: vec![container("app"), container("istio-proxy")],
        ..PodFacts::default()
    }
}

fn addresses() -> [IpAddr; 1] {
    [IpAddr::from([10, 0, 0, 5])]
}

fn policy(conf: &PluginConf, pod: &PodFacts) -> RedirectPolicy {
    match decide(conf, pod, &addresses(), InitContainer::Counts) {
        Decision::Redirect(policy) => policy,
        other => panic!("not redirected: {other:?}"),
    }
}

fn annotate(pod: &mut PodFacts, name: &str, value: &str) {
    pod.annotations.insert(name.to_owned(), value.to_owned());
}

#[test]
fn a_meshed_pod_without_annotations_has_istios_default_policy() {
    let expected = RedirectPolicy {
        mode: Mode::Redirect,
        outbound_port: Port::new(15001).unwrap(),
        inbound_port: Port::new(15006).unwrap(),
        tunnel_port: Port::new(15008).unwrap(),
        proxy_uids: Owners::new(1337, []),
        proxy_gids: Owners::new(1337, []),
        inbound: Inbound::AllBut([15020, 15021, 15090].into_iter().collect()),
        outbound: Outbound {
            excluded_ports: [15020].into_iter().collect(),
            excluded_to: CidrSet::default(),
            included_ports: PortSet::default(),
            included_to: Destinations::All,
            groups: Groups::AllBut(BTreeSet::new()),
        },
        excluded_interfaces: BTreeSet::new(),
        virtual_interfaces: BTreeSet::new(),
        dns: Dns::Off,
        invalid: InvalidPackets::Pass,
        loopback: LoopbackCidr::default(),
        families: Families::V4Only,
    };
    assert_eq!(policy(&PluginConf::default(), &meshed()), expected);
}

#[test]
fn every_annotation_sets_its_part_of_the_policy() {
    let mut pod = meshed();
    for (name, value) in [
        ("sidecar.istio.io/interceptionMode", "TPROXY"),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.0/8"),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.9.0.0/16"),
        ("traffic.sidecar.istio.io/includeInboundPorts", "*"),
        ("traffic.sidecar.istio.io/excludeInboundPorts", "22"),
        ("traffic.sidecar.istio.io/includeOutboundPorts", "443"),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "25"),
        ("traffic.sidecar.istio.io/excludeInterfaces", "net1"),
        ("istio.io/reroute-virtual-interfaces", "vm0"),
    ] {
        annotate(&mut pod, name, value);
    }
    let policy = policy(&PluginConf::default(), &pod);
    let net = |text: &str| [text.parse::<ipnet::IpNet>().unwrap()].into_iter().collect::<CidrSet>();
    let named = |text: &str| BTreeSet::from([InterfaceName::parse(text).unwrap()]);
    assert_eq!(policy.mode, Mode::Tproxy { mark: 1337, route_table: 133 });
    assert_eq!(policy.outbound.included_to, Destinations::Only(net("10.0.0.0/8")));
    assert_eq!(policy.outbound.excluded_to, net("10.9.0.0/16"));
    assert_eq!(policy.inbound, Inbound::AllBut([22, 15020, 15021, 15090].into_iter().collect()));
    assert_eq!(policy.outbound.included_ports, [443].into_iter().collect());
    assert_eq!(policy.outbound.excluded_ports, [25].into_iter().collect());
    assert_eq!((policy.excluded_interfaces, policy.virtual_interfaces), (named("net1"), named("vm0")));
}

#[test]
fn a05_the_proxys_ids_are_its_security_context_or_1337() {
    for (value, expected) in [
        (None, Some(1337)),
        (Some(0), Some(1337)),
        (Some(1), Some(1)),
        (Some(1000), Some(1000)),
        (Some(4_294_967_294), Some(4_294_967_294)),
        (Some(4_294_967_295), None),
        (Some(-1), None),
        (Some(i64::MIN), None),
        (Some(i64::MAX), None),
    ] {
        for field in ["runAsUser", "runAsGroup"] {
            let mut pod = meshed();
            let proxy = &mut pod.containers[1];
            if field == "runAsUser" {
                proxy.run_as_user = value;
            } else {
                proxy.run_as_group = value;
            }
            match (decide(&PluginConf::default(), &pod, &addresses(), InitContainer::Counts), expected) {
                (Decision::Redirect(policy), Some(id)) => {
                    let (uid, gid) = if field == "runAsUser" { (id, 1337) } else { (1337, id) };
                    assert_eq!(
                        (policy.proxy_uids.first, policy.proxy_gids.first),
                        (uid, gid),
                        "{field} {value:?}"
                    );
                }
                (Decision::Refuse(refusal), None) => {
                    assert!(refusal.to_string().contains(field), "{refusal}");
                }
                (other, _) => panic!("{field} {value:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn variables_of_the_proxy_switch_dns_and_invalid_packets() {
    for (value, dns, invalid, unclear) in [
        ("true", Dns::All, InvalidPackets::Drop, 0),
        ("1", Dns::All, InvalidPackets::Drop, 0),
        ("false", Dns::Off, InvalidPackets::Pass, 0),
        ("", Dns::Off, InvalidPackets::Pass, 0),
        ("yes", Dns::Off, InvalidPackets::Pass, 2),
    ] {
        let mut pod = meshed();
        for variable in ["ISTIO_META_DNS_CAPTURE", "INVALID_DROP"] {
            pod.containers[1].env.insert(variable.to_owned(), value.to_owned());
        }
        let policy = policy(&PluginConf::default(), &pod);
        assert_eq!((policy.dns, policy.invalid, warnings(&pod).len()), (dns, invalid, unclear), "{value:?}");
    }
}

#[test]
fn a_mode_that_is_only_in_a_variable_is_a_warning_and_changes_nothing() {
    for (variable, annotation, is_warned) in [
        ("TPROXY", None, true),
        ("NONE", None, true),
        ("REDIRECT", None, false),
        ("TPROXY", Some("TPROXY"), false),
    ] {
        let mut pod = meshed();
        pod.containers[1].env.insert(INTERCEPTION_MODE.to_owned(), variable.to_owned());
        pod.annotations.extend(annotation.map(|mode| (MODE.to_owned(), mode.to_owned())));
        let warnings = warnings(&pod);
        assert_eq!(warnings.len(), usize::from(is_warned), "{warnings:?}");
        assert!(
            warnings.iter().all(|text| text.contains(INTERCEPTION_MODE) && text.contains(variable)),
            "{warnings:?}"
        );
        let is_redirect = policy(&PluginConf::default(), &pod).mode == Mode::Redirect;
        assert_eq!(is_redirect, annotation.is_none(), "{variable}");
    }
}

#[test]
fn boolean_annotations_of_an_ambient_pod_that_are_not_booleans_are_warnings() {
    let ambient = || Ambient::Yes { service_account: "default".to_owned(), why: String::new() };
    for name in ["ambient.istio.io/bypass-inbound-capture", "ambient.istio.io/dns-capture"] {
        for (value, ambient, is_warned) in [
            ("yes", ambient(), true),
            ("", ambient(), true),
            ("true", ambient(), false),
            ("F", ambient(), false),
            ("yes", Ambient::No { why: String::new() }, false),
            ("yes", Ambient::Unknown, false),
        ] {
            let mut pod = PodFacts { ambient, ..PodFacts::default() };
            annotate(&mut pod, name, value);
            let expected = is_warned.then(|| format!("annotation {name} is neither true nor false"));
            assert_eq!(warnings(&pod), Vec::from_iter(expected), "{value:?} {:?}", pod.ambient);
        }
    }
}

#[test]
fn all_invalid_annotations_are_named() {
    let mut pod = meshed();
    for (name, value) in [
        ("sidecar.istio.io/interceptionMode", "TPROX"),
        ("traffic.sidecar.istio.io/excludeInboundPorts", "http"),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.0"),
    ] {
        pod.annotations.insert(name.to_owned(), value.to_owned());
    }
    let PreliminaryDecision::Refuse(refusal) =
        decide_without_addresses(&PluginConf::default(), &pod, InitContainer::Counts)
    else {
        panic!("{pod:?}")
    };
    let expected = "annotation sidecar.istio.io/interceptionMode: \"TPROX\" is not REDIRECT, TPROXY or NONE; \
                also wrong: includeOutboundIPRanges, excludeInboundPorts";
    assert_eq!(refusal.to_string(), expected);
}

#[test]
fn container_ports_count_only_if_configured_and_not_overridden_by_the_pod() {
    let all = Inbound::AllBut([15020, 15021, 15090].into_iter().collect());
    let declared = Inbound::Only([80, 8443].into_iter().collect());
    for (default, value, expected) in [
        (InboundDefault::All, None, &all),
        (InboundDefault::ContainerPorts, None, &declared),
        (InboundDefault::ContainerPorts, Some("*"), &all),
        (InboundDefault::ContainerPorts, Some("7"), &Inbound::Only([7].into_iter().collect())),
        (InboundDefault::ContainerPorts, Some(""), &Inbound::Only(PortSet::default())),
    ] {
        let mut pod = meshed();
        pod.containers[0].tcp_ports = vec![80];
        pod.containers[1].tcp_ports = vec![15090];
        pod.init_containers = vec![
            Container {
                tcp_ports: vec![8443],
                lifetime: crate::pod::Lifetime::Pod,
                ..container("log-shipper")
            },
            Container { tcp_ports: vec![9], ..container("migrate") },
        ];
        if let Some(value) = value {
            annotate(&mut pod, "traffic.sidecar.istio.io/includeInboundPorts", value);
        }
        let conf = PluginConf { inbound_default: default, ..PluginConf::default() };
        assert_eq!(&policy(&conf, &pod).inbound, expected, "{default:?} {value:?}");
    }
}

#[test]
fn the_families_follow_from_the_addresses() {
    let both: Vec<IpAddr> = ["10.0.0.5", "fd00::5"].iter().map(|text| text.parse().unwrap()).collect();
    for (dual, expected) in [("false", Families::V4Only), ("true", Families::V4AndV6)] {
        let mut pod = meshed();
        pod.containers[1].env.insert("ISTIO_DUAL_STACK".to_owned(), dual.to_owned());
        match decide(&PluginConf::default(), &pod, &both, InitContainer::Counts) {
            Decision::Redirect(policy) => assert_eq!(policy.families, expected, "{dual}"),
            other => panic!("{other:?}"),
        }
    }
    let none = decide(&PluginConf::default(), &meshed(), &[], InitContainer::Counts);
    assert_eq!(none, Decision::Refuse(PodRefusal::Families(FamiliesError::NoAddress)));
}

#[test]
fn a_pod_that_is_left_alone_is_never_refused() {
    let mut pod = meshed();
    annotate(&mut pod, "traffic.sidecar.istio.io/excludeInboundPorts", "70000");
    annotate(&mut pod, "sidecar.istio.io/inject", "false");
    let decision = decide(&PluginConf::default(), &pod, &[], InitContainer::Counts);
    assert_eq!(decision, Decision::LeaveAlone(LeaveAloneReason::InjectionRefused));
}

#[test]
fn the_hint_of_a_refusal_names_the_correction() {
    let conf = PluginConf::default();
    let (mut annotated, mut as_user) = (meshed(), meshed());
    annotate(&mut annotated, "traffic.sidecar.istio.io/excludeOutboundPorts", "http");
    as_user.containers[1].run_as_user = Some(-1);
    for (pod, words) in [(annotated, "correct the annotation"), (as_user, "leave it out")] {
        match decide(&conf, &pod, &addresses(), InitContainer::Counts) {
            Decision::Refuse(refusal) => assert!(refusal.hint().unwrap().starts_with(words), "{refusal}"),
            other => panic!("not refused: {other:?}"),
        }
    }
    let no_address = decide(&conf, &meshed(), &[], InitContainer::Counts);
    assert!(
        matches!(no_address, Decision::Refuse(refusal) if refusal.hint().is_some_and(|hint| hint.len() > 10))
    );
}

/// A CNI message has room for 300 characters; the quoted value must not fill it.
#[test]
fn a_value_of_escaped_characters_leaves_room_for_the_names_of_all_invalid_annotations() {
    let mut pod = meshed();
    for (name, value) in [
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "\u{7f}".repeat(100)),
        ("traffic.sidecar.istio.io/excludeInterfaces", "-".to_owned()),
        ("istio.io/reroute-virtual-interfaces", "-".to_owned()),
    ] {
        annotate(&mut pod, name, &value);
    }
    match decide(&PluginConf::default(), &pod, &addresses(), InitContainer::Counts) {
        Decision::Refuse(refusal) => {
            let text = refusal.to_string();
            assert!(text.chars().count() < 250, "{text}");
            assert!(
                text.contains("…") && text.ends_with("excludeInterfaces, reroute-virtual-interfaces"),
                "{text}"
            );
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_pod_that_the_agent_calls_ambient_is_ambient_only_in_ambient_mode() {
    let pod = |namespace: &str| PodFacts {
        namespace: namespace.to_owned(),
        ambient: Ambient::Yes { service_account: "default".to_owned(), why: String::new() },
        ..PodFacts::default()
    };
    let exclude_namespaces = ["kube-system".to_owned()].into();
    let on =
        PluginConf { ambient: Some(AmbientConf::default()), exclude_namespaces, ..PluginConf::default() };
    let decided = |conf: &PluginConf, pod: &PodFacts| decide(conf, pod, &[], InitContainer::Counts);
    assert_eq!(decided(&on, &pod("shop")), Decision::Ambient(AmbientPolicy::default()));
    let excluded = Decision::LeaveAlone(LeaveAloneReason::ExcludedNamespace);
    assert_eq!(decided(&on, &pod("kube-system")), excluded);
    let off = decided(&PluginConf::default(), &pod("shop"));
    assert_eq!(off, Decision::LeaveAlone(LeaveAloneReason::NoProxy));
    let mut invalid = pod("shop");
    annotate(&mut invalid, "istio.io/reroute-virtual-interfaces", "a b");
    assert!(matches!(decided(&on, &invalid), Decision::Refuse(PodRefusal::Annotation(_))));
    // Its sidecar decides about a pod that is not ambient.
    let sidecar = PodFacts { ambient: Ambient::No { why: String::new() }, ..meshed() };
    assert_eq!(policy(&on, &sidecar), policy(&PluginConf::default(), &meshed()));
}
