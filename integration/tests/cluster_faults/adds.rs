//! ADDs of a kind of pod while a fault lasts, the row of the table that they fill, and what an operator sees
//! afterwards.

use crate::node::{TestNode, Times, known, meshed_pod, uid};
use gybe_demo::add::RecordedAdd;
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::namespace::in_parallel_at_most;
use gybe_integration::programs::{ours, path_of_ours, run};
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{self, Redirection};
use gybe_netfilter::nft::Nft;
use gybe_test_support::{PATIENCE, with_slowdown};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Write, pipe};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

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
    let (at_a_time, deadline) = if waits { (MANY, REFUSED_AFTER) } else { (FEW, PATIENCE) };
    Row::of(fault, kind, batch(node, calls, at_a_time, deadline))
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
        for (directory, one) in batch(node, each.clone(), SOME, PATIENCE).into_iter().enumerate() {
            added[directory % kinds.len()].push(one);
        }
    }
    kinds.iter().zip(added).map(|(kind, added)| Row::of(fault, *kind, added)).collect()
}

/// Makes these ADDs, at most `at_a_time` concurrently. A call's number selects one of the pods in the agent's cache.
fn batch(node: &TestNode, calls: Vec<(Kind, usize)>, at_a_time: usize, deadline: Duration) -> Vec<Added> {
    // No rules are written for unmeshed pods, so they share one namespace.
    let shared = pod();
    let make = |(kind, number): (Kind, usize)| {
        let name = if kind == Kind::Known { known(number) } else { fresh_name() };
        let call = kind.call(node, &name, deadline);
        let added = if kind.is_meshed() { meshed(&call) } else { add(&call, &shared) };
        if kind == Kind::New {
            node.server.delete_pod("shop", &name);
        }
        added
    };
    let (mut added, slowdown) = with_slowdown(|| in_parallel_at_most(at_a_time, calls, make));
    added.iter_mut().for_each(|one| one.slowdown = slowdown);
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
    static PLUGIN: LazyLock<std::path::PathBuf> = LazyLock::new(|| path_of_ours("gybe-cni").unwrap());
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
        return Added { took, slowdown: 1.0, refused: None };
    }
    Added {
        took,
        slowdown: 1.0,
        refused: Some((answer["code"].as_u64(), answer["msg"].as_str().unwrap_or_default().to_owned())),
    }
}

/// Asserts what `gybe inspect` and `gybe verify` report for one pod of each kind.
pub(crate) fn assert_operators_view(node: &TestNode) {
    let manifest = node.directory.manifest().display().to_string();
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        let (pod, name) = (pod(), if kind == Kind::Known { known(0) } else { format!("new-{number}") });
        assert_eq!(add(&kind.call(node, &name, PATIENCE), &pod).refused, None, "{kind:?}");
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

/// `facts.deadline_ms` of an ADD that is expected to be refused. Shorter than the default, because most faults last
/// until the deadline.
const REFUSED_AFTER: Duration = Duration::from_secs(2);

/// How long an ADD may wait, and what process start and writing the rules add, on a machine without other work.
const BUDGET: Duration = Duration::from_secs(2);
const SLACK: Duration = Duration::from_secs(1);

/// An ADD that takes longer hangs, on a machine without other work.
const HANGS: Duration = Duration::from_secs(10);

/// One ADD.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) took: Duration,
    /// How many times as long as alone a thread computed meanwhile.
    slowdown: f64,
    /// The CNI error's code and message, if the ADD was refused.
    pub(crate) refused: Option<(Option<u64>, String)>,
}

pub(crate) struct Row {
    fault: &'static str,
    kind: Kind,
    added: Vec<Added>,
}

impl Row {
    /// Creates a row and prints it.
    pub(crate) fn of(fault: &'static str, kind: Kind, added: Vec<Added>) -> Self {
        let row = Self { fault, kind, added };
        row.print();
        row
    }

    fn print(&self) {
        let [half, most, all] = [50, 99, 100].map(|percent| self.within(percent).as_secs_f64() * 1e3);
        let (fault, kind, failed, count) = (self.fault, self.kind.words(), self.failed(), self.added.len());
        println!(
            "{fault:<50} | {kind:<25} | {failed:>4} of {count:>4} | {half:>7.1} | {most:>7.1} | {all:>7.1}"
        );
        for message in self.refusals() {
            println!("{:<50} | {message}", "");
        }
    }

    /// Returns the distinct messages of refused ADDs.
    fn refusals(&self) -> BTreeSet<&str> {
        let refused = self.added.iter().filter_map(|added| added.refused.as_ref());
        refused.map(|(_, message)| message.as_str()).collect()
    }

    fn failed(&self) -> usize {
        self.added.iter().filter(|added| added.refused.is_some()).count()
    }

