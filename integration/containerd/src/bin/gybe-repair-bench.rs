//! Measures how long a sandbox that started without Gybe stays unredirected while `gybe repair --watch` runs, and
//! prints the distribution.

use std::collections::VecDeque;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, thread};

use clap::Parser;
use gybe_bench::report::{self, Report, Table, cells};
use gybe_containerd_tests::{Conflist, Generation, HostProcess, Node, Programs, Sandbox, conflist, manifest};

/// Measures the time from the end of a sandbox's ADD, without Gybe in the chain, to its redirection.
#[derive(Debug, Parser)]
#[command(name = "gybe-repair-bench")]
struct Arguments {
    /// The directory of gybe
    #[arg(long, default_value = "dist")]
    programs: PathBuf,
    /// The number of pods, one after another
    #[arg(long, default_value_t = 200)]
    pods: usize,
}

/// The directory of a conflist with Gybe's entry, from which the repair reads its settings. containerd does not use it.
const CONF_DIR: &str = "/run/gybe/repair";
/// The number of sandboxes that the node has at any time.
const SANDBOXES: usize = 50;
/// More than a repair takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often the repair's log is read.
const INTERVAL: Duration = Duration::from_millis(1);

const REDIRECTED: &str = "gybe repair: redirected a running pod";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    report::preface();
    let generation = Generation::V2;
    let host_init = env::current_exe()?.with_file_name("gybe-host-init");
    let programs = Programs { host_init: &host_init, plugins: &[], runc: None };
    let chain = Conflist::reference_plugins(generation);
    let log = env::temp_dir().join(format!("gybe-repair-bench-{}.log", std::process::id()));
    let node = Node::start(programs, generation, &chain, log.clone())?;
    let directory = node.host().path(CONF_DIR);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("10-gybe.conflist"), chain.with_plugin(conflist::gybe()).text(0))?;
    let gybe = arguments.programs.join("gybe").canonicalize()?;
    let mut command = node.host().command(Path::new("/nonexistent"), &gybe);
    command.args(["repair", "--watch", "--conf-dir", CONF_DIR]);
    let repairs = log.with_extension("repair.log");
    let _repair = HostProcess::start(command, REDIRECTED, &repairs)?;
    let mut running = VecDeque::new();
    let mut times = Vec::new();
    for number in 0..SANDBOXES + arguments.pods {
        let sandbox = Sandbox::injected("shop", &format!("cart-{number}"));
        manifest::publish(node.host(), &sandbox, &manifest::injected(&sandbox))?;
        let id = node.cri.run(&sandbox)?;
        let redirected = wait_for(&repairs, &format!("\"shop/cart-{number}\""))?;
        let result = format!("var/lib/cni/results/{}-{id}-eth0", conflist::NETWORK);
        let ended = fs::metadata(node.host().path(result))?.modified()?;
        // The first ones fill the node.
        if number >= SANDBOXES {
            times.push(redirected.duration_since(ended).unwrap_or_default());
        }
        running.push_back(id);
        if running.len() > SANDBOXES {
            running.pop_front().map(|id| node.cri.delete(&id)).transpose()?;
        }
    }
    times.sort();
    report::tables(&report(&times));
    for file in [&repairs, &log] {
        fs::remove_file(file)?;
    }
    Ok(())
}

/// Waits until a repair of this pod is in the log; returns the time.
fn wait_for(log: &Path, pod: &str) -> Result<SystemTime, Box<dyn Error>> {
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        let text = fs::read_to_string(log)?;
        let now = SystemTime::now();
        if text.lines().any(|line| line.contains(REDIRECTED) && line.contains(pod)) {
            return Ok(now);
        }
        thread::sleep(INTERVAL);
    }
    Err(format!("{pod} was not redirected within {TIMEOUT:?}; the log is {}", log.display()).into())
}

fn report(times: &[Duration]) -> Report {
    let at = |percent: usize| times.get((times.len().saturating_sub(1)) * percent / 100);
    let ms = |time: Option<&Duration>| {
        time.map_or_else(String::new, |time| format!("{:.1}", time.as_secs_f64() * 1e3))
    };
    let row = [0, 10, 50, 90, 99, 100].map(|percent| ms(at(percent))).to_vec();
    let title = format!(
        "ms from the cached result of an ADD without Gybe to the rules, {} pods, containerd 2.x, {SANDBOXES} sandboxes on the node",
        times.len()
    );
    let head = cells(["least", "10 %", "median", "90 %", "99 %", "most"]);
    Report { tables: vec![Table { title, head, rows: vec![row] }], targets: Vec::new() }
}
