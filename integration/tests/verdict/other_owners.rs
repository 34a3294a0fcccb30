//! Rules of other owners: the verdict, and real connections that show whether it is right.

use crate::RedirectedPod;
use gybe_demo::testnet::outcome::ConnectionOutcome;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::make;
use gybe_integration::namespace::in_parallel;
use gybe_integration::programs::ours;
use gybe_integration::vectors::Location;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::inspect::verdict::{Desired, RedirectionState, VerdictContext, judge_namespace};
use std::time::Duration;

/// Rules, the answer, and a part of its reasons or notes.
pub(crate) type Case = (&'static str, RedirectionState, &'static str);

/// A table of nf_tables with one chain and one rule.
macro_rules! nft {
    ($chain:literal, $rule:literal) => {
        concat!(
            "nft -f - <<'END'\ntable inet other {\nchain theirs {\ntype ",
            $chain,
            ";\n",
            $rule,
            "\n}\n}\nEND"
        )
    };
}

pub(crate) use nft;

const CASES: [Case; 36] = [
    ("true", RedirectionState::Redirected, ""),
    (
        "iptables-nft -t nat -I OUTPUT -p tcp -j REDIRECT --to-ports 9000",
        RedirectionState::NotRedirected,
        "goes to port 9000 of the pod instead of port 15001 of the proxy: hook output priority -100, ip nat OUTPUT",
    ),
    (
        nft!("nat hook output priority -110", "meta skuid 1000 tcp dport 80 redirect to :9000"),
        RedirectionState::NotRedirected,
        "hook output priority -110, inet other theirs: skuid 1000 tcp dport 80 redirect to :9000",
    ),
    (
        nft!("nat hook output priority -90", "meta skuid 1000 tcp dport 80 redirect to :9000"),
        RedirectionState::Redirected,
        "changes no redirected connection: hook output priority -90, inet other theirs",
    ),
    (
        nft!("nat hook prerouting priority -110", "tcp dport 8080 accept"),
        RedirectionState::Redirected,
        "changes no redirected connection",
    ),
    (
        nft!("nat hook prerouting priority -110", "tcp dport 8080 dnat ip to 10.244.0.10:9000"),
        RedirectionState::NotRedirected,
        "by eth0",
    ),
    (
        nft!("filter hook output priority -300", "notrack"),
        RedirectionState::NotRedirected,
        "hook output priority -300, inet other theirs: notrack",
    ),
    (
        nft!("filter hook prerouting priority -300", "iifname eth0 notrack"),
        RedirectionState::NotRedirected,
        "hook prerouting priority -300, inet other theirs: iifname \"eth0\" notrack",
    ),
    // After connection tracking this rule has no effect.
    (
        nft!("filter hook output priority 0", "notrack"),
        RedirectionState::Redirected,
        "changes no redirected connection",
    ),
    // At prerouting no packet has an owner.
    (
        nft!("filter hook prerouting priority -300", "meta skuid 1337 notrack"),
        RedirectionState::Redirected,
        "changes no redirected connection",
    ),
    // At output it takes the proxy's answers out of connection tracking.
    (
        nft!("filter hook output priority -300", "meta skuid 1337 notrack"),
        RedirectionState::NotRedirected,
        "gets no answer instead of port 15001 of the proxy: hook output priority -300, inet other theirs: skuid 1337 notrack",
    ),
    (
        nft!("filter hook output priority 10", "tcp dport 15001 drop"),
        RedirectionState::NotRedirected,
        "is dropped instead of port 15001 of the proxy: hook output priority 10, inet other theirs: tcp dport 15001 drop",
    ),
    (
        nft!("filter hook output priority 10", "tcp sport 15006 drop"),
        RedirectionState::NotRedirected,
        "hook output priority 10, inet other theirs: tcp sport 15006 drop",
    ),
    // Only answers to clients have such a port behind address translation.
    (
        nft!("filter hook output priority 10", "tcp dport 61000-65535 drop"),
        RedirectionState::NotRedirected,
        "from port 61000 to 198.51.100.1:9999 gets no answer instead of port 15001 of the proxy: hook output priority 10",
    ),
    (
        nft!("filter hook input priority 0; policy drop", "ct state established accept"),
        RedirectionState::NotRedirected,
        "hook input priority 0, inet other theirs: policy drop",
    ),
    (
        nft!("filter hook output priority 10", "ip daddr 169.254.169.254 drop"),
        RedirectionState::Redirected,
        "changes no redirected connection: hook output priority 10, inet other theirs: ip daddr 169.254.169.254 drop",
    ),
    (
        nft!(
            "filter hook output priority 10",
            "ip daddr { 10.1.2.0/24, 10.9.0.0/16 } tcp dport { 80, 8000-8100 } drop"
        ),
        RedirectionState::Redirected,
        "ip daddr { 10.1.2.0-10.1.2.255, 10.9.0.0-10.9.255.255 } tcp dport { 80, 8000-8100 } drop",
    ),
    (
        nft!("filter hook output priority -150", "ip daddr . tcp dport { 10.7.7.7 . 443 } drop"),
        RedirectionState::NotRedirected,
        "to 10.7.7.7:443 is dropped instead of port 15001",
    ),
    (
        nft!("filter hook output priority -150", "tcp dport 443 limit rate over 1/second drop"),
        RedirectionState::Unknown,
        "tcp dport 443 limit drop",
    ),
    (
        concat!(
            "nft -f - <<'END'\ntable inet other {\nset limited {\ntype inet_service; limit rate over 1/second\n",
            "elements = { 443 }\n}\nset counted {\ntype inet_service; counter; elements = { 444 }\n}\n",
            "chain theirs {\ntype filter hook output priority -150;\n",
            "tcp dport @limited drop\ntcp dport @counted accept\n}\n}\nEND"
        ),
        RedirectionState::Unknown,
        "tcp dport @limited drop",
    ),
    // Copies of the proxy's answers reach the client before they are translated back.
    (
        "nft -f - <<'END'\ntable ip other {\nchain theirs {\ntype filter hook output priority 0;\n\
         dup to 10.244.0.1 device eth0\n}\n}\nEND",
        RedirectionState::Unknown,
        "hook output priority 0, ip other theirs: [dup]",
    ),
    (
        nft!("filter hook output priority -150", "tcp dport < 1024 drop"),
        RedirectionState::NotRedirected,
        "inet other theirs: tcp dport < 1024 drop",
    ),
    (
        nft!("filter hook output priority -150", "tcp dport >= 61000 drop"),
        RedirectionState::NotRedirected,
        "inet other theirs: tcp dport >= 61000 drop",
    ),
    (
        nft!("filter hook output priority -150", "meta skuid < 500 drop"),
        RedirectionState::NotRedirected,
        "is dropped instead of port 15001",
    ),
    (
        nft!("filter hook output priority -150", "tcp dport vmap { 80 : accept, 443 : drop }"),
        RedirectionState::NotRedirected,
        "443 is dropped instead of port 15001",
    ),
    (
        nft!(
            "nat hook output priority -110",
            "dnat ip to tcp dport map { 80 : 10.1.2.3, 443 : 10.244.0.10 }"
        ),
        RedirectionState::NotRedirected,
        "goes to 10.1.2.3:80 instead of port 15001",
    ),
    // nft compares both ports in one expression.
    (
        nft!("filter hook output priority -150", "tcp sport 1000 tcp dport 443 drop"),
        RedirectionState::NotRedirected,
        ":443 is dropped instead of port 15001",
    ),
    (
        nft!("filter hook output priority -150", "ip saddr 10.244.0.10 ip daddr 10.1.2.3 drop"),
        RedirectionState::NotRedirected,
        "to 10.1.2.3:",
    ),
    (
        nft!("filter hook output priority -150", "ct reply ip saddr 10.7.7.7 drop"),
        RedirectionState::NotRedirected,
        "to 10.7.7.7:",
    ),
    (
        nft!("filter hook output priority -150", "meta mark and 0x4 == 0x4 meta mark and 0x2 == 0 drop"),
        RedirectionState::NotRedirected,
        "is dropped instead of port 15001",
    ),
    (
        nft!("filter hook output priority -150", "meta mark and 0x3 == 0x3 drop"),
        RedirectionState::NotRedirected,
        "meta mark & 0x3 == 0x3 drop",
    ),
    (nft!("filter hook output priority -150", "tcp dport 443 counter log"), RedirectionState::Redirected, ""),
    (
        "nft -f - <<'END'\ntable netdev other {\nchain theirs {\ntype filter hook ingress device eth0 priority 0;\ndrop\n}\n}\nEND",
        RedirectionState::Unknown,
        "chain netdev other theirs is not evaluated",
    ),
    (
        "iptables-legacy -t filter -A OUTPUT -p tcp -m multiport --dports 15001,15006 -j REJECT",
        RedirectionState::NotRedirected,
        "iptables-legacy filter OUTPUT",
    ),
    (
        "iptables-legacy -t raw -A OUTPUT -p tcp -m owner --uid-owner 1000 -j CT --notrack",
        RedirectionState::NotRedirected,
        "hook output priority -300, iptables-legacy raw OUTPUT",
    ),
    (
        "iptables-nft -t filter -A OUTPUT -d 169.254.169.254 -j DROP",
        RedirectionState::Redirected,
        "changes no redirected connection: hook output priority 0, ip filter OUTPUT",
    ),
];

