//! What keeps redirected packets from the proxy, apart from rules: routes, sysctls, IPsec, the loopback interface.

use crate::RedirectedPod;
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::make;
use gybe_integration::namespace::in_parallel;
use gybe_integration::programs::ours;
use gybe_integration::vectors::{Flow, Location};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::inspect::verdict::RedirectionState;
use gybe_netfilter::model::packet::Direction;
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(5);
const UNANSWERED_FOR: Duration = Duration::from_secs(1);

fn is_answered(pod: &RedirectedPod, flow: &str, patience: Duration) -> Result<bool, Failure> {
    Ok(matches!(make(&pod.topology, pod.flow(flow), patience)?, ConnectionOutcome::Replied(_)))
}

/// Checks that the verdict is not-redirected for this reason alone, and that the connection is lost.
fn assert_lost(pod: &RedirectedPod, flow: &str, why: &str) -> Result<(), Failure> {
    let verdict = pod.verdict()?;
    assert_eq!(verdict.state, RedirectionState::NotRedirected, "{why}: {verdict:?}");
    assert!(matches!(verdict.reasons.as_slice(), [only] if only.contains(why)), "{why}: {verdict:?}");
    assert!(!is_answered(pod, flow, UNANSWERED_FOR)?, "{why}");
    Ok(())
}

fn assert_redirected(pod: &RedirectedPod, flow: &str) -> Result<(), Failure> {
    let verdict = pod.verdict()?;
    assert_eq!(verdict.state, RedirectionState::Redirected, "{verdict:?}");
    assert!(is_answered(pod, flow, PATIENCE)?, "{flow}");
    Ok(())
}

#[test]
fn the_state_of_lo_is_the_reason_why_connections_are_not_redirected() -> Result<(), Failure> {
    let pod = RedirectedPod::of("inject-default-v4", BackendKind::Nft)?;
    let flow = "v4.app->ext:80";
    assert_redirected(&pod, flow)?;
    pod.run_as_other_owner("ip address delete 127.0.0.1/8 dev lo")?;
    assert_lost(&pod, flow, "lo has lost 127.0.0.1")?;
    pod.run_as_other_owner("ip address add 127.0.0.1/8 dev lo")?;
    assert_redirected(&pod, flow)?;
    pod.run_as_other_owner("ip link set lo down")?;
    assert_lost(&pod, flow, "lo is down")?;
    let pod = RedirectedPod::of("inject-default-dual", BackendKind::Nft)?;
    let flow = "v6.app->ext:80";
    assert_redirected(&pod, flow)?;
    pod.run_as_other_owner("ip address delete ::1/128 dev lo")?;
    assert_lost(&pod, flow, "lo has lost ::1")
}

#[test]
fn with_tproxy_a_check_of_marked_packets_sources_is_the_reason() -> Result<(), Failure> {
    for kind in BackendKind::ALL {
        let pod = RedirectedPod::of("tproxy-default-dual", kind)?;
        let flow = "v4.in:8080";

        assert_redirected(&pod, flow)?;
        // The kernel stores any integer.
        for (name, on) in [("all", 1), ("eth0", 1), ("all", -1), ("eth0", 256)] {
            let set = |key: &str, value: i32| {
                pod.run_as_other_owner(&format!("echo {value} > /proc/sys/net/ipv4/conf/{name}/{key}"))
            };
            set("src_valid_mark", on)?;
            assert_lost(&pod, flow, "src_valid_mark")?;
            set("accept_local", on)?;
            assert_redirected(&pod, flow)?;
            set("rp_filter", 1)?;
            assert_lost(&pod, flow, "src_valid_mark")?;
            set("rp_filter", 2)?;
            assert_redirected(&pod, flow)?;
            set("rp_filter", 0)?;
            set("accept_local", 0)?;
            set("src_valid_mark", 0)?;
        }
        assert_redirected(&pod, flow)?;
        pod.run_as_other_owner("echo 1 > /proc/sys/net/ipv4/conf/net1/src_valid_mark")?;
        let verdict = pod.verdict()?;
        assert_eq!(verdict.state, RedirectionState::NotRedirected);
        assert!(
            verdict.reasons.iter().any(|why| why.contains("arrive by net1: src_valid_mark")),
            "{verdict:?}"
        );
        pod.run_as_other_owner("ip -4 address flush dev net1")?;
        assert_redirected(&pod, flow)?;
    }
    Ok(())
}

