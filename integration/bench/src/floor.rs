//! Compares calls of the plugin with the least that they can cost (`floors/`): an ADD with a program without C library
//! that makes the same system calls and nothing else, an unmeshed ADD and a DEL with one that only ends. One call and many
//! at once, of a runtime with few and with many threads.

use crate::concurrent_adds::run_concurrently;
use crate::measures::{Sample, children_processor_time, in_turn};
use crate::pod::{self, CniCall, FACTS};
use crate::policies;
use crate::programs::{Contender, built_program};
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_integration::failure::Failure;
use gybe_netfilter::compile::compile;
use gybe_netfilter::nft::{Batch, Start};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, thread};

/// Idle threads of the runtime, whose role this process has.
const THREADS: [usize; 3] = [0, 20, 100];
/// Calls at once.
const SIZES: [usize; 3] = [1, 50, 250];

/// A call beside its floor.
struct Pair {
    plugin: Contender,
    floor: Contender,
    /// The limit of their ratio.
    at_most: f64,
}

/// Writes the nftables batch of the default policy, which `floors/add.rs` contains.
///
/// # Errors
/// When the file cannot be written.
pub fn write_batch(path: &Path) -> Result<(), Failure> {
    Ok(fs::write(path, Batch::apply(&compile(&policies::default()?), Start::Fresh)?.bytes())?)
}

/// # Errors
/// When a program fails, or the connections of a pod do not end at the proxy.
pub fn measure(times: usize, rounds: usize) -> Result<Report, Failure> {
    let call = CniCall::new()?;
    let _agent = pod::start_agent(&call)?;
    let pairs = pairs(&call)?;
    for pair in pairs.iter().take(2) {
        assert_redirects(&pair.floor)?;
        assert_redirects(&pair.plugin)?;
    }
    let mut report = Report { tables: Vec::new(), targets: Vec::new() };
    for size in SIZES {
        let rounds = if size == 1 { times } else { rounds };
        let mut rows = Vec::new();
        let mut without_threads = Vec::new();
        for threads in THREADS {
            let contenders: Vec<_> = pairs.iter().flat_map(|pair| [&pair.floor, &pair.plugin]).collect();
            let samples = with_idle_threads(threads, || {
                in_turn(rounds, &contenders, |contender| measure_one(contender, size))
            })?;
            for (index, (pair, measured)) in pairs.iter().zip(samples.chunks(2)).enumerate() {
                let [[floor_wall, floor_used], [wall, used]] = measured else { continue };
                let ratios = [wall.median() / floor_wall.median(), used.median() / floor_used.median()];
                let name = pair.plugin.name;
                rows.push(row(threads, name, [floor_wall, wall, floor_used, used], ratios));
                for (ratio, what) in ratios.into_iter().zip(["", ", processor time"]) {
                    report.targets.push(target(
                        format!("{name}{what}, {size} at once, {threads} idle threads, against its floor"),
                        ratio,
                        pair.at_most,
                    ));
                }
                match without_threads.get(index) {
                    None => without_threads.push(used.median()),
                    Some(few) if Some(&threads) == THREADS.last() => report.targets.push(target(
                        format!(
                            "{name}, processor time, {size} at once, {threads} idle threads against none"
                        ),
                        used.median() / few,
                        1.05,
                    )),
                    Some(_) => {}
                }
            }
        }
        report.tables.push(Table {
            title: format!("{size} at once beside the floor, median of {rounds}, ms"),
            head: cells([
                "Threads",
                "Call",
                "floor",
                "gybe-cni",
                "x",
                "floor, processor",
                "gybe-cni, processor",
                "x",
            ]),
            rows,
        });
    }
    Ok(report)
}

