//! Predictions from the rules that each backend really wrote, for the recorded connections, and with random rules
//! of other owners: the prediction is the outcome of the real connection, and the verdict is not `redirected` when
//! a connection that should be redirected is not.

use crate::RedirectedPod;
use gybe_demo::connections::{Control, SideEffect, follows};
use gybe_integration::failure::Failure;
use gybe_integration::namespace::in_parallel;
use gybe_integration::predict::{in_the_pod, trace_flow};
use gybe_integration::programs::patient;
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location, Vector};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::live::{LiveRules, Outcome};
use gybe_netfilter::inspect::verdict::{Desired, RedirectionState, VerdictContext, judge_namespace};
use proptest::collection::vec;
use proptest::sample::select;
use proptest::strategy::{Just, Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// How many rule sets are tried.
const RULE_SETS: u64 = 60;

pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).unwrap_or_default();
    if text.is_empty() { otherwise } else { text.parse().unwrap_or_else(|_| panic!("{variable}={text}")) }
}

const MATCHES: [&str; 26] = [
    "",
    "",
    "meta l4proto tcp",
    "meta l4proto udp",
    "tcp dport 80",
    "tcp dport != 80",
    "tcp dport < 1024",
    "tcp dport vmap { 80 : accept, 443 : drop, 8080 : return }",
    "tcp sport 32768-60999 tcp dport 80",
    "tcp sport 1000 tcp dport 80",
    "tcp dport { 80, 8080, 15001, 15006 }",
    "tcp dport 8000-16000",
    "tcp sport { 15001, 15006, 8080 }",
    "tcp flags & (syn | ack) == syn",
    "ip daddr 10.1.2.0/24",
    "ip daddr 127.0.0.0/8",
    "ip saddr 10.244.0.0/16",
    "ip saddr . tcp dport { 10.244.0.10 . 80, 10.244.0.1 . 8080, 10.244.0.10 . 15001 }",
    "ip6 daddr fd01::/16",
    "ct state new",
    "ct state established",
    "ct direction reply",
    "ct original ip daddr 10.1.2.3",
    "meta mark 5",
    "meta nfproto ipv6",
    "th dport 53",
];

/// Matches that only some hooks have.
fn at_hook(hook: &str) -> &'static [&'static str] {
    match hook {
        "output" => &[
            "",
            "meta skuid 1000",
            "meta skuid != 1337",
            "meta skgid 1337",
            "meta skuid 500-1500",
            "meta skuid < 500",
            "oifname \"lo\"",
            "oifname \"eth*\"",
        ],
        "postrouting" => &["", "oifname \"lo\"", "oifname != \"lo\"", "meta skuid 1000"],
        _ => &["", "iifname \"lo\"", "iifname \"eth0\"", "iif lo"],
    }
}