    /// Returns the time within which this percentage of the ADDs ended.
    fn within(&self, percent: usize) -> Duration {
        let mut times: Vec<Duration> = self.added.iter().map(|added| added.took).collect();
        times.sort_unstable();
        times[(times.len() * percent).div_ceil(100).saturating_sub(1)]
    }

    /// Asserts that no ADD was refused or late.
    pub(crate) fn assert_none_fails(&self) {
        self.assert_none_late();
        let refused = self.added.iter().find(|added| added.refused.is_some());
        assert!(refused.is_none(), "{}, {}: {refused:?}", self.fault, self.kind.words());
    }

    /// Asserts that all ADDs were refused, each with a message that names the cause and the remedy.
    pub(crate) fn assert_all_refused(&self) {
        self.assert_refusals_are_clear();
        assert_eq!(self.failed(), self.added.len(), "{}, {}", self.fault, self.kind.words());
    }

    /// Asserts that every refusal has code 11 (try again later) and names the node agent.
    fn assert_refusals_are_clear(&self) {
        self.assert_none_late();
        for (code, message) in self.added.iter().filter_map(|added| added.refused.as_ref()) {
            assert_eq!(*code, Some(11), "{message}");
            let named = message.starts_with("gybe-cni cmdAdd GYBE-ADD-") && message.contains("node agent at");
            assert!(named, "{}: {message}", self.fault);
        }
    }

    fn assert_none_late(&self) {
        let late = |one: &&Added| one.took >= BUDGET + SLACK.mul_f64(one.slowdown);
        let hung = |one: &Added| one.took >= HANGS.mul_f64(one.slowdown);
        let (late, all) = (self.added.iter().filter(late).count(), self.added.len());
        let (fault, kind) = (self.fault, self.kind.words());
        // One in a hundred may be late.
        assert!(late * 100 <= all && !self.added.iter().any(hung), "{fault}, {kind}: {:?}", self.added);
    }
}

/// A kind of pod, by the source of its facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unmeshed, by the annotations that the runtime passes.
    Unmeshed,
    /// In a namespace that the operator excluded; the runtime passes no annotations.
    Excluded,
    /// The agent's own pod; the runtime passes no annotations.
    Own,
    /// Meshed, and in the agent's list.
    Known,
    /// Meshed, and created just before its sandbox.
    New,
}

/// One call of the plugin, without its network namespace.
pub(crate) struct Call {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) stdin: Value,
}

const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Unmeshed, Self::Excluded, Self::Own, Self::Known, Self::New];

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Unmeshed => "unmeshed, by annotations",
            Self::Excluded => "excluded namespace",
            Self::Own => "the agent's own pod",
            Self::Known => "meshed, seen by the agent",
            Self::New => "meshed, new",
        }
    }

    pub(crate) fn is_meshed(self) -> bool {
        matches!(self, Self::Known | Self::New)
    }

    /// Creates the pod if it does not exist yet, and returns the call for it.
    pub(crate) fn call(self, node: &TestNode, name: &str, deadline: Duration) -> Call {
        if self == Self::New {
            node.server.put_pod(meshed_pod(name));
        }
        let mut add: Value = serde_json::from_str(include_str!("../../../examples/add.json")).unwrap();
        let (namespace, name) = match self {
            Self::Excluded => ("kube-system", name.to_owned()),
            Self::Own => ("gybe-system", format!("gybe-node-{name}")),
            _ => ("shop", name.to_owned()),
        };
        let entry = &mut add["stdin"];
        entry["pod_namespace"] = json!("gybe-system");
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap();
        entry["facts"] =
            json!({ "socket": node.directory.run().join("facts.sock"), "deadline_ms": deadline_ms });
        let handed = entry["runtimeConfig"].as_object_mut().unwrap();
        match self {
            Self::Unmeshed => drop(handed.insert(ANNOTATIONS.into(), json!({ "example.com/colour": "red" }))),
            Self::Excluded | Self::Own => drop(handed.remove(ANNOTATIONS)),
            Self::Known | Self::New => {}
        }
        let id = format!(
            "{:064x}",
            uid(&name).bytes().fold(7u128, |id, byte| id.wrapping_mul(257) + u128::from(byte))
        );
        let uid = uid(&name);
        let args = format!(
            "K8S_POD_UID={uid};IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={id}"
        );
        let own = [("CNI_COMMAND", "ADD".to_owned()), ("CNI_CONTAINERID", id), ("CNI_ARGS", args)];
        let rest = [("CNI_IFNAME", "eth0".to_owned()), ("CNI_PATH", "/opt/cni/bin".to_owned())];
        let env = own.into_iter().chain(rest).map(|(name, value)| (name.to_owned(), value)).collect();
        Call { env, stdin: add["stdin"].take() }
    }
}
