//! Long lists: how long the engine takes to write them, from the policy to the kernel's answer, and
//! what memory the kernel keeps for them.

use crate::policies::{default, networks, scattered_ports};
use crate::report::{Limit, Report, Table, Target, cells};
use crate::sample::{Sample, in_turn, processor_time};
use gybe_installer::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::parallel::in_parallel;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::policy::{Inbound, RedirectPolicy};
use gybe_netfilter::redirection::Redirection;
use std::time::Instant;

/// Entries of a list, as many as an operator writes.
const COUNTS: [usize; 5] = [1, 100, 1000, 10_000, 45_000];

/// So many entries are written for the kernel's memory to be seen, in as many namespaces as it takes.
const SEEN: usize = 45_000;

/// Which list is long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    InboundPorts,
    OutboundPorts,
    Networks,
}

impl List {
    fn name(self) -> &'static str {
        match self {
            Self::InboundPorts => "excluded inbound ports",
            Self::OutboundPorts => "excluded outbound ports",
            Self::Networks => "excluded networks",
        }
    }

    fn policy(self, count: usize) -> Result<RedirectPolicy, Failure> {
        let mut policy = default()?;
        match self {
            Self::InboundPorts => policy.inbound = Inbound::AllBut(scattered_ports(count)),
            Self::OutboundPorts => policy.outbound.excluded_ports = scattered_ports(count),
            Self::Networks => policy.outbound.excluded_to = networks(count),
        }
        Ok(policy)
    }
}

struct Case {
    list: List,
    count: usize,
    policy: RedirectPolicy,
}

/// Measures each list that often.
///
/// # Errors
/// When a list cannot be written.
pub fn measure(rounds: usize) -> Result<Report, Failure> {
    let mut cases = Vec::new();
    for list in [List::InboundPorts, List::OutboundPorts, List::Networks] {
        for count in COUNTS {
            cases.push(Case { list, count, policy: list.policy(count)? });
        }
    }
    // Alive until all is measured: what the kernel gives back would be in somebody's figures.
    let mut alive = Vec::new();
    let times = in_turn(rounds, &cases, |case| {
        let namespace = Namespace::new()?;
        let took = apply(&namespace, &case.policy)?;
        alive.push(namespace);
        Ok::<_, Failure>(took)
    })?;
    let memory = in_turn(rounds.min(3), &cases, |case| Ok::<_, Failure>([memory(case, &mut alive)?]))?;
    Ok(report(&cases, &times, &memory))
}

/// From the policy to the kernel's answer: milliseconds passed, and milliseconds of processor time.
fn apply(namespace: &Namespace, policy: &RedirectPolicy) -> Result<[f64; 2], Failure> {
    namespace.run(|| {
        let (begun, spent) = (Instant::now(), processor_time()?);
        Redirection::of(policy).apply(&Nft)?;
        let (passed, spent) = (begun.elapsed(), processor_time()?.saturating_sub(spent));
        Ok([passed, spent].map(|time| time.as_secs_f64() * 1e3))
    })?
}

/// What the kernel keeps for one namespace's rules, in KiB.
fn memory(case: &Case, alive: &mut Vec<Namespace>) -> Result<f64, Failure> {
    let copies = (SEEN / case.count).clamp(1, 100);
    let made = in_parallel((0..copies).collect(), |_: usize| Namespace::new());
    let namespaces = made.into_iter().collect::<Result<Vec<_>, _>>()?;
    let before = kernel_memory()?;
    for namespace in &namespaces {
        apply(namespace, &case.policy)?;
    }
    let kept = kernel_memory()? - before;
    alive.extend(namespaces);
    Ok(kept / f64::from(u32::try_from(copies)?))
}

/// What the kernel holds for itself and cannot give back, in KiB: the whole machine's.
fn kernel_memory() -> Result<f64, Failure> {
    let told = std::fs::read_to_string("/proc/meminfo")?;
    let counted = ["SUnreclaim:", "VmallocUsed:", "Percpu:"];
    let fields = told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let values = fields.filter_map(|fields| match fields.as_slice() {
        [name, value, ..] if counted.contains(name) => value.parse::<f64>().ok(),
        _ => None,
    });
    Ok(values.sum())
}

fn report(cases: &[Case], times: &[[Sample; 2]], memory: &[[Sample; 1]]) -> Report {
    let row = |((case, [passed, spent]), [memory]): ((&Case, &[Sample; 2]), &[Sample; 1])| {
        let (passed, spent) = (passed.to_string(), spent.to_string());
        vec![case.list.name().into(), case.count.to_string(), passed, spent, memory.to_string()]
    };
    let table = Table {
        title: "Writing long lists: the default policy with one of them".into(),
        head: cells(["List", "entries", "ms (quartiles)", "ms of processor time", "kernel memory, KiB"]),
        rows: cases.iter().zip(times).zip(memory).map(row).collect(),
    };
    let longest = cases.iter().zip(times).filter(|(case, _)| Some(&case.count) == COUNTS.last());
    let target = |(case, [passed, _]): (&Case, &[Sample; 2])| Target {
        what: format!("{} {} applied by the engine", case.count, case.list.name()),
        measured: passed.median(),
        limit: Limit::AtMost(50.0),
        unit: "ms",
    };
    // The promise is about ports.
    let targets = longest.filter(|(case, _)| case.list != List::Networks).map(target).collect();
    Report { tables: vec![table], targets }
}
