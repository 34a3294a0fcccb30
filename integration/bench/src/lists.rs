//! Long lists: the time to apply them, from the policy to the kernel's acknowledgement, and the kernel's memory for
//! them.

use crate::measures::{Sample, in_turn, processor_time};
use crate::policies::{default, networks, scattered_ports};
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::namespace::in_parallel;
use gybe_netfilter::apply::redirection::Redirection;
use gybe_netfilter::model::policy::{Inbound, RedirectPolicy};
use gybe_netfilter::nft::Nft;
use std::time::Instant;

/// Numbers of entries in a list.
const COUNTS: [usize; 5] = [1, 100, 1000, 10_000, 45_000];

/// Entries that are written, in as many namespaces as needed, to measure the kernel's memory.
const MEMORY_ENTRIES: usize = 45_000;

/// The list that is long.
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

/// # Errors
/// When a list cannot be applied.
pub fn measure(rounds: usize) -> Result<Report, Failure> {
    let mut cases = Vec::new();
    for list in [List::InboundPorts, List::OutboundPorts, List::Networks] {
        for count in COUNTS {
            cases.push(Case { list, count, policy: list.policy(count)? });
        }
    }
    // Kept until the end: freed memory would be in a later measurement.
    let mut namespaces = Vec::new();
    let times = in_turn(rounds, &cases, |case| {
        let namespace = Namespace::new()?;
        let times = apply(&namespace, &case.policy)?;
        namespaces.push(namespace);
        Ok::<_, Failure>(times)
    })?;
    let memory = in_turn(rounds.min(3), &cases, |case| Ok::<_, Failure>([memory(case, &mut namespaces)?]))?;
    Ok(report(&cases, &times, &memory))
}

/// Applies a policy; returns milliseconds of elapsed time and of processor time.
fn apply(namespace: &Namespace, policy: &RedirectPolicy) -> Result<[f64; 2], Failure> {
    namespace.run(|| {
        let (start, before) = (Instant::now(), processor_time()?);
        Redirection::of(policy).apply(&Nft)?;
        let (elapsed, used) = (start.elapsed(), processor_time()?.saturating_sub(before));
        Ok([elapsed, used].map(|time| time.as_secs_f64() * 1e3))
    })?
}

/// Measures the kernel's memory for one namespace's rules, in KiB.
fn memory(case: &Case, used: &mut Vec<Namespace>) -> Result<f64, Failure> {
    let copies = (MEMORY_ENTRIES / case.count).clamp(1, 100);
    let created = in_parallel((0..copies).collect(), |_: usize| Namespace::new());
    let namespaces = created.into_iter().collect::<Result<Vec<_>, _>>()?;
    let before = kernel_memory()?;
    for namespace in &namespaces {
        apply(namespace, &case.policy)?;
    }
    let added = kernel_memory()? - before;
    used.extend(namespaces);
    Ok(added / f64::from(u32::try_from(copies)?))
}

/// Returns the machine's kernel memory that cannot be reclaimed, in KiB.
fn kernel_memory() -> Result<f64, Failure> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let names = ["SUnreclaim:", "VmallocUsed:", "Percpu:"];
    let fields = meminfo.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let values = fields.filter_map(|fields| match fields.as_slice() {
        [name, value, ..] if names.contains(name) => value.parse::<f64>().ok(),
        _ => None,
    });
    Ok(values.sum())
}

fn report(cases: &[Case], times: &[[Sample; 2]], memory: &[[Sample; 1]]) -> Report {
    let row = |((case, [elapsed, processor_time]), [memory]): ((&Case, &[Sample; 2]), &[Sample; 1])| {
        let (elapsed, processor_time) = (elapsed.to_string(), processor_time.to_string());
        vec![case.list.name().into(), case.count.to_string(), elapsed, processor_time, memory.to_string()]
    };
    let table = Table {
        title: "Applying long lists: the default policy with one of them".into(),
        head: cells(["List", "entries", "ms (quartiles)", "ms of processor time", "kernel memory, KiB"]),
        rows: cases.iter().zip(times).zip(memory).map(row).collect(),
    };
    let longest = cases.iter().zip(times).filter(|(case, _)| Some(&case.count) == COUNTS.last());
    let target = |(case, [elapsed, _]): (&Case, &[Sample; 2])| Target {
        what: format!("{} {} applied", case.count, case.list.name()),
        measured: elapsed.median(),
        limit: Limit::AtMost(50.0),
        unit: "ms",
    };
    // Only lists of ports have a target.
    let targets = longest.filter(|(case, _)| case.list != List::Networks).map(target).collect();
    Report { tables: vec![table], targets }
}