fn wrong((script, answer, sentence): &Case) -> Result<Option<String>, Failure> {
    let pod = RedirectedPod::redirected_by(BackendKind::Nft)?;
    if let Err(refused) = pod.run_as_other_owner(script) {
        return Ok(Some(format!("{refused:?}")));
    }
    let verdict = pod.verdict()?;
    let all = [verdict.reasons.join("\n"), verdict.notes.join("\n")].concat();
    if verdict.state != *answer || !all.contains(sentence) {
        return Ok(Some(format!("{script}\nshould be {answer:?} because {sentence:?}, not {verdict:#?}")));
    }
    // A real connection of each kind has the predicted outcome.
    let live = pod.live()?;
    let evaluated = live.not_evaluated().is_empty();
    for flow in pod.flows.iter().filter(|_| evaluated) {
        if let Some(sentence) = pod.disagreement(&live, flow)? {
            return Ok(Some(format!("{script}\n{sentence}")));
        }
    }
    Ok(None)
}

/// Tries every case.
pub(crate) fn check(cases: Vec<Case>) -> Result<(), Failure> {
    let count = cases.len();
    let found = in_parallel(cases, |case| wrong(&case));
    let wrong: Vec<String> =
        found.into_iter().collect::<Result<Vec<_>, Failure>>()?.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n\n"));
    Ok(())
}

