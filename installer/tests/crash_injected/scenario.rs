//! The scenarios: a prepared directory and the pass to run on it under strace.

use crate::test_node::{TestNode, chained, directories, install, installed, name, uninstalled};
use gybe_installer::host::apply::ChangeError;
use gybe_installer::host::desired::{DesiredState, PutBack, Shape};
use gybe_installer::host::libcni::choice::choose;
use gybe_installer::host::observe::ObserveScope;
use gybe_installer::host::observe::runtimes::{DropIns, Runtime};
use gybe_installer::host::pass::{Pass, PassHistory, pass};
use gybe_netfilter::model::Hint;
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::time::{Duration, Instant};

const LIST: &str =
    "{\n  \"name\": \"net\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\"\n    }\n  ]\n}\n";
const SINGLE: &str = "{\n  \"name\": \"net\",\n  \"type\": \"calico\"\n}\n";
const ISTIO: &str = "{\"name\":\"net\",\"plugins\":[{\"type\":\"calico\"},{\"type\":\"istio-cni\"}]}\n";

/// One pass over a prepared directory.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    file: (&'static str, &'static str),
    /// The passes that prepare the directory, without faults.
    before: &'static [&'static str],
    /// Whether the primary rewrites its file after those.
    rewritten: bool,
    pub(crate) act: &'static str,
}

const fn scenario(
    name: &'static str,
    file: (&'static str, &'static str),
    before: &'static [&'static str],
    act: &'static str,
) -> Scenario {
    Scenario { name, file, before, rewritten: false, act }
}

const A_LIST: (&str, &str) = ("10-a.conflist", LIST);
const A_SINGLE: (&str, &str) = ("10-a.conf", SINGLE);

pub(crate) const ALL: [Scenario; 12] = [
    scenario("install into a list", A_LIST, &[], "chained"),
    scenario("install into a .conf", A_SINGLE, &[], "chained"),
    scenario("take over from istio-cni", ("10-a.conflist", ISTIO), &[], "chained"),
    scenario("upgrade", A_LIST, &["chained"], "upgraded"),
    Scenario { rewritten: true, ..scenario("repair a list", A_LIST, &["chained"], "chained") },
    Scenario { rewritten: true, ..scenario("repair a .conf", A_SINGLE, &["chained"], "chained") },
    scenario("uninstall from a list", A_LIST, &["chained"], "left"),
    scenario("uninstall from a .conf", A_SINGLE, &["chained"], "left"),
    scenario("remove the tombstone", A_LIST, &["chained", "left"], "left"),
    scenario("chained becomes a drop-in", A_LIST, &["chained"], "drop-in"),
    scenario("a drop-in becomes chained", A_LIST, &["drop-in"], "chained"),
    scenario("chained becomes standalone", A_SINGLE, &["chained"], "standalone"),
];

pub(crate) fn named(name: &str) -> Scenario {
    ALL.into_iter().find(|scenario| scenario.name == name).unwrap_or_else(|| panic!("no scenario {name}"))
}

pub(crate) fn desired_state(root: &Path, act: &str) -> DesiredState {
    match act {
        "chained" => chained(root),
        "upgraded" => DesiredState::Installed(install(root, Shape::Chained { pinned: None }, "2")),
        "drop-in" => installed(root, Shape::DropIn),
        "standalone" => installed(root, Shape::Standalone { file: name("YYY-gybe-cni.conf") }),
        "left" => uninstalled(root, PutBack::Nothing),
        other => panic!("no act {other}"),
    }
}

