//! The checks that run inside a virtual machine, as a child of its init. Each argument names a group of checks; each
//! result is a line on stdout.

#![allow(clippy::print_stdout, reason = "the results of the checks")]
#![allow(clippy::indexing_slicing, reason = "of the JSON of the examples, which is part of this program")]

use gybe_integration::failure::Failure;
use gybe_integration::flow_check::{Rules, Until, differences};
use gybe_integration::plugin_call::{PluginCall, PluginDir};
use gybe_integration::programs::{ours, path_of_ours};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::{self, Location, Vector};
use gybe_kernels::{
    Add, COLUMNS, CheckResult, Column, DUAL_STACK, Flows, PODS, Pod, PodOwner, RESULT, Refusal,
};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::model::policy::Families;
use gybe_netfilter::model::policy::istio::PASSTHROUGH_V6;
use gybe_netfilter::probe::choose::BackendSetting;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid, setgid, setuid};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let directory = PluginDir::new("kernel");
    let ran = match arguments.as_slice() {
        ["pod-in-user-namespace", vector] => pod_in_user_namespace(vector),
        groups => groups.iter().try_for_each(|group| match *group {
            "columns" => columns(),
            "probe" => probe(&directory),
            "auto" => adds_with_auto(&directory),
            "each" => adds_with_each_backend(&directory),
            other => Err(Failure::new(format!("{other} is not a group of checks"))),
        }),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("{failure:?}");
            ExitCode::FAILURE
        }
    }
}

fn report(result: &CheckResult) -> Result<(), Failure> {
    println!("{RESULT}{}", serde_json::to_string(result)?);
    Ok(stdout().flush()?)
}

/// Returns the vector; on a kernel without IPv6 with its IPv4 flows alone.
fn vector(name: &str) -> Result<Vector, Failure> {
    let found = vectors::all()?.into_iter().find(|vector| vector.name == name);
    let mut vector = found.ok_or_else(|| Failure::new(format!("no vector {name}")))?;
    if families() == Families::V4Only {
        vector.flows.retain(|flow| flow.to.is_ipv4());
    }
    Ok(vector)
}

/// The families whose addresses a new namespace can have.
fn families() -> Families {
    let is_off = |path: &str| fs::read_to_string(path).map_or(true, |value| value.trim() != "0");
    let off = is_off("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    if off { Families::V4Only } else { Families::V4AndV6 }
}

fn topology_for(vector: &Vector) -> Result<Topology, Failure> {
    Topology::with_families(vector.policy.mode, &vector.flows, families())
}

fn flows(made: Result<Flows, Failure>) -> Flows {
    made.unwrap_or_else(|failure| Flows::Failed(format!("{failure:?}")))
}

fn make_flows(topology: &Topology, vector: &Vector, rules: Rules) -> Result<Flows, Failure> {
    let wrong = differences(topology, &vector.flows, rules, Until::End)?;
    let wrong = wrong.iter().map(ToString::to_string).collect();
    Ok(Flows::Made { number: vector.flows.len(), wrong })
}

fn columns() -> Result<(), Failure> {
    for column in &COLUMNS {
        let made = match column.owner {
            PodOwner::Host => column_of_host(column),
            PodOwner::Pod => column_of_user_namespace(column),
        };
        report(&CheckResult::Column { name: column.name.to_owned(), flows: flows(made) })?;
    }
    Ok(())
}

fn column_of_host(column: &Column) -> Result<Flows, Failure> {
    let vector = vector(column.vector)?;
    let topology = topology_for(&vector)?;
    apply(column, &topology.at(Location::Pod).path())?;
    make_flows(&topology, &vector, Rules::Present)
}

fn apply(column: &Column, netns: &Path) -> Result<(), Failure> {
    let netns = netns.to_string_lossy();
    let policies = vectors::policy_files()?;
    let policy = policies.get(column.vector).ok_or_else(|| Failure::new("no policy file of this vector"))?;
    let arguments = ["apply", "--netns", &*netns, "--policy", "-", "--backend", column.backend.name()];
    let applied = ours("gybe", &arguments, policy)?;
    if applied.code == Some(0) { Ok(()) } else { Err(Failure::new(applied.err)) }
}

/// The ids of the host that the pod's user namespace has, from 0 on.
const FIRST_ID: u32 = 100_000;

/// Has another process make the network and the connections in a user namespace, and writes the rules from outside, as
/// a container runtime's plugin does.
fn column_of_user_namespace(column: &Column) -> Result<Flows, Failure> {
    let mut pod = PodProcess::start(column.vector)?;
    pod.expect_line()?;
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", pod.child.id()), format!("0 {FIRST_ID} 65536"))?;
    }
    pod.go_on()?;
    let netns = pod.expect_line()?;
    apply(column, Path::new(&netns))?;
    pod.go_on()?;
    Ok(serde_json::from_str(&pod.expect_line()?)?)
}