#[test]
fn other_owners_rules_are_judged_by_what_they_do_to_connections() -> Result<(), Failure> {
    check(CASES.to_vec())
}

#[test]
fn without_a_known_policy_ineffective_rules_of_gybe_do_not_count_as_a_redirection() -> Result<(), Failure> {
    for (kind, script, says) in [
        (BackendKind::Nft, "nft add table inet gybe '{ flags dormant; }'", "table inet gybe is dormant"),
        (BackendKind::IptablesNft, "iptables-nft -t nat -F OUTPUT", "no rule leads to chain ISTIO_OUTPUT"),
        (BackendKind::IptablesNft, "iptables-nft -t nat -F ISTIO_OUTPUT", "chain ISTIO_OUTPUT"),
    ] {
        let pod = RedirectedPod::redirected_by(kind)?;
        let judge = || judge_namespace(Desired::NotKnown, VerdictContext::default());
        let netns = pod.topology.at(Location::Pod);
        let intact = netns.run(judge)??;
        assert_eq!(intact.state, RedirectionState::Redirected, "{intact:?}");
        pod.run_as_other_owner(script)?;
        let verdict = netns.run(judge)??;
        assert_eq!(verdict.state, RedirectionState::NotRedirected, "{script}: {verdict:?}");
        assert!(verdict.reasons.join("\n").contains(says), "{script}: {verdict:?}");
    }
    Ok(())
}