fn rules(hook: &'static str, actions: &'static [&'static str]) -> impl Strategy<Value = Vec<String>> {
    let rule = (select(&MATCHES[..]), select(at_hook(hook)), select(actions))
        .prop_map(|(one, two, action)| format!("{one} {two} {action}"));
    vec(rule, 1..4)
}

const PLAIN: [&str; 7] =
    ["drop", "accept", "return", "counter", "meta mark set 5", "jump side", "ct mark set 7"];
const RAW: [&str; 6] = ["notrack", "ct zone set 3", "drop", "accept", "counter", "meta mark set 5"];
const NAT: [&str; 6] = [
    "meta l4proto tcp redirect to :9000",
    "meta l4proto tcp redirect to :15001",
    "accept",
    "return",
    "drop",
    "meta l4proto { tcp, udp } redirect to :8080",
];

/// A chain as text: its type, hook, priority and rules.
fn chain() -> impl Strategy<Value = String> {
    let of = |kind: &'static str, hooks: &'static [&'static str], priorities: &'static [i32], actions| {
        (select(hooks), select(priorities))
            .prop_flat_map(move |(hook, priority)| (Just((kind, hook, priority)), rules(hook, actions)))
    };
    let filter = of(
        "filter",
        &["prerouting", "input", "output", "postrouting"],
        &[-160, -140, -50, 0, 10, 160],
        &PLAIN[..],
    );
    let raw = of("filter", &["prerouting", "output"], &[-310, -290, -250], &RAW[..]);
    let nat = of("nat", &["prerouting", "output"], &[-120, -101, -99, -90, 10], &NAT[..]);
    proptest::prop_oneof![filter, raw, nat].prop_map(|((kind, hook, priority), rules)| {
        format!("type {kind} hook {hook} priority {priority};\n{}\n", rules.join("\n"))
    })
}

fn rule_set(seed: u64) -> String {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let side = rules("input", &["drop", "accept", "return", "counter"]);
    let (side, chains) = (side, vec(chain(), 1..4)).new_tree(&mut runner).unwrap().current();
    // A side chain is reached from every hook, so its rules match no input interface.
    let side: Vec<String> = side.iter().filter(|rule| !rule.contains("iif")).cloned().collect();
    let chains = chains.iter().enumerate().map(|(n, chain)| format!("chain theirs{n} {{\n{chain}}}\n"));
    let chains: String = chains.collect();
    format!("table inet other {{\nchain side {{\n{}\n}}\n{chains}}}", side.join("\n"))
}

/// The connections of one rule set that did not end as predicted, and how many had which outcome.
fn tried(seed: u64) -> Result<(Vec<String>, [usize; 3]), Failure> {
    let pod = RedirectedPod::redirected_by(BackendKind::Nft)?;
    let rules = rule_set(seed);
    pod.run_as_other_owner(&format!("nft -f - <<'END'\n{rules}\nEND"))?;
    let live = pod.live()?;
    let (desired, verdict) = (in_the_pod(&compile(&pod.policy))?, pod.verdict()?);
    let (mut wrong, mut counts) = (Vec::new(), [0; 3]);
    for flow in &pod.flows {
        let outcome = live.trace(&flow.packet()?).outcome;
        let place = match outcome {
            Outcome::Unknown | Outcome::Translated(_) => 2,
            Outcome::Dropped | Outcome::RepliesLost => 1,
            _ => 0,
        };
        counts.iter_mut().skip(place).take(1).for_each(|count| *count += 1);
        let sentence = pod.disagreement(&live, flow)?;
        let expected = match trace_flow(&desired, flow)?.first {
            Outcome::Untouched => outcome,
            desired => desired,
        };
        let missed = (outcome != expected && verdict.state == RedirectionState::Redirected).then(|| {
            format!("{}: {outcome:?} instead of {expected:?}, and the verdict is {verdict:?}", flow.id)
        });
        let sentences = sentence.into_iter().chain(missed);
        wrong.extend(sentences.map(|sentence| format!("GYBE_SEED={seed}: {sentence}\n{rules}")));
    }
    Ok((wrong, counts))
}

#[test]
fn with_random_rules_of_other_owners_real_connections_end_as_predicted() -> Result<(), Failure> {
    let (first, count) = (number("GYBE_SEED", 1), number("GYBE_RULESETS", RULE_SETS));
    let found = in_parallel((first..first + count).collect(), tried);
    let found = found.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let sum = |place: usize| found.iter().filter_map(|(_, counts)| counts.get(place)).sum::<usize>();
    let (wrong, [answered, lost, unknown]) =
        (found.iter().flat_map(|(wrong, _)| wrong.clone()).collect::<Vec<_>>(), [0, 1, 2].map(sum));
    eprintln!("{answered} answered, {lost} not, {unknown} not predicted, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n\n"));
    if count == RULE_SETS {
        assert!(answered > 200 && lost > 50, "{answered} answered, {lost} not: the rules do too little");
        assert!(unknown * 20 < answered + lost, "{unknown} not predicted");
    }
    Ok(())
}

/// Writes the vector's policy, reads the rules back, and walks every connection through them.
fn walked(vector: &Vector, kind: BackendKind) -> Result<Vec<String>, Failure> {
    let topology = Topology::new(vector.policy.mode, &[])?;
    let pod = topology.at(Location::Pod);
    let backend = patient(kind)?;
    let redirection = Redirection::of(&vector.policy);
    pod.run(|| redirection.apply(&*backend))??;
    let live = pod.run(LiveRules::read)??.with_proxy_of(&vector.policy);
    let desired = in_the_pod(&compile(&vector.policy))?;
    let mut wrong: Vec<String> = live.not_evaluated().to_vec();
    for flow in &vector.flows {
        let packet = flow.packet()?;
        let (traced, walked) = (desired.trace(&packet), live.trace(&packet));
        // TPROXY has an effect on answers of other transparent sockets.
        let is_lost = (traced.first, walked.outcome) == (Outcome::Untouched, Outcome::RepliesLost)
            && (flow.mark.is_some() || flow.source.is_some());
        let same = traced.first == walked.outcome || is_lost;
        let decided = walked.decided_by.map(|step| step.to_string()).unwrap_or_default();
        let by = format!("{:?} desired, {:?} live by {decided}", traced.first, walked.outcome);
        if !same {
            wrong.push(format!("{kind} {} {}: {by}", vector.name, flow.id));
        }
        let recorded = Control { to: flow.to, outcome: &flow.without_rules };
        let is_plain = flow.mark.is_none() && flow.source.is_none() && !flow.is_forwarded();
        if is_plain && !follows(walked.outcome, recorded, SideEffect::None, &flow.with_rules) {
            wrong.push(format!("{kind} {} {}: recorded {}, {by}", vector.name, flow.id, flow.with_rules));
        }
    }
    let judged = pod.run(|| {
        judge_namespace(
            Desired::Policy(&vector.policy),
            VerdictContext { only: None, whole: &BackendKind::ALL, programs: None },
        )
    })??;
    if (judged.state, judged.holds()) != (RedirectionState::Redirected, true) {
        wrong.push(format!("{kind} {}: {judged:?}", vector.name));
    }
    let unknown = pod.run(|| judge_namespace(Desired::NotKnown, VerdictContext::default()))??;
    if unknown.state != RedirectionState::Redirected {
        wrong.push(format!("{kind} {} without its policy: {unknown:?}", vector.name));
    }
    Ok(wrong)
}

#[test]
fn every_backends_rules_read_back_predict_every_recorded_outcome() -> Result<(), Failure> {
    for kind in BackendKind::ALL {
        let vectors = vectors::all()?;
        let count = vectors.len();
        let wrong = in_parallel(vectors, |vector| walked(&vector, kind));
        let wrong = wrong.into_iter().collect::<Result<Vec<Vec<String>>, Failure>>()?.concat();
        assert!(wrong.is_empty(), "{kind}, {count} policies: {} differ:\n{}", wrong.len(), wrong.join("\n"));
    }
    Ok(())
}