fn pairs(call: &CniCall) -> Result<[Pair; 4], Failure> {
    let with_agent = call.clone().with_agent(Path::new(FACTS));
    let query = r#"{"version":1,"namespace":"shop","name":"cart-0","deadline_ms":1900}"#;
    let floor_call =
        call.clone().with_variable("FLOOR_AGENT", FACTS).with_variable("FLOOR_QUERY", &format!("{query}\n"));
    let floor_add = |call| Ok::<_, Failure>(Contender::cni("floor", built_program("gybe-floor-add")?, call));
    let pair = |name, call: &CniCall, floor, at_most| {
        Ok::<_, Failure>(Pair { plugin: Contender::gybe(name, call)?, floor, at_most })
    };
    Ok([
        pair("ADD", call, floor_add(call)?, 1.25)?,
        pair("ADD through the agent", &with_agent, floor_add(&floor_call)?, 1.3)?,
        pair("ADD of an unmeshed pod", &call.clone().without_annotations(), Contender::floor(call)?, 1.3)?,
        pair("DEL", &call.clone().with_command("DEL"), Contender::floor(call)?, 1.2)?,
    ])
}

/// Returns milliseconds from the first start to the last end, and of processor time.
fn measure_one(contender: &Contender, size: usize) -> Result<[f64; 2], Failure> {
    let pods = pod::new_pods(size)?;
    let before = children_processor_time()?;
    let elapsed = run_concurrently(contender, &pods)?;
    Ok([elapsed, children_processor_time()?.saturating_sub(before).as_secs_f64() * 1e3])
}

/// Runs `work` while this process has that many further threads.
fn with_idle_threads<T>(count: usize, work: impl FnOnce() -> T) -> T {
    let end = Mutex::new(());
    thread::scope(|scope| {
        // Released also when `work` panics.
        let _held = end.lock();
        for _ in 0..count {
            scope.spawn(|| drop(end.lock()));
        }
        work()
    })
}

/// The proxy of either family, and a destination that is redirected to it.
const DESTINATIONS: [(&str, &str); 2] =
    [("127.0.0.1:15001", "10.244.0.99:80"), ("[::1]:15001", "[fd00:10::99]:80")];

/// Asserts that connections of either family end at the proxy after this call, and not before it.
fn assert_redirects(contender: &Contender) -> Result<(), Failure> {
    let pods = pod::new_pods(1)?;
    let Some(pod) = pods.first() else { return Err(Failure::new("no namespace")) };
    for (proxy, other) in DESTINATIONS {
        let connects = || pod.namespace.run(|| reaches_proxy(proxy.parse()?, other.parse()?))?;
        if connects()? {
            return Err(Failure::new(format!("{other} leads to the proxy without rules")));
        }
    }
    contender.run(pod, || ())?;
    for (proxy, other) in DESTINATIONS {
        if !pod.namespace.run(|| reaches_proxy(proxy.parse()?, other.parse()?))?? {
            return Err(Failure::new(format!("{}: {other} does not lead to the proxy", contender.name)));
        }
    }
    crate::add::assert_default_rules(pod)
}

fn reaches_proxy(proxy: SocketAddr, other: SocketAddr) -> Result<bool, Failure> {
    let listener = TcpListener::bind(proxy)?;
    listener.set_nonblocking(true)?;
    // Without a redirection there is no such host.
    let _connected = TcpStream::connect_timeout(&other, Duration::from_millis(300));
    match listener.accept() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn target(what: String, measured: f64, at_most: f64) -> Target {
    Target { what, measured, limit: Limit::AtMost(at_most), unit: "x" }
}

fn row(threads: usize, name: &str, measured: [&Sample; 4], ratios: [f64; 2]) -> Vec<String> {
    let [floor_wall, wall, floor_used, used] = measured.map(ToString::to_string);
    let [by_wall, by_used] = ratios.map(|ratio| format!("{ratio:.2}"));
    vec![threads.to_string(), name.to_owned(), floor_wall, wall, by_wall, floor_used, used, by_used]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;
    use std::sync::mpsc::channel;

    #[test]
    fn idle_threads_end_when_the_work_panics() {
        let (sender, ended) = channel();
        thread::spawn(move || {
            let result = catch_unwind(|| with_idle_threads(3, || panic!("the work fails")));
            sender.send(result.is_err())
        });
        assert_eq!(ended.recv_timeout(Duration::from_secs(10)), Ok(true));
    }
}
