//! Measures what Gybe adds to the start and the deletion of a sandbox: runs two nodes in turn that differ only in Gybe,
//! prints the results, and fails when a target is missed; fewer than 31 sandboxes judge none.

use std::cell::Cell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use clap::Parser;
use gybe_bench::measures::{Sample, in_turn};
use gybe_bench::report::{self, Limit, Report, Table, Target, cells};
use gybe_containerd_tests::{Agent, Conflist, Generation, Node, Programs, Sandbox, conflist, manifest};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// The fewest samples by which a target is judged: the kernel counts processor time in hundredths of a second.
const FEWEST_SAMPLES: usize = 31;

/// Measures what Gybe adds to a sandbox that containerd starts and deletes.
#[derive(Debug, Parser)]
#[command(name = "gybe-containerd-bench")]
struct Arguments {
    /// The directory of gybe and gybe-cni
    #[arg(long, default_value = "dist")]
    programs: PathBuf,
    /// The number of measured sandboxes of each node, one after another; fewer than 31 judge no target
    #[arg(long, default_value_t = 101)]
    times: usize,
    /// The number of other sandboxes that run on each node
    #[arg(long, default_value_t = 100)]
    alive: usize,
}

/// A node, with an agent if Gybe is in the conflist.
struct Contender {
    name: &'static str,
    node: Node,
    agent: Option<Agent>,
    /// Processor time for starting all sandboxes. The kernel counts it in hundredths of a second, which is exact
    /// only as the average of many sandboxes.
    processor_time: Cell<Duration>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    report::preface();
    let mut reports = Vec::new();
    for generation in [Generation::V1_6, Generation::V1_7, Generation::V2] {
        let report = measure(generation, &arguments)?;
        report::tables(&report);
        reports.push(report);
    }
    Ok(report::verdict(&reports))
}

fn measure(generation: Generation, arguments: &Arguments) -> Result<Report, Box<dyn Error>> {
    let contenders = contenders(generation, &arguments.programs)?;
    for contender in &contenders {
        // The agent reads all manifests again after a change, which an agent of a cluster does not.
        for number in 0..=arguments.alive + arguments.times * contenders.len() {
            let sandbox = sandbox(number);
            manifest::publish(contender.node.host(), &sandbox, &manifest::injected(&sandbox))?;
        }
        for number in 0..arguments.alive {
            contender.start_sandbox(number)?;
        }
        // The first sandbox of a node makes the bridge and reads the programs from the disk.
        contender.start_and_delete(arguments.alive)?;
        contender.processor_time.set(Duration::ZERO);
    }
    let mut number = arguments.alive;
    let samples = in_turn(arguments.times, &contenders, |contender| {
        number += 1;
        contender.start_and_delete(number).map(|durations| durations.map(|it| it.as_secs_f64() * 1e3))
    })?;
    #[expect(clippy::cast_precision_loss, reason = "a number of sandboxes is small")]
    let times = arguments.times as f64;
    let processor_times =
        contenders.each_ref().map(|contender| contender.processor_time.get().as_secs_f64() * 1e3 / times);
    let mut report = report(generation, arguments.alive, &contenders, &samples, &processor_times);
    if arguments.times < FEWEST_SAMPLES {
        report.targets.clear();
    }
    Ok(report)
}

fn contenders(generation: Generation, programs: &Path) -> Result<[Contender; 2], Box<dyn Error>> {
    let reference = || Conflist::reference_plugins(generation);
    let gybe = programs.join("gybe-cni").canonicalize()?;
    let start = |conflist: &Conflist, plugins: &[&Path], name: &str| -> Result<Node, Box<dyn Error>> {
        let own = env::current_exe()?;
        let programs = Programs { host_init: &own.with_file_name("gybe-host-init"), plugins, runc: None };
        let log = env::temp_dir().join(format!("gybe-containerd-bench-{name}.log"));
        Ok(Node::start(programs, generation, conflist, log)?)
    };
    let without = start(&reference(), &[], "without")?;
    let with = start(&reference().with_plugin(conflist::gybe_with_agent()), &[&gybe], "with")?;
    let agent = with.start_agent(&programs.join("gybe").canonicalize()?)?;
    Ok([
        Contender {
            name: "bridge, host-local, portmap",
            node: without,
            agent: None,
            processor_time: Cell::default(),
        },
        Contender {
            name: "the same, with gybe-cni and its agent",
            node: with,
            agent: Some(agent),
            processor_time: Cell::default(),
        },
    ])
}

