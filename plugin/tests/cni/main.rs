//! The built program `gybe-cni`, called as runtimes call it; and the page about its configuration.

#![cfg(test)]

mod absent_sources;
mod agent;
mod bad_input;
mod configuration;
mod recorded;

use gybe_test_support::TestDir;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{PipeWriter, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The path of the built program.
pub(crate) const GYBE_CNI: &str = env!("CARGO_BIN_EXE_gybe-cni");

/// The outcome of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) exit: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Stdout as one JSON document; none when it is empty.
    pub(crate) fn json(&self) -> Option<Value> {
        let empty = self.stdout.trim().is_empty();
        (!empty)
            .then(|| serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}")))
    }

    /// CNI's error code; none when the call succeeded.
    pub(crate) fn code(&self) -> Option<u64> {
        self.json()?.get("code").and_then(Value::as_u64)
    }

    /// Message and details, as the kubelet's event shows them.
    pub(crate) fn message(&self) -> String {
        let json = self.json().unwrap_or_default();
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        format!("{}; {}", text("msg"), text("details"))
    }
}

/// A call in progress.
pub(crate) struct Running(Child);

impl Running {
    /// Starts `gybe-cni` with this environment and stdin.
    pub(crate) fn start<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: &str) -> Self {
        let mut child = start(env, Stdio::piped());
        // The plugin does not read stdin of a call that it refuses for its environment.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        Self(child)
    }

    /// Reports whether the call watches a directory with inotify.
    pub(crate) fn watches_a_directory(&self) -> bool {
        let descriptors = fs::read_dir(format!("/proc/{}/fdinfo", self.0.id()));
        let descriptors = descriptors.into_iter().flatten().flatten();
        descriptors
            .filter_map(|descriptor| fs::read_to_string(descriptor.path()).ok())
            .any(|text| text.contains("inotify wd:"))
    }

    /// Waits for the end of the call.
    pub(crate) fn end(self) -> Outcome {
        outcome(self.0)
    }
}

/// Runs `gybe-cni` with this environment and stdin.
pub(crate) fn run<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: &str) -> Outcome {
    Running::start(env, stdin).end()
}

/// Runs a copy of the program at another path.
pub(crate) fn run_at<'a>(
    program: &Path,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
    stdin: &str,
) -> Outcome {
    let mut command = command(program, env);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    outcome(child)
}

/// Runs the program, and closes its stdin only after it has ended.
pub(crate) fn run_with_open_stdin<'a>(
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
    stdin: &str,
) -> Outcome {
    let mut child = start(env, Stdio::piped());
    let mut open_stdin = child.stdin.take().unwrap();
    open_stdin.write_all(stdin.as_bytes()).unwrap();
    let outcome = outcome(child);
    drop(open_stdin);
    outcome
}

/// Runs the program with an empty `/run`, so that findings of STATUS about this machine are not kept. A user
/// other than root can neither probe nor keep findings.
#[expect(clippy::disallowed_methods, reason = "unshare makes the mount namespace")]
pub(crate) fn run_with_own_run_directory<'a>(
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
    stdin: &str,
) -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return run(env, stdin);
    }
    let mut unshare = Command::new("unshare");
    let script = "mount -t tmpfs tmpfs /run && exec env -i \"$@\"";
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    unshare.args(env.into_iter().map(|(name, value)| format!("{name}={value}"))).arg(GYBE_CNI);
    let mut child =
        unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    outcome(child)
}

/// Runs the program with a file as stdin.
pub(crate) fn run_with_stdin<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: File) -> Outcome {
    outcome(start(env, stdin.into()))
}

fn start<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>, stdin: Stdio) -> Child {
    gybe_cni(env).stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn outcome(child: Child) -> Outcome {
    let output = child.wait_with_output().unwrap();
    Outcome {
        exit: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Returns the exit status of a call whose reply goes to `stdout`.
pub(crate) fn exit_with_stdout<'a>(
    stdout: File,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<i32> {
    gybe_cni(env).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).status().unwrap().code()
}

/// Returns the exit status of a call whose log goes to `stderr`.
pub(crate) fn exit_with_stderr<'a>(
    stderr: PipeWriter,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<i32> {
    gybe_cni(env).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).status().unwrap().code()
}

/// Runs the program without some standard descriptors: `closing` in shell syntax, `<&-`.
#[expect(clippy::disallowed_methods, reason = "a shell can close what std's Command cannot")]
pub(crate) fn run_with_closed<'a>(
    closing: &str,
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Outcome {
    let script = format!("exec \"$0\" {closing}");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_gybe-cni")]).env_clear().envs(env);
    outcome(shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

fn gybe_cni<'a>(env: impl IntoIterator<Item = (&'a str, &'a str)>) -> Command {
    command(Path::new(GYBE_CNI), env)
}

#[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
fn command<'a>(program: &Path, env: impl IntoIterator<Item = (&'a str, &'a str)>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(env);
    command
}

/// The annotation that the injector adds.
pub(crate) const STATUS: &str = "sidecar.istio.io/status";

/// The deadline of a query that the agent answers: longer than an answer takes on a busy machine.
pub(crate) const ANSWERED_MS: u64 = 15_000;

/// A configuration with the socket of an agent in the directory of `pods`.
pub(crate) fn entry(pods: &Pods, annotations: Option<Value>) -> Value {
    let runtime = annotations.map(|these| json!({ "io.kubernetes.cri.pod-annotations": these }));
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "gybe-cni", "pod_namespace": "gybe-system",
        "facts": { "socket": pods.0.join("facts.sock"), "deadline_ms": ANSWERED_MS },
        "runtimeConfig": runtime, "prevResult": { "cniVersion": "1.0.0" },
    })
}

/// The variables of a call about a pod whose network namespace does not exist.
pub(crate) fn environment<'a>(verb: &'a str, args: &'a str) -> [(&'a str, &'a str); 6] {
    [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/nonexistent"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin"),
        ("CNI_ARGS", args),
    ]
}

/// Calls the plugin for a pod, `namespace/name`, and checks that it ends in time.
pub(crate) fn call(verb: &str, pod: &str, entry: &Value) -> Outcome {
    let (namespace, name) = pod.split_once('/').unwrap();
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID=u1");
    let before = Instant::now();
    let outcome = run(environment(verb, &args), &entry.to_string());
    assert!(before.elapsed() < Duration::from_secs(20), "{:?}: {outcome:?}", before.elapsed());
    outcome
}

/// A directory of manifests for one test.
pub(crate) struct Pods(pub(crate) TestDir);

impl Pods {
    pub(crate) fn new(test: &str) -> Self {
        Self(TestDir::new(&format!("cni-{test}")))
    }

    /// Writes the pod's manifest to the path where the plugin looks for it.
    pub(crate) fn add(&self, namespace: &str, name: &str, manifest: &Value) {
        self.0.write(format!("{namespace}/{name}.json"), manifest.to_string());
    }

    /// The value of the key `facts` for this directory.
    pub(crate) fn facts(&self) -> Value {
        json!({ "directory": self.0.path() })
    }
}

/// A pod as Istio's injector leaves it, with these annotations added.
pub(crate) fn meshed(annotations: &[(&str, &str)]) -> Value {
    let mut pod = json!({
        "metadata": { "annotations": { "sidecar.istio.io/status": "{}" } },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    });
    for (name, value) in annotations {
        pod["metadata"]["annotations"][*name] = (*value).into();
    }
    pod
}