/// The control: without other owners' rules the proxy answers, with the hijacking rule another listener.
#[test]
fn a_rule_that_hijacks_every_connection_makes_the_verdict_not_redirected() -> Result<(), Failure> {
    let pod = RedirectedPod::redirected_by(BackendKind::Nft)?;
    let answered_by = || -> Result<String, Failure> {
        match make(&pod.topology, pod.flow("v4.app->ext:80"), Duration::from_secs(5))? {
            ConnectionOutcome::Replied(answer) => Ok(answer.by),
            other => Err(Failure::new(other.to_string())),
        }
    };
    assert_eq!(answered_by()?, "envoy:15001");
    let netns = pod.topology.at(Location::Pod).path().to_string_lossy().into_owned();
    let verify = |json: &[&str]| {
        let policy = r#"{"enable_ipv6": true, "inbound_ports_exclude": ["15090", "15021", "15020"]}"#;
        ours("gybe", &[&["verify", "--netns", &netns, "--policy", "-"], json].concat(), policy)
    };
    let intact = verify(&[])?;
    assert!(intact.code == Some(0) && !intact.err.contains("rule of others"), "{intact:?}");
    pod.run_as_other_owner("iptables-nft -t nat -I OUTPUT -p tcp -j REDIRECT --to-ports 9000")?;
    assert_eq!(answered_by()?, "app:9000");
    let hijacked = verify(&[])?;
    assert_eq!(hijacked.code, Some(1), "{hijacked:?}");
    assert!(hijacked.out.starts_with("NOT REDIRECTED: TCP from user 1000"), "{}", hijacked.out);
    let json: serde_json::Value = serde_json::from_str(&verify(&["--json"])?.out)?;
    assert_eq!((&json["holds"], &json["verdict"]), (&false.into(), &"not-redirected".into()), "{json}");
    Ok(())
}

#[test]
fn trace_evaluates_the_live_rules_and_reports_when_they_differ_from_the_desired_ones() -> Result<(), Failure>
{
    let pod = RedirectedPod::redirected_by(BackendKind::Nft)?;
    let netns = pod.topology.at(Location::Pod).path().to_string_lossy().into_owned();
    let trace = |words: &[&str]| {
        let packet = ["out", "tcp", "10.1.2.3:80", "--uid", "1000", "--netns", &netns];
        ours("gybe", &[&["trace"], words, &packet].concat(), "{}")
    };
    let live = trace(&[])?;
    assert!(live.out.contains("goes to port 15001 of the pod (rule outbound-to-proxy)"), "{live:?}");
    let same = trace(&["--policy", "-"])?;
    assert!(same.out.contains("desired rules:") && !same.out.contains("DIFFERENT"), "{same:?}");
    pod.run_as_other_owner("nft delete table inet gybe")?;
    let gone = trace(&[])?;
    assert!(gone.out.ends_with("keeps its destination (no rule applies)\n"), "{gone:?}");
    let both = trace(&["--policy", "-"])?;
    assert!(
        both.out.contains("goes to the proxy's port 15001") && both.out.contains("DIFFERENT"),
        "{both:?}"
    );
    let json: serde_json::Value = serde_json::from_str(&trace(&["--policy", "-", "--json"])?.out)?;
    assert_eq!((&json["differs"], &json["live"]["outcome"]), (&true.into(), &"untouched".into()), "{json}");
    let neither = ours("gybe", &["trace", "out", "tcp", "10.1.2.3:80"], "")?;
    assert_eq!(neither.code, Some(2), "{neither:?}");
    Ok(())
}
