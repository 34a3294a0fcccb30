//! Namespaces with random statements and objects of other owners: where the verdict is `redirected`,
//! every connection that should be redirected is, also when earlier connections changed a state.
//!
//! `GYBE_SEED=17 GYBE_NAMESPACES=1` tries namespace 17 alone; `make -C integration random-verdicts` takes both.

use crate::RedirectedPod;
use crate::predicted::number;
use crate::statements::{
    NFT_ACTIONS, NFT_OBJECTS, NFT_TESTS, NFT_TRANSLATIONS, Statement, XT_MATCHES, XT_TARGETS,
};
use gybe_integration::failure::Failure;
use gybe_integration::namespace::in_parallel;
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::inspect::verdict::RedirectionState;
use gybe_netfilter::xt::effect::{EXPRESSIONS, MATCHES, OBJECTS, TARGETS};
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::collections::BTreeMap;

/// How many namespaces an ordinary test run tries.
const NAMESPACES: u64 = 30;

const POLICIES: [&str; 6] = [
    "inject-default-dual",
    "inject-default-dual",
    "tproxy-default-dual",
    "dns-all-dual",
    "dns-all-tproxy-dual",
    "drop-invalid",
];

/// The iptables programs print what they refuse.
const QUIET: &str = "exec 2>/dev/null\n";

struct Draw(TestRng);

impl Draw {
    fn of(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.0.next_u64() % u64::try_from(count).unwrap()).unwrap()
    }

    fn from<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// A command of another owner, and the names of the tables that it has.
struct Command {
    line: String,
    names: Vec<&'static str>,
}

fn nft(draw: &mut Draw) -> Vec<Command> {
    let mut commands = vec![Command { line: format!("nft -f - <<'END'{NFT_OBJECTS}END"), names: Vec::new() }];
    let side = rule(draw, "side", NFT_ACTIONS);
    commands.extend((!side.line.contains("jump")).then_some(side));
    for number in 0..=draw.below(2) {
        let (kind, hooks, priorities, actions): (_, &[&str], &[i32], _) = match draw.below(6) {
            0 => (
                "nat",
                &["prerouting", "output", "postrouting", "input"],
                &[-120, -99, 10, 110],
                NFT_TRANSLATIONS,
            ),
            1 => ("route", &["output"], &[-310, -150, -50, 50], NFT_ACTIONS),
            2 => ("filter", &["prerouting", "output"], &[-310, -290, -250], NFT_ACTIONS),
            _ => (
                "filter",
                &["prerouting", "input", "output", "postrouting"],
                &[-160, -140, -50, 0, 160],
                NFT_ACTIONS,
            ),
        };
        let (chain, hook, priority) = (format!("theirs{number}"), draw.from(hooks), draw.from(priorities));
        let line =
            format!("nft 'add chain inet other {chain} {{ type {kind} hook {hook} priority {priority}; }}'");
        commands.push(Command { line, names: Vec::new() });
        for _ in 0..=draw.below(3) {
            commands.push(rule(draw, &chain, actions));
        }
    }
    commands
}

fn rule(draw: &mut Draw, chain: &str, actions: &[Statement]) -> Command {
    let tests = [draw.from(NFT_TESTS), draw.from(NFT_TESTS)];
    let action = draw.from(actions);
    let statements: Vec<Statement> = match draw.below(3) {
        0 => vec![tests[0], tests[1], action],
        _ => vec![tests[0], action],
    };
    let words: Vec<&str> = statements.iter().map(|one| one.1).collect();
    let line = format!("nft 'add rule inet other {chain} {}'", words.join(" "));
    Command { line, names: statements.iter().map(|one| one.0).collect() }
}

fn iptables(draw: &mut Draw) -> Vec<Command> {
    let tools = draw.from(&[
        ["iptables-legacy", "ip6tables-legacy"],
        ["iptables-nft", "ip6tables-nft"],
        ["iptables-legacy", "ip6tables-nft"],
    ]);
    let rule = |draw: &mut Draw| {
        let (matches, (target, table, action)) = (draw.from(XT_MATCHES), draw.from(XT_TARGETS));
        let chain = draw.from(match table {
            "raw" => &["PREROUTING", "OUTPUT"][..],
            "filter" => &["INPUT", "OUTPUT"][..],
            "nat" => &["PREROUTING", "OUTPUT", "POSTROUTING"][..],
            _ => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"][..],
        });
        let how = if draw.is_one_in(2) { "-A" } else { "-I" };
        let tool = draw.from(&tools);
        let line = format!("{tool} -t {table} {how} {chain} {} -j {action}", matches.1);
        Command { line, names: vec![matches.0, target] }
    };
    (0..=draw.below(3)).map(|_| rule(draw)).collect()
}

