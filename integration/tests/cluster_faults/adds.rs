//! Batches of ADDs, each in a plugin process. A meshed pod has a namespace for itself during its ADD; the test inspects
//! and empties it afterwards, and uses it again, because creating and freeing thousands would keep the kernel busy and
//! delay every other call.

use crate::background::Times;
use crate::node::{TestNode, known, programs};
use crate::row::{Added, Row};
use crate::row::{Call, Kind};
use gybe_demo::add::RecordedAdd;
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::parallel::in_parallel_at_most;
use gybe_integration::programs::{ours, run};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{self, Redirection};
use gybe_netfilter::nft::Nft;
use serde_json::Value;
use std::io::{Write, pipe};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

/// Concurrent ADDs that two processors run without delaying each other.
const FEW: usize = 4;

/// Concurrent ADDs if some of them wait for an answer.
const SOME: usize = 8;

/// Concurrent ADDs if all wait: as many as a node may start at once, and more than the agent answers at a time.
const MANY: usize = 100;

/// The expected redirection of a meshed pod.
static REDIRECTION: LazyLock<Redirection> = LazyLock::new(|| {
    let addresses = ["10.244.0.10", "fd00:10::10"].map(|address| address.parse().unwrap());
    Redirection::of(&RecordedAdd::recorded().unwrap().policy(&addresses).unwrap())
});

/// Makes `count` ADDs of a kind; `waits`: each is expected to wait for the agent or the API server.
pub(crate) fn make_adds(
    node: &TestNode,
    (fault, kind): (&'static str, Kind),
    count: usize,
    waits: bool,
) -> Row {
    let calls = (0..count).map(|number| (kind, number)).collect();
    Row::of(fault, kind, batch(node, calls, if waits { MANY } else { FEW }))
}

/// Makes `count` ADDs of each kind in turn, and more until the background event has happened the given number of times.
pub(crate) fn adds_until(
    node: &TestNode,
    (fault, kinds): (&'static str, &[Kind]),
    count: usize,
    (times, often): (&Times, usize),
) -> Vec<Row> {
    let mut added = vec![Vec::new(); kinds.len()];
    let each: Vec<_> =
        (0..count.min(20)).flat_map(|number| kinds.iter().map(move |kind| (*kind, number))).collect();
    while added[0].len() < count || times.load(Ordering::Relaxed) < often {
        for (directory, one) in batch(node, each.clone(), SOME).into_iter().enumerate() {
            added[directory % kinds.len()].push(one);
        }
    }
    kinds.iter().zip(added).map(|(kind, added)| Row::of(fault, *kind, added)).collect()
}

/// Makes these ADDs, at most `at_a_time` concurrently. A call's number selects one of the pods in the agent's cache.
fn batch(node: &TestNode, calls: Vec<(Kind, usize)>, at_a_time: usize) -> Vec<Added> {
    // No rules are written for unmeshed pods, so they share one namespace.
    let shared = pod();
    let added = in_parallel_at_most(at_a_time, calls, |(kind, number)| {
        let name = if kind == Kind::Known { known(number) } else { fresh_name() };
        let call = kind.call(node, &name);
        let added = if kind.is_meshed() { meshed(&call) } else { add(&call, &shared) };
        if kind == Kind::New {
            node.server.delete_pod("shop", &name);
        }
        added
    });
    assert!(is_untouched(&shared), "the namespace of unmeshed pods was changed");
    added
}

fn fresh_name() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("pod-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Makes the ADD of a meshed pod; asserts that it is redirected completely, or refused without any change.
fn meshed(call: &Call) -> Added {
    static FREE: Mutex<Vec<Namespace>> = Mutex::new(Vec::new());
    let free = FREE.lock().unwrap().pop();
    let pod = free.unwrap_or_else(pod);
    let added = add(call, &pod);
    if added.refused.is_none() {
        let differences =
            pod.run(|| REDIRECTION.differences(&Nft, &Presence::look().unwrap())).unwrap().unwrap();
        assert!(differences.is_empty(), "passed and not redirected: {differences:?}");
        pod.run(|| redirection::remove(&Nft)).unwrap().unwrap();
    }
    assert!(is_untouched(&pod), "something is left: {added:?}");
    FREE.lock().unwrap().push(pod);
    added
}

fn is_untouched(pod: &Namespace) -> bool {
    pod.run(|| Nft.inspect()).unwrap().unwrap().is_empty()
}

/// Creates a namespace with the example's addresses, of both families.
fn pod() -> Namespace {
    let pod = Namespace::new().unwrap();
    let lines = "address add 10.244.0.10/32 dev lo\naddress add fd00:10::10/128 dev lo nodad\n";
    let added = pod.run(|| run("ip", &["-batch", "-"], lines)).unwrap().unwrap();
    assert_eq!(added.code, Some(0), "{added:?}");
    pod
}

/// Runs the plugin and measures the time from the start to the end of its process.
#[expect(clippy::disallowed_methods, reason = "the test measures the plugin's process")]
fn add(call: &Call, pod: &Namespace) -> Added {
    static PLUGIN: LazyLock<std::path::PathBuf> = LazyLock::new(|| programs("gybe-cni"));
    let (stdin, mut writer) = pipe().unwrap();
    writer.write_all(call.stdin.to_string().as_bytes()).unwrap();
    drop(writer);
    let mut command = Command::new(&*PLUGIN);
    command.env_clear().envs(call.env.iter().cloned()).env("CNI_NETNS", pod.path());
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begun = Instant::now();
    let output = command.output().unwrap();
    let took = begun.elapsed();
    let answer: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"));
    if output.status.success() {
        assert_eq!(answer["ips"], call.stdin["prevResult"]["ips"]);
        return Added { took, refused: None };
    }
    Added {
        took,
        refused: Some((answer["code"].as_u64(), answer["msg"].as_str().unwrap_or_default().to_owned())),
    }
}

/// Asserts what `gybe inspect` and `gybe verify` report for one pod of each kind.
pub(crate) fn assert_operators_view(node: &TestNode) {
    let manifest = node.directory.manifest().display().to_string();
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        let (pod, name) = (pod(), if kind == Kind::Known { known(0) } else { format!("new-{number}") });
        assert_eq!(add(&kind.call(node, &name), &pod).refused, None, "{kind:?}");
        let netns = pod.path().display().to_string();
        let inspected = ours("gybe", &["inspect", "--netns", &netns], "").unwrap();
        let verified = ours("gybe", &["verify", "--netns", &netns, "--pod", &manifest], "").unwrap();
        let nothing = inspected.out.starts_with("no rules of Gybe");
        assert_eq!(
            (nothing, verified.code),
            (!kind.is_meshed(), Some(i32::from(!kind.is_meshed()))),
            "{inspected:?}"
        );
    }
}