/// Plugins that give out addresses of one family alone may set the other's default route too, without a gateway.
#[test]
fn a_family_of_which_the_pod_has_no_address_is_not_judged() -> Result<(), Failure> {
    for kind in BackendKind::ALL {
        for (without, other) in [("4", "v6"), ("6", "v4")] {
            let pod = RedirectedPod::of("inject-default-dual", kind)?;
            pod.run_as_other_owner(&format!(
                "for dev in eth0 eth1 net1; do ip -{without} address flush dev $dev scope global; done; \
                 ip -{without} route replace default dev eth0"
            ))?;
            assert_redirected(&pod, &format!("{other}.in:8080"))?;
            assert_redirected(&pod, &format!("{other}.app->ext:80"))?;
        }
    }
    Ok(())
}

/// A state of a namespace: commands, the verdict, a part of its reasons or notes, and the flows that get no answer from
/// the proxy.
type State = (&'static str, RedirectionState, &'static str, &'static [&'static str]);

const FLOWS: [&str; 4] = ["v4.app->ext:80", "v6.app->ext:80", "v4.in:8080", "v6.in:8080"];

const REDIRECTED: RedirectionState = RedirectionState::Redirected;
const NOT: RedirectionState = RedirectionState::NotRedirected;
const UNKNOWN: RedirectionState = RedirectionState::Unknown;

/// States in which every policy has the same verdict.
const STATES: [State; 15] = [
    ("true", REDIRECTED, "", &[]),
    ("ip link set lo down", NOT, "lo is down", &["v4.app->ext:80", "v6.app->ext:80"]),
    (
        "ip route del local 127.0.0.0/8 table local; ip route del local 127.0.0.1 table local",
        NOT,
        "lo has lost 127.0.0.1",
        &["v4.app->ext:80"],
    ),
    ("ip -6 route del local ::1 table local", NOT, "lo has lost ::1", &["v6.app->ext:80"]),
    ("ip route del local 10.244.0.10 table local", NOT, "10.244.0.10", &["v4.app->ext:80", "v4.in:8080"]),
    (
        "ip route add local 10.0.0.0/12 dev lo",
        UNKNOWN,
        "routes deliver 10.0.0.0/12 to the pod itself",
        &["v4.app->ext:80"],
    ),
    (
        "ip route add local 10.0.0.0/12 dev lo table main",
        UNKNOWN,
        "routes deliver 10.0.0.0/12 to the pod itself",
        &["v4.app->ext:80"],
    ),
    ("ip route add blackhole 10.0.0.0/12", REDIRECTED, "10.0.0.0/12, before any rule", &["v4.app->ext:80"]),
    ("ip -6 route del default", REDIRECTED, "", &["v6.app->ext:80"]),
    (
        "ip xfrm policy add dir out action block",
        UNKNOWN,
        "1 IPsec policies",
        &["v4.app->ext:80", "v4.in:8080"],
    ),
    ("ip xfrm policy add dir in action block", UNKNOWN, "1 IPsec policies", &["v4.in:8080"]),
    ("ip xfrm policy add dir fwd action block", REDIRECTED, "", &[]),
    ("echo 1 > /proc/sys/net/ipv4/conf/all/rp_filter", REDIRECTED, "", &[]),
    (
        "for key in accept_local route_localnet; do echo 1 > /proc/sys/net/ipv4/conf/all/$key; done",
        REDIRECTED,
        "",
        &[],
    ),
    ("for family in ipv4 ipv6; do echo 1 > /proc/sys/net/$family/fwmark_reflect; done", REDIRECTED, "", &[]),
];

/// The pod's address on `lo`, so that the interface has none.
const WITHOUT_ADDRESS: &str = "ip address del 10.244.0.10/24 dev eth0; ip address add 10.244.0.10/32 dev lo; \
    ip route add 10.244.0.0/24 dev eth0; ip route add default via 10.244.0.1 src 10.244.0.10";

/// Rules before the look-up of the pod's own addresses.
const EARLIER_V4: &str = "ip rule add pref 9 lookup local; ip rule del pref 0; ip rule add pref 8 iif eth0 lookup 9; \
    ip route add default via 10.244.0.1 table 9";
const EARLIER_V6: &str =
    "ip -6 rule add pref 9 lookup local; ip -6 rule del pref 0; ip -6 rule add pref 8 fwmark 7 lookup 9";
const PRECEDE: &str = "routing rules precede the look-up of the pod's own";

const WITH_REDIRECT: [State; 4] = [
    (EARLIER_V4, UNKNOWN, PRECEDE, &["v4.in:8080"]),
    (EARLIER_V6, UNKNOWN, PRECEDE, &[]),
    (WITHOUT_ADDRESS, NOT, "by eth0", &["v4.in:8080"]),
    ("echo 1 > /proc/sys/net/ipv4/tcp_fwmark_accept", REDIRECTED, "", &[]),
];