impl Contender {
    /// Starts a sandbox of a meshed pod; returns its id.
    fn start_sandbox(&self, number: usize) -> Result<String, Box<dyn Error>> {
        Ok(self.node.cri.run(&sandbox(number))?)
    }

    /// Starts a sandbox and deletes it; returns how long each takes.
    fn start_and_delete(&self, number: usize) -> Result<[Duration; 2], Box<dyn Error>> {
        let (start, before) = (Instant::now(), self.used_processor_time()?);
        let id = self.start_sandbox(number)?;
        let started = start.elapsed();
        let added = self.used_processor_time()?.saturating_sub(before);
        self.processor_time.set(self.processor_time.get() + added);
        let start = Instant::now();
        self.node.cri.delete(&id)?;
        Ok([started, start.elapsed()])
    }

    /// The processor time that containerd with its plugins and the agent have used so far.
    fn used_processor_time(&self) -> Result<Duration, Box<dyn Error>> {
        let agent = self.agent.as_ref().map(Agent::pid).transpose()?;
        let all = [Some(self.node.containerd().pid()?), agent];
        all.into_iter().flatten().map(processor_time).sum::<Result<Duration, _>>().map_err(Into::into)
    }
}

fn sandbox(number: usize) -> Sandbox {
    Sandbox::injected("shop", &format!("cart-{number}"))
}

/// User and system time of a process and of its ended children: fields 14 to 17 of /proc/PID/stat (proc(5)). The
/// name in brackets before them may contain any character.
fn processor_time(pid: Pid) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(4));
    let ticks: u64 = fields.into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum();
    let second = sysconf(SysconfVar::CLK_TCK)?.and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(100);
    Ok(Duration::from_millis(ticks * 1000 / second))
}

fn report(
    generation: Generation,
    alive: usize,
    contenders: &[Contender],
    samples: &[[Sample; 2]],
    processor_times: &[f64],
) -> Report {
    let row = |((contender, [start, delete]), processor_time): ((&Contender, &[Sample; 2]), &f64)| {
        vec![contender.name.to_owned(), start.to_string(), format!("{processor_time:.1}"), delete.to_string()]
    };
    let table = Table {
        title: format!("A sandbox of containerd {generation}, one after another, beside {alive} others"),
        head: cells([
            "Chain",
            "ms until it runs (quartiles)",
            "ms of processor time, on average: containerd, plugins, agent",
            "ms until it is deleted (quartiles)",
        ]),
        rows: contenders.iter().zip(samples).zip(processor_times).map(row).collect(),
    };
    let medians =
        |of: fn(&[Sample; 2]) -> &Sample| samples.iter().map(of).map(Sample::median).collect::<Vec<f64>>();
    let added = |pair: &[f64]| if let [without, with] = pair { with - without } else { f64::NAN };
    let target = |what: &str, measured| Target {
        what: format!("containerd {generation}: {what}"),
        measured,
        limit: Limit::AtMost(5.0),
        unit: "ms",
    };
    let targets = vec![
        target("processor time that Gybe adds to the start of a sandbox", added(processor_times)),
        target(
            "median start of a sandbox with Gybe, minus that without",
            added(&medians(|[start, _]| start)),
        ),
        target(
            "median deletion of a sandbox with Gybe, minus that without",
            added(&medians(|[_, delete]| delete)),
        ),
    ];
    Report { tables: vec![table], targets }
}
