//! What keeps redirected packets from the proxy, apart from rules.

use crate::redirected_pod::RedirectedPod;
use gybe_installer::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::make;
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::verdict::RedirectionState;
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
        for name in ["all", "eth0"] {
            let set = |key: &str, value: u8| {
                pod.run_as_other_owner(&format!("echo {value} > /proc/sys/net/ipv4/conf/{name}/{key}"))
            };
            set("src_valid_mark", 1)?;
            assert_lost(&pod, flow, "src_valid_mark")?;
            set("accept_local", 1)?;
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