/// Runs in the traced process: makes one pass and prints its errors.
pub(crate) fn one_pass(root: &Path, act: &str) -> ExitCode {
    let desired_state = desired_state(root, act);
    // A marker in the trace: the calls before it only start the process.
    let _ = nix::unistd::getppid();
    let pass = pass(&directories(root), &desired_state, &mut PassHistory::default()).unwrap();
    for error in &pass.applied.failed {
        println!("{}", error_line(&error.why));
    }
    if pass.applied.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

fn error_line(error: &ChangeError) -> String {
    let mut line = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(why) = cause {
        line = format!("{line}: {why}");
        cause = why.source();
    }
    format!("{line}; hint: {}", error.hint().unwrap_or("none".into()))
}

impl Scenario {
    pub(crate) fn prepared(&self) -> TestNode {
        let node = TestNode::with(&[self.file]);
        for act in self.before {
            node.pass(&desired_state(&node.root, act));
        }
        if self.rewritten {
            node.put(self.file.0, self.file.1.replace("\"calico\"", "\"cilium\""));
        }
        // Writes the image's programs here, not in the traced process.
        let _ = desired_state(&node.root, self.act);
        node
    }

    /// Returns the files and programs after a run without faults.
    pub(crate) fn undisturbed(&self) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        let node = self.prepared();
        self.finish(&node)
    }

    /// Makes the next passes, which must complete the change, and returns the files and programs.
    pub(crate) fn finish(&self, node: &TestNode) -> (Vec<(String, Vec<u8>)>, Vec<String>) {
        let desired_state = desired_state(&node.root, self.act);
        for _ in 0..2 {
            let pass = pass_once_unlocked(node, &desired_state);
            assert!(pass.applied.failed.is_empty(), "{}: {:?}", self.name, pass.applied.failed);
        }
        let last = node.pass(&desired_state);
        assert!(last.plan.changes.is_empty(), "{}: {:#?}", self.name, last.plan);
        (node.files().into_iter().collect(), node.programs())
    }

    /// Asserts what must hold after any fault: both runtimes load the primary's chain, and if it names Gybe's plugin,
    /// that program is complete.
    pub(crate) fn assert_node_works(&self, node: &TestNode, when: &str) {
        let observed = node.observe(&ObserveScope::default());
        for runtime in [Runtime::Containerd, Runtime::CriO] {
            let choice = choose(&observed.conf, runtime, DropIns::Loaded)
                .unwrap_or_else(|why| panic!("{} {when}: {why:?}", self.name));
            assert_eq!(choice.network.name, "net", "{} {when}", self.name);
            let first = if self.rewritten { "cilium" } else { "calico" };
            assert_eq!(choice.network.plugins[0], first, "{} {when}", self.name);
            if choice.network.plugins.contains(&"gybe-cni".to_owned()) {
                let text = std::fs::read_to_string(node.root.join("bin/gybe-cni")).unwrap();
                assert!(text.contains("supportedVersions") && text.ends_with('\n'), "{} {when}", self.name);
            }
        }
    }
}

/// Repeats the pass until the lock is free: a child that the killed process had forked holds the lock until its exec.
fn pass_once_unlocked(node: &TestNode, desired_state: &DesiredState) -> Pass {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match pass(&node.directories(), desired_state, &mut PassHistory::default()) {
            Err(_) if Instant::now() < until => std::thread::yield_now(),
            pass => return pass.unwrap(),
        }
    }
}

/// Runs one pass under strace with these options.
pub(crate) fn traced(node: &TestNode, words: &[&str], options: &[&str]) -> Output {
    #[expect(clippy::disallowed_methods, reason = "strace injects the faults")]
    let mut strace = Command::new("strace");
    strace.arg("-qq").args(options).arg(std::env::current_exe().unwrap());
    let [first, rest @ ..] = words else { panic!("no words") };
    strace.arg(first).arg(&node.root).args(rest);
    strace.output().expect("strace runs; install it with integration/setup.sh")
}

/// A system call of a pass.
pub(crate) struct Call {
    /// The call as strace prints it.
    pub(crate) text: String,
    /// The call's number among those of its name in the whole process, from 1, as strace's `when=` counts.
    pub(crate) nth: usize,
}

impl Call {
    pub(crate) fn name(&self) -> &str {
        self.text.split('(').next().unwrap_or_default()
    }

    pub(crate) fn is(&self, name: &str) -> bool {
        self.name() == name
    }

    /// Returns the strace option that injects a fault at this call.
    pub(crate) fn injection(&self, with: &str) -> String {
        format!("inject={}:{with}:when={}", self.name(), self.nth)
    }
}

/// Returns the system calls of a pass in order: those after the marker and before `exit_group`.
pub(crate) fn calls(node: &TestNode, act: &str) -> Vec<Call> {
    let log = node.root.join("calls");
    let output = traced(node, &["one-pass", act], &["-o", log.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let mut counts = std::collections::HashMap::new();
    let text = std::fs::read_to_string(log).unwrap();
    let calls = text.lines().filter(|line| !line.starts_with(['+', '-'])).map(|line| {
        let nth = counts.entry(line.split('(').next().unwrap().to_owned()).or_insert(0);
        *nth += 1;
        Call { text: line.to_owned(), nth: *nth }
    });
    let calls = calls.skip_while(|call| !call.is("getppid")).skip(1);
    calls.take_while(|call| !call.is("exit_group")).collect()
}
