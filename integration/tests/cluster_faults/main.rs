//! The number of ADDs that fail during faults of the cluster or the agent: real plugin processes, a real agent, and an
//! API server with injected faults. `make -C integration fault-runs` makes 1,000 ADDs for each row of the table and prints it;
//! `GYBE_ADDS` sets another number.
#![allow(clippy::print_stdout, reason = "the table is what the full run is for")]
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod adds;
mod node;

use adds::{Kind, Row};
use adds::{adds_until, assert_operators_view, make_adds};
use gybe_api_server::{Fault, FaultKind, Network, Validity};
use nix::sys::signal::Signal;
use node::TestNode;
use node::{restarting, rotating};
use std::time::Duration;

/// The expected outcome of the two kinds of meshed pods.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meshed {
    Pass,
    /// Pods in the agent's cache pass; its queries about others fail.
    PassWhenKnown,
    /// There is no agent, or its cache is empty and its queries fail.
    Refused,
}

/// The number of ADDs of each kind.
fn count() -> usize {
    std::env::var("GYBE_ADDS").ok().map_or(20, |text| text.parse().unwrap())
}

/// Makes ADDs of every kind during the fault and asserts their outcomes.
fn assert_outcomes(node: &TestNode, fault: &'static str, meshed: Meshed) {
    for kind in Kind::ALL {
        let passes = match kind {
            Kind::Unmeshed | Kind::Excluded | Kind::Own => true,
            Kind::Known => matches!(meshed, Meshed::Pass | Meshed::PassWhenKnown),
            Kind::New => meshed == Meshed::Pass,
        };
        let row = make_adds(node, (fault, kind), count(), !passes);
        if passes { row.assert_none_fails() } else { row.assert_all_refused() }
    }
}

/// After the fault: asserts that the watch recovers and that pods that the agent has not seen start.
fn assert_recovers(node: &TestNode, fault: &'static str) {
    let before = node.watches();
    node.cut_connections();
    node.wait_for_watch(before);
    make_adds(node, (fault, Kind::New), count().min(50), false).assert_none_fails();
}

#[test]
fn without_a_fault_no_add_fails_and_inspect_and_verify_agree() {
    let node = TestNode::with_agent("no-fault");
    assert_outcomes(&node, "nothing", Meshed::Pass);
    assert_operators_view(&node);
}

#[test]
fn f01_with_the_api_unreachable_only_unknown_pods_are_refused() {
    let node = TestNode::with_agent("unreachable");
    node.server.set_network(Network::Unreachable).unwrap();
    assert_outcomes(&node, "F01 API: packets get lost", Meshed::PassWhenKnown);
    node.server.set_network(Network::Open).unwrap();
    assert_recovers(&node, "F01 API: packets come through again");
}

#[test]
fn f01_with_the_api_silent_only_unknown_pods_are_refused() {
    let node = TestNode::with_agent("silent");
    node.server.set_network(Network::Silent).unwrap();
    assert_outcomes(&node, "F01 API: accepts and never answers", Meshed::PassWhenKnown);
    node.server.set_network(Network::Open).unwrap();
    assert_recovers(&node, "F01 API: answers again");
}

#[test]
fn f01_with_the_api_slow_no_add_fails() {
    let node = TestNode::with_agent("slow");
    node.server.add_fault(Fault::always(FaultKind::Slow(Duration::from_millis(400))));
    node.cut_connections();
    assert_outcomes(&node, "F01 API: answers after 400 ms, watch cut", Meshed::Pass);
}

#[test]
fn f02_with_all_tokens_revoked_only_unknown_pods_are_refused() {
    let node = TestNode::with_agent("revoked");
    node.server.tokens().revoke_all();
    node.cut_connections();
    assert_outcomes(&node, "F02 tokens revoked, watch cut", Meshed::PassWhenKnown);
    node.replace_tokens(Validity::Valid);
    assert_recovers(&node, "F02 another token in the file");
}

#[test]
fn f02_while_tokens_rotate_no_add_fails() {
    let node = TestNode::with_agent("rotated");
    let kinds = ("F02 tokens rotated in a loop, watch cut each time", &[Kind::Known, Kind::New][..]);
    let rows = rotating(&node, |times| adds_until(&node, kinds, count(), (times, 10)));
    rows.iter().for_each(Row::assert_none_fails);
}

#[test]
fn f03_with_tokens_two_days_off_only_unknown_pods_are_refused() {
    let node = TestNode::with_agent("token-days");
    node.replace_tokens(Validity::NotYetValid);
    assert_outcomes(&node, "F03 token valid in two days", Meshed::PassWhenKnown);
    node.replace_tokens(Validity::Expired);
    assert_outcomes(&node, "F03 token valid until two days ago", Meshed::PassWhenKnown);
    node.replace_tokens(Validity::Valid);
    assert_recovers(&node, "F03 token valid now");
}

#[test]
fn f03_with_certificates_two_days_off_only_unknown_pods_are_refused() {
    let node = TestNode::with_agent("certificate-days");
    for (validity, fault) in [
        (Validity::NotYetValid, "F03 certificate valid in two days"),
        (Validity::Expired, "F03 certificate valid until two days ago"),
    ] {
        node.server.present_certificate(validity).unwrap();
        node.cut_connections();
        assert_outcomes(&node, fault, Meshed::PassWhenKnown);
    }
    node.server.present_certificate(Validity::Valid).unwrap();
    assert_recovers(&node, "F03 certificate valid now");
}

#[test]
fn f04_before_the_agent_runs_only_pods_in_the_mesh_are_refused() {
    let mut node = TestNode::new("reboot");
    assert_outcomes(&node, "F04 no agent yet", Meshed::Refused);
    node.server.set_network(Network::Unreachable).unwrap();
    node.start_agent();
    assert_outcomes(&node, "F04 an agent, and no API yet", Meshed::Refused);
    node.server.set_network(Network::Open).unwrap();
    assert_recovers(&node, "F04 API: answers");
}

#[test]
fn f14_without_the_agent_only_pods_in_the_mesh_are_refused() {
    let mut node = TestNode::with_agent("killed");
    node.kill_agent();
    assert_outcomes(&node, "F14 agent killed", Meshed::Refused);
    node.start_agent();
    assert_recovers(&node, "F14 agent started again");
}

/// It keeps the lead, and accepts connections without an answer, until its liveness probe fails.
#[test]
fn f14_while_the_agent_is_stopped_only_pods_in_the_mesh_are_refused() {
    let node = TestNode::with_agent("stopped");
    let agent = node.agent.as_ref().unwrap();
    agent.signal(Signal::SIGSTOP);
    assert_outcomes(&node, "F14 agent stopped", Meshed::Refused);
    agent.signal(Signal::SIGCONT);
    assert_recovers(&node, "F14 agent continued");
}

#[test]
fn f14_f27_while_the_agent_restarts_in_a_loop_no_add_fails() {
    let node = TestNode::new("restarts");
    let kinds = ("F14 agent killed and started in a loop", &Kind::ALL[..]);
    let rows = restarting(&node, |times| adds_until(&node, kinds, count(), (times, 5)));
    rows.iter().for_each(Row::assert_none_fails);
}