/// The commands of the namespace of this number.
fn commands(draw: &mut Draw) -> Vec<Command> {
    let mut commands = Vec::new();
    let kind = draw.below(4);
    if kind != 0 {
        commands.extend(nft(draw));
    }
    if kind != 1 {
        commands.extend(iptables(draw));
    }
    commands
}

/// What one namespace showed.
struct Tried {
    names: Vec<&'static str>,
    state: RedirectionState,
    /// The first reason.
    reason: String,
    connections: usize,
    wrong: Vec<String>,
}

fn tried(seed: u64) -> Result<Tried, Failure> {
    let draw = &mut Draw::of(seed);
    let (policy, kind) = (
        draw.from(&POLICIES),
        if draw.is_one_in(4) { draw.from(&BackendKind::ALL) } else { BackendKind::Nft },
    );
    let pod = RedirectedPod::of(policy, kind)?;
    let commands = commands(draw);
    let numbered = commands.iter().enumerate();
    let script: String =
        numbered.map(|(number, one)| format!("if {}\nthen echo {number}; fi\n", one.line)).collect();
    let accepted = pod.output_as_other_owner(&format!("{QUIET}{script}"))?;
    let accepted: Vec<usize> = accepted.lines().filter_map(|line| line.parse().ok()).collect();
    let commands: Vec<&Command> = accepted.iter().filter_map(|number| commands.get(*number)).collect();
    let names = commands.iter().flat_map(|command| command.names.iter().copied()).collect();
    let (live, verdict) = (pod.live()?, pod.verdict()?);
    let mut found = Tried {
        names,
        state: verdict.state,
        reason: verdict.reasons.first().cloned().unwrap_or_default(),
        connections: 0,
        wrong: Vec::new(),
    };
    if verdict.state == RedirectionState::Redirected {
        // Twice: the first connections may change a state that others meet.
        for round in 1..=2 {
            for flow in pod.flows.iter().chain([&pod.query_v6]) {
                let Some(missed) = pod.is_missed(&live, flow)? else { continue };
                found.connections += 1;
                found.wrong.extend(missed.map(|sentence| format!("round {round}: {sentence}")));
            }
        }
    }
    if !found.wrong.is_empty() {
        let lines: Vec<&str> = commands.iter().map(|command| command.line.as_str()).collect();
        let about = format!("GYBE_SEED={seed} {policy} {kind}: {verdict:?}\n{}", lines.join("\n"));
        found.wrong.insert(0, about);
    }
    Ok(found)
}

#[test]
fn of_random_namespaces_none_is_called_redirected_that_is_not() -> Result<(), Failure> {
    let (first, count) = (number("GYBE_SEED", 1), number("GYBE_NAMESPACES", NAMESPACES));
    let found = in_parallel((first..first + count).collect(), tried);
    let found = found.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    let share = |state| found.iter().filter(|one| one.state == state).count();
    let connections: usize = found.iter().map(|one| one.connections).sum();
    let mut drawn: BTreeMap<&str, usize> = BTreeMap::new();
    for name in found.iter().flat_map(|one| &one.names) {
        *drawn.entry(name).or_default() += 1;
    }
    let (redirected, unknown) = (share(RedirectionState::Redirected), share(RedirectionState::Unknown));
    let wrong: Vec<String> =
        found.iter().map(|one| one.wrong.join("\n")).filter(|one| !one.is_empty()).collect();
    let all = [EXPRESSIONS, OBJECTS, MATCHES, TARGETS].into_iter().flatten().flat_map(|row| row.names);
    let never: Vec<&str> = all.map(|name| name.0).filter(|name| !drawn.contains_key(name)).collect();
    eprintln!(
        "namespaces {first} to {}: {redirected} redirected with {connections} connections, {unknown} unknown, {} not \
         redirected; {} wrong",
        first + count - 1,
        share(RedirectionState::NotRedirected),
        wrong.len()
    );
    for one in found.iter().filter(|one| one.state == RedirectionState::Unknown) {
        eprintln!("unknown: {}", one.reason);
    }
    eprintln!("drawn: {drawn:?}\nnever drawn: {never:?}");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(
        redirected * 10 > found.len(),
        "{redirected} of {} redirected: the rules do too much",
        found.len()
    );
    Ok(())
}
