//! The number of ADDs that fail during faults of the cluster or the agent: real plugin processes, a real agent, and an
//! API server with injected faults. `make fault-runs` makes 1,000 ADDs for each row of the table and prints it;
//! `GYBE_ADDS` sets another number.
#![allow(clippy::print_stdout, reason = "the table is what the full run is for")]
#![allow(clippy::indexing_slicing, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod adds;
mod agent;
mod kind;
mod meanwhile;
mod row;
mod site;

use adds::{adds, adds_until, seen_by_an_operator};
use gybe_api_server::{Fault, FaultKind, Network, Validity};
use kind::Kind;
use meanwhile::{restarting, rotating};
use row::Row;
use site::Site;
use std::time::Duration;

/// The expected outcome of the two kinds of meshed pods.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meshed {
    Pass,
    /// Pods in the agent's cache pass; its queries about others fail.
    PassWhenSeen,
    /// There is no agent, or its cache is empty and its queries fail.
    AreRefused,
}

/// The number of ADDs of each kind.
fn count() -> usize {
    std::env::var("GYBE_ADDS").ok().map_or(20, |text| text.parse().unwrap())
}

/// Makes ADDs of every kind during the fault and asserts their outcomes.
fn hold(site: &Site, fault: &'static str, meshed: Meshed) {
    for kind in Kind::ALL {
        let passes = match kind {
            Kind::Unmeshed | Kind::Excluded | Kind::Own => true,
            Kind::Known => matches!(meshed, Meshed::Pass | Meshed::PassWhenSeen),
            Kind::New => meshed == Meshed::Pass,
        };
        let row = adds(site, (fault, kind), count(), !passes);
        if passes { row.none_fails() } else { row.all_are_refused() }
    }
}

/// After the fault: asserts that the watch recovers and that pods that the agent has not seen start.
fn heals(site: &Site, fault: &'static str) {
    let before = site.watches();
    site.cut_connections();
    site.see_a_watch(before);
    adds(site, (fault, Kind::New), count().min(50), false).none_fails();
}

#[test]
fn with_nothing_wrong_no_add_fails_and_an_operator_sees_why() {
    let site = Site::with_agent("sound");
    hold(&site, "nothing", Meshed::Pass);
    seen_by_an_operator(&site);
}

#[test]
fn f01_with_the_api_unreachable_only_unknown_pods_are_refused() {
    let site = Site::with_agent("unreachable");
    site.server.set_network(Network::Unreachable).unwrap();
    hold(&site, "F01 API: packets get lost", Meshed::PassWhenSeen);
    site.server.set_network(Network::Open).unwrap();
    heals(&site, "F01 API: packets come through again");
}

#[test]
fn f01_with_the_api_black_holed_only_unknown_pods_are_refused() {
    let site = Site::with_agent("mute");
    site.server.set_network(Network::Silent).unwrap();
    hold(&site, "F01 API: accepts and never answers", Meshed::PassWhenSeen);
    site.server.set_network(Network::Open).unwrap();
    heals(&site, "F01 API: answers again");
}

#[test]
fn f01_with_the_api_slow_no_add_fails() {
    let site = Site::with_agent("slow");
    site.server.add_fault(Fault::always(FaultKind::Slow(Duration::from_millis(400))));
    site.cut_connections();
    hold(&site, "F01 API: answers after 400 ms, watch cut", Meshed::Pass);
}

#[test]
fn f02_with_all_tokens_revoked_only_unknown_pods_are_refused() {
    let site = Site::with_agent("revoked");
    site.server.tokens().revoke_all();
    site.cut_connections();
    hold(&site, "F02 tokens revoked, watch cut", Meshed::PassWhenSeen);
    site.only_token(Validity::Valid);
    heals(&site, "F02 another token in the file");
}

#[test]
fn f02_while_tokens_rotate_no_add_fails() {
    let site = Site::with_agent("rotated");
    let kinds = ("F02 tokens rotated in a loop, watch cut each time", &[Kind::Known, Kind::New][..]);
    let rows = rotating(&site, |times| adds_until(&site, kinds, count(), (times, 10)));
    rows.iter().for_each(Row::none_fails);
}

#[test]
fn f03_with_tokens_two_days_off_only_unknown_pods_are_refused() {
    let site = Site::with_agent("token-days");
    site.only_token(Validity::NotYetValid);
    hold(&site, "F03 token valid in two days", Meshed::PassWhenSeen);
    site.only_token(Validity::Expired);
    hold(&site, "F03 token valid until two days ago", Meshed::PassWhenSeen);
    site.only_token(Validity::Valid);
    heals(&site, "F03 token valid now");
}

#[test]
fn f03_with_certificates_two_days_off_only_unknown_pods_are_refused() {
    let site = Site::with_agent("certificate-days");
    for (validity, fault) in [
        (Validity::NotYetValid, "F03 certificate valid in two days"),
        (Validity::Expired, "F03 certificate valid until two days ago"),
    ] {
        site.server.present_certificate(validity).unwrap();
        site.cut_connections();
        hold(&site, fault, Meshed::PassWhenSeen);
    }
    site.server.present_certificate(Validity::Valid).unwrap();
    heals(&site, "F03 certificate valid now");
}

#[test]
fn f04_before_the_agent_is_there_only_pods_in_the_mesh_are_refused() {
    let mut site = Site::new("reboot");
    hold(&site, "F04 no agent yet", Meshed::AreRefused);
    site.server.set_network(Network::Unreachable).unwrap();
    site.start_agent();
    hold(&site, "F04 an agent, and no API yet", Meshed::AreRefused);
    site.server.set_network(Network::Open).unwrap();
    heals(&site, "F04 the API is there");
}

#[test]
fn f14_without_the_agent_only_pods_in_the_mesh_are_refused() {
    let mut site = Site::with_agent("killed");
    site.kill_agent();
    hold(&site, "F14 agent killed", Meshed::AreRefused);
    site.start_agent();
    heals(&site, "F14 agent started again");
}

#[test]
fn f14_f27_while_the_agent_restarts_in_a_loop_no_add_fails() {
    let site = Site::new("restarts");
    let kinds = ("F14 agent killed and started in a loop", &Kind::ALL[..]);
    let rows = restarting(&site, |times| adds_until(&site, kinds, count(), (times, 5)));
    rows.iter().for_each(Row::none_fails);
}
