//! What Gybe adds to the making of a sandbox: two nodes that differ in nothing else, in turn; printed
//! side by side, and a failure when a target is missed.

use std::cell::Cell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use clap::Parser;
use gybe_bench::print;
use gybe_bench::report::{Limit, Report, Table, Target, cells};
use gybe_bench::sample::{Sample, in_turn};
use gybe_containerd_tests::{Agent, Chain, Generation, Node, Programs, Sandbox, chain, manifest};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// Measures what Gybe adds to a sandbox that containerd makes.
#[derive(Debug, Parser)]
#[command(name = "gybe-containerd-bench")]
struct Arguments {
    /// The directory of the programs to be measured, gybe and gybe-cni
    #[arg(long, default_value = "dist")]
    programs: PathBuf,
    /// How many sandboxes each node makes, one after another
    #[arg(long, default_value_t = 101)]
    times: usize,
}

/// A node, and its agent if Gybe is in the chain.
struct Contender {
    name: &'static str,
    node: Node,
    agent: Option<Agent>,
    /// Processor time for all sandboxes' coming up. The kernel counts it in hundredths of a second: for one
    /// of them that is coarse, and over many it is right.
    spent: Cell<Duration>,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    print::preface();
    let mut reports = Vec::new();
    for generation in [Generation::V1_6, Generation::V1_7, Generation::V2] {
        let report = measured(generation, &arguments)?;
        print::tables(&report);
        reports.push(report);
    }
    Ok(print::verdict(&reports))
}

fn measured(generation: Generation, arguments: &Arguments) -> Result<Report, Box<dyn Error>> {
    let contenders = contenders(generation, &arguments.programs)?;
    // The first sandbox finds no bridge, and pages of no program in memory.
    for contender in &contenders {
        contender.measure(0)?;
        contender.spent.set(Duration::ZERO);
    }
    let mut turn = 0;
    let samples = in_turn(arguments.times, &contenders, |contender| {
        turn += 1;
        contender.measure(turn).map(|passed| [passed.as_secs_f64() * 1e3])
    })?;
    let samples: Vec<Sample> = samples.into_iter().flatten().collect();
    #[expect(clippy::cast_precision_loss, reason = "a number of sandboxes is small")]
    let times = arguments.times as f64;
    let spent = contenders.each_ref().map(|contender| contender.spent.get().as_secs_f64() * 1e3 / times);
    Ok(report(generation, &contenders, (&samples, &spent)))
}

fn contenders(generation: Generation, programs: &Path) -> Result<[Contender; 2], Box<dyn Error>> {
    let reference = || Chain::of_reference_plugins(generation);
    let gybe = programs.join("gybe-cni").canonicalize()?;
    let start = |chain: &Chain, plugins: &[&Path], name: &str| -> Result<Node, Box<dyn Error>> {
        let own = env::current_exe()?;
        let programs = Programs { stage: &own.with_file_name("gybe-stage"), plugins };
        let log = env::temp_dir().join(format!("gybe-containerd-bench-{name}.log"));
        Ok(Node::start(programs, generation, chain, log)?)
    };
    let without = start(&reference(), &[], "without")?;
    let with = start(&reference().then(chain::gybe_asking_the_agent()), &[&gybe], "with")?;
    let agent = with.start_agent(&programs.join("gybe").canonicalize()?)?;
    Ok([
        Contender { name: "bridge, host-local, portmap", node: without, agent: None, spent: Cell::default() },
        Contender {
            name: "the same, and gybe-cni with its agent",
            node: with,
            agent: Some(agent),
            spent: Cell::default(),
        },
    ])
}

impl Contender {
    /// Makes a sandbox of a pod in the mesh, and takes it down again; how long the making took.
    fn measure(&self, turn: usize) -> Result<Duration, Box<dyn Error>> {
        let sandbox = Sandbox::injected("shop", &format!("cart-{turn}"));
        manifest::publish(self.node.stage(), &sandbox, &manifest::injected(&sandbox))?;
        let (start, before) = (Instant::now(), self.processor_time()?);
        let id = self.node.cri.run(&sandbox)?;
        let passed = start.elapsed();
        let more = self.processor_time()?.saturating_sub(before);
        self.spent.set(self.spent.get() + more);
        self.node.cri.stop(&id)?;
        self.node.cri.remove(&id)?;
        Ok(passed)
    }

    /// What containerd and the plugins it ran have had so far, and the agent.
    fn processor_time(&self) -> Result<Duration, Box<dyn Error>> {
        let agent = self.agent.as_ref().map(Agent::pid).transpose()?;
        let all = [Some(self.node.containerd().pid()?), agent];
        all.into_iter().flatten().map(processor_time).sum::<Result<Duration, _>>().map_err(Into::into)
    }
}

/// User and system time, of the process and of its children that have ended (proc(5): fields 14 to 17
/// of stat, the name in brackets before them may hold anything).
fn processor_time(pid: Pid) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(4));
    let ticks: u64 = fields.into_iter().flatten().filter_map(|field| field.parse::<u64>().ok()).sum();
    let second = sysconf(SysconfVar::CLK_TCK)?.and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(100);
    Ok(Duration::from_millis(ticks * 1000 / second))
}

fn report(generation: Generation, contenders: &[Contender], (samples, spent): (&[Sample], &[f64])) -> Report {
    let row = |((contender, sample), spent): ((&Contender, &Sample), &f64)| {
        vec![contender.name.to_owned(), sample.to_string(), format!("{spent:.1}")]
    };
    let table = Table {
        title: format!("A sandbox by containerd {generation}, one after another"),
        head: cells([
            "Chain",
            "ms until it is up (quartiles)",
            "ms of processor time, on average: containerd, plugins, agent",
        ]),
        rows: contenders.iter().zip(samples).zip(spent).map(row).collect(),
    };
    let medians: Vec<f64> = samples.iter().map(Sample::median).collect();
    let more = |of: &[f64]| if let [without, with] = of { with - without } else { f64::NAN };
    let target = |what: &str, measured| Target {
        what: format!("containerd {generation}: {what}"),
        measured,
        limit: Limit::AtMost(5.0),
        unit: "ms",
    };
    let targets = vec![
        target("processor time that Gybe adds to a sandbox that comes up", more(spent)),
        target("the median sandbox with Gybe, against that without", more(&medians)),
    ];
    Report { tables: vec![table], targets }
}