const WITH_TPROXY: [State; 6] = [
    (EARLIER_V4, NOT, PRECEDE, &["v4.in:8080"]),
    (EARLIER_V6, NOT, PRECEDE, &[]),
    (
        "echo 1 > /proc/sys/net/ipv4/tcp_fwmark_accept",
        NOT,
        "tcp_fwmark_accept is set",
        &["v4.in:8080", "v6.in:8080"],
    ),
    ("ip rule del fwmark 1337", NOT, "no routing rule delivers packets with the mark of TPROXY", &[]),
    ("ip -6 route flush table 133", NOT, "no routing rule delivers packets with the mark of TPROXY", &[]),
    ("ip rule add pref 5 fwmark 1337 lookup main", NOT, "or another rule precedes it", &[]),
];

/// The outcome of a flow by `gybe trace`, which asks the kernel for its route.
fn traced(pod: &RedirectedPod, flow: &Flow) -> Result<String, Failure> {
    let packet = flow.packet()?;
    let netns = pod.topology.at(Location::Pod).path().to_string_lossy().into_owned();
    let (to, from) = (packet.destination.to_string(), packet.source.to_string());
    let (uid, gid) = packet.owner.map_or_else(Default::default, |o| (o.uid.to_string(), o.gid.to_string()));
    let words = match &packet.direction {
        Direction::Leaves { .. } => vec!["out", "tcp", &to, "--uid", &uid, "--gid", &gid],
        Direction::Arrives { by } => vec!["in", "tcp", &to, "--from", &from, "--iface", by.as_str()],
    };
    let ran = ours("gybe", &[&["trace", "--json", "--netns", &netns], &words[..]].concat(), "")?;
    let json: Value = serde_json::from_str(&ran.out)?;
    Ok(format!("{} {}", json["outcome"].as_str().unwrap_or_default(), json["port"]))
}

/// Plants a state; returns what is wrong about the verdict, the traces or the connections.
fn wrong(policy: &str, (script, state, says, lost): &State) -> Result<Vec<String>, Failure> {
    let pod = RedirectedPod::of(policy, BackendKind::Nft)?;
    let traces = || FLOWS.iter().map(|flow| traced(&pod, pod.flow(flow))).collect::<Result<Vec<_>, _>>();
    let intact = traces()?;
    pod.run_as_other_owner(script)?;
    let (verdict, traces) = (pod.verdict()?, traces()?);
    let mut wrong = Vec::new();
    let all = [verdict.reasons.join("\n"), verdict.notes.join("\n")].concat();
    if verdict.state != *state || !all.contains(says) {
        wrong.push(format!("should be {state:?} because {says:?}, not {verdict:#?}"));
    }
    // The kernel refuses a connection without a route before any rule: it is neither redirected nor not.
    let is_same = |(before, after): &(&String, &String)| before == after || *after == "no-route null";
    if intact.iter().zip(&traces).all(|pair| is_same(&pair)) != (verdict.state == REDIRECTED) {
        wrong.push(format!("verify: {:?}; traced: {traces:?}, intact: {intact:?}", verdict.state));
    }
    for ((flow, before), after) in FLOWS.iter().zip(&intact).zip(&traces) {
        let is_lost = lost.contains(flow);
        let patience = if is_lost { UNANSWERED_FOR } else { PATIENCE };
        let reply = make(&pod.topology, pod.flow(flow), patience)?;
        let by_proxy = matches!(&reply, ConnectionOutcome::Replied(answer) if answer.by.starts_with("envoy"));
        if by_proxy == is_lost || (before == after && !by_proxy) {
            wrong.push(format!("{flow}: {reply}, traced: {after}"));
        }
    }
    let name = |what| format!("{policy}: {script}: {what}");
    Ok(wrong.into_iter().map(name).collect())
}

#[test]
fn verify_and_trace_agree_about_every_state_of_routing_and_real_connections_show_it() -> Result<(), Failure> {
    let with = |policy: &'static str, states: &[State]| {
        states.iter().map(|state| (policy, *state)).collect::<Vec<_>>()
    };
    let all = [
        with("inject-default-dual", &STATES),
        with("inject-default-dual", &WITH_REDIRECT),
        with("tproxy-default-dual", &STATES),
        with("tproxy-default-dual", &WITH_TPROXY),
    ]
    .concat();
    let found = in_parallel(all, |(policy, state)| wrong(policy, &state));
    let wrong: Vec<String> = found.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
