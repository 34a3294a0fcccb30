//! One ADD and one agent: the checks of the peer's uid on both sides, the plugin's log line, and a missing agent.

use crate::ground::{Agent, STRANGER, add, add_as, inspected, pod};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_pod_only_the_agent_knows_is_redirected_and_its_line_reaches_the_agent() {
    let (mut agent, pod) = (Agent::start("redirect"), pod());
    let ran = add(&agent, &pod, None);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(inspected(&pod).contains("outbound-to-proxy"), "{}", inspected(&pod));
    let told = agent.end();
    let line = told.lines().find(|line| line.contains("gybe-cni cmdAdd")).unwrap_or_else(|| panic!("{told}"));
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((line["pod"].as_str(), line["decision"].as_str()), (Some("shop/cart-0"), Some("redirect")));
}

#[test]
fn f14_without_its_agent_a_meshed_pod_is_refused_untouched_and_an_unmeshed_one_passes() {
    let (mut agent, pod) = (Agent::start("crash"), pod());
    agent.crash();
    let refused = add(&agent, &pod, None);
    let answer: Value = serde_json::from_str(&refused.out).unwrap();
    assert_eq!((refused.code, answer["code"].as_u64()), (Some(1), Some(11)), "{refused:?}");
    assert!(answer["msg"].as_str().unwrap().contains("GYBE-ADD-032: the node agent at"), "{answer}");
    assert!(inspected(&pod).starts_with("no rules of Gybe"), "{}", inspected(&pod));
    for unmeshed in [json!(null), json!({}), json!({ "example.com/x": "y" })] {
        let ran = add(&agent, &pod, Some(unmeshed));
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[test]
fn a08_a_stranger_at_the_socket_is_not_believed() {
    let (agent, pod) = (Agent::run_by(STRANGER, "stranger"), pod());
    let refused = add(&agent, &pod, None);
    assert!(refused.out.contains("GYBE-ADD-032") && refused.out.contains("runs as user 1000"), "{refused:?}");
    assert!(inspected(&pod).starts_with("no rules of Gybe"), "{}", inspected(&pod));
}

#[test]
fn another_users_connection_is_refused_whatever_the_sockets_mode() {
    let (mut agent, pod) = (Agent::start("caller"), pod());
    let as_stranger = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "env", "-i"];
    let refused = add_as(&as_stranger, &agent.place, &pod, None);
    assert!(refused.out.contains("GYBE-ADD-032") && refused.out.contains("Permission denied"), "{refused:?}");
    let socket = agent.place.join("run/facts.sock");
    fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    let refused = add_as(&as_stranger, &agent.place, &pod, None);
    assert!(refused.code == Some(1) && refused.out.contains("GYBE-ADD-032"), "{refused:?}");
    let told = agent.end();
    assert!(told.contains("a connection was refused") && told.contains("1000"), "{told}");
}