/// The process of [`pod_in_user_namespace`]; ends with this value.
struct PodProcess {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl PodProcess {
    fn start(vector: &str) -> Result<Self, Failure> {
        #[allow(clippy::disallowed_methods, reason = "this program itself")]
        let mut command = Command::new(std::env::current_exe()?);
        let pipes = command.args(["pod-in-user-namespace", vector]);
        let mut child = pipes.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| Failure::new("the pod's process has no stdout"))?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    fn expect_line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.to_owned()),
            None => Err(Failure::new(format!("the pod's process ended: {line}"))),
        }
    }

    fn go_on(&mut self) -> Result<(), Failure> {
        let pipe = self.child.stdin.as_mut().ok_or_else(|| Failure::new("the pod's process has no stdin"))?;
        Ok(pipe.write_all(b"\n")?)
    }
}

impl Drop for PodProcess {
    fn drop(&mut self) {
        // It has ended, or its result does not count.
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// The other side of [`column_of_user_namespace`]. A thread cannot unshare its user namespace beside others, so it has
/// no others until then.
fn pod_in_user_namespace(name: &str) -> Result<(), Failure> {
    let mut line = [0];
    let mut say = |text: &str| -> Result<(), Failure> {
        println!("{text}");
        stdout().flush()?;
        Ok(stdin().read_exact(&mut line)?)
    };
    unshare(CloneFlags::CLONE_NEWUSER)?;
    say("a new user namespace")?;
    setgid(Gid::from_raw(0))?;
    setuid(Uid::from_raw(0))?;
    let vector = vector(name)?;
    let topology = topology_for(&vector)?;
    say(&topology.at(Location::Pod).path().to_string_lossy())?;
    println!("{}", serde_json::to_string(&make_flows(&topology, &vector, Rules::Present)?)?);
    Ok(())
}

/// Probes.
fn probe(directory: &PluginDir) -> Result<(), Failure> {
    let probed = directory.sh(&format!("exec {} probe --json", path_of_ours("gybe")?.display()), "")?;
    report(&CheckResult::Probe { report: serde_json::from_str(&probed.out)? })
}

/// Calls ADD for each pod without a configured backend.
fn adds_with_auto(directory: &PluginDir) -> Result<(), Failure> {
    PODS.iter().try_for_each(|pod| report(&CheckResult::Add(add(directory, BackendSetting::Auto, pod)?)))
}

/// Calls ADD with each backend. The pod with DNS has both families, too, and stands for the dual-stack pod.
fn adds_with_each_backend(directory: &PluginDir) -> Result<(), Failure> {
    for kind in BackendKind::ALL {
        for pod in PODS.iter().filter(|pod| pod.dns || pod.name != DUAL_STACK) {
            report(&CheckResult::Add(add(directory, BackendSetting::Only(kind), pod)?))?;
        }
    }
    Ok(())
}

fn add(directory: &PluginDir, setting: BackendSetting, pod: &Pod) -> Result<Add, Failure> {
    let mut vector = vector(pod.vector)?;
    let topology = topology_for(&vector)?;
    let netns = topology.at(Location::Pod);
    fs::write(directory.manifest(), manifest(pod)?.to_string())?;
    let mut call = PluginCall::add(netns, directory)?.with_backend(setting.as_str());
    call.stdin["runtimeConfig"]["io.kubernetes.cri.pod-annotations"][MODE] = pod.mode.into();
    let called = call.run(directory, "")?;
    let refused = called.code != Some(0);
    let rules = if refused { Rules::Absent } else { Rules::Present };
    if refused {
        // Routes are added before rules, and stay: they do no harm (`Redirection::apply`).
        vector.flows.retain(|flow| flow.source != Some(PASSTHROUGH_V6.into()));
    }
    let rules_by = netns.run(Presence::look)??.ours;
    Ok(Add {
        setting: setting.to_string(),
        pod: pod.name.to_owned(),
        rules_by: rules_by.iter().map(|kind| kind.name().to_owned()).collect(),
        refusal: refused
            .then(|| serde_json::from_str(&called.out).map(|reply: Value| refusal(&reply)))
            .transpose()?,
        flows: flows(make_flows(&topology, &vector, rules)),
    })
}

/// The plugin's error.
fn refusal(reply: &Value) -> Refusal {
    let text = |member| reply.get(member).and_then(Value::as_str).unwrap_or_default().to_owned();
    Refusal { message: text("msg"), hint: text("details") }
}

const MODE: &str = "sidecar.istio.io/interceptionMode";

fn manifest(pod: &Pod) -> Result<Value, Failure> {
    let mut manifest: Value = serde_json::from_str(include_str!("../../../../examples/pod.json"))?;
    let annotations = &mut manifest["metadata"]["annotations"];
    annotations[MODE] = pod.mode.into();
    annotations["traffic.sidecar.istio.io/excludeOutboundPorts"] = "".into();
    let variables = [("ISTIO_DUAL_STACK", pod.dual_stack), ("ISTIO_META_DNS_CAPTURE", pod.dns)];
    manifest["spec"]["initContainers"][1]["env"] = variables
        .map(|(name, value)| json!({ "name": name, "value": value.to_string() }))
        .into_iter()
        .collect();
    Ok(manifest)
}
