//! An idle node agent with ambient mode, without a connected ztunnel and without ambient pods: how often its threads wake,
//! their processor time, and the agent's memory, by the number of the node's pods that it knows. Each agent and its API
//! server are in a network namespace of their own. They run at the same time: idle agents do not delay each other.

use crate::pod::RUN;
use crate::programs::{built_program, command};
use crate::report::{Limit, Report, Table, Target, cells};
use gybe_api_server::{ApiServer, Verb};
use gybe_demo::testnet::namespace::Namespace;
use gybe_integration::failure::Failure;
use gybe_integration::namespace::in_parallel;
use gybe_test_support::{Agent, Layout, agent_environment, cluster_environment, wait_until};
use serde_json::json;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Numbers of pods: none, as many as the kubelet allows by default, and a large node's.
const PODS: [usize; 3] = [0, 110, 500];

/// The time after the start in which an agent completes its first work, and the measured time.
const SETTLED: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(30);

/// What an agent has used since its start.
#[derive(Debug, Clone, Copy)]
struct Used {
    threads: usize,
    wakeups: f64,
    nanoseconds: f64,
}

/// What an idle agent uses; wakeups and processor time by the minute.
#[derive(Debug, Clone, Copy)]
struct Idle {
    pods: usize,
    threads: usize,
    wakeups: f64,
    processor_ms: f64,
    memory: f64,
}

/// # Errors
/// When an agent cannot be started or has ended.
pub fn measure() -> Result<Report, Failure> {
    let measured = in_parallel(PODS.to_vec(), |pods| Namespace::new()?.run(|| idle(pods))?);
    Ok(report(&measured.into_iter().collect::<Result<Vec<_>, Failure>>()?))
}

fn idle(pods: usize) -> Result<Idle, Failure> {
    let server = ApiServer::start()?;
    server.permit(Verb::Watch, "namespaces");
    server.permit(Verb::Patch, "pods/status");
    server.put(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } }))?;
    for number in 0..pods {
        let mut pod: serde_json::Value = serde_json::from_str(include_str!("../../../examples/pod.json"))?;
        for (part, key, value) in [
            ("metadata", "name", format!("cart-{number}")),
            ("metadata", "uid", format!("uid-{number}")),
            ("spec", "nodeName", "node-1".to_owned()),
        ] {
            let object = pod.get_mut(part).and_then(|it| it.as_object_mut());
            let object = object.ok_or_else(|| Failure::new(format!("examples/pod.json has no {part}")))?;
            object.insert(key.into(), value.into());
        }
        server.put_pod(pod);
    }
    let agent = start(&Path::new(RUN).join(format!("agent-{pods}")), &server)?;
    let known = format!("\ngybe_pods {pods}\n");
    wait_until("the agent knows its pods", || agent.get("/metrics").1.contains(&known));
    sleep(SETTLED);
    let before = used(&agent)?;
    sleep(MEASURED);
    let after = used(&agent)?;
    if after.threads != before.threads {
        return Err(Failure::new(format!(
            "the agent with {pods} pods had {} threads, and {} after the measurement; run the part again",
            before.threads, after.threads
        )));
    }
    if after.nanoseconds <= before.nanoseconds {
        return Err(Failure::new(
            "/proc/PID/task/TID/schedstat counts no time; the kernel needs CONFIG_SCHEDSTATS",
        ));
    }
    let by_minute = |before: f64, after: f64| (after - before) * 60.0 / MEASURED.as_secs_f64();
    Ok(Idle {
        pods,
        threads: after.threads,
        wakeups: by_minute(before.wakeups, after.wakeups),
        processor_ms: by_minute(before.nanoseconds, after.nanoseconds) / 1e6,
        memory: f64::from(u32::try_from(agent.memory())?) * 1024.0 / 1e6,
    })
}

fn start(directory: &Path, server: &ApiServer) -> Result<Agent, Failure> {
    for name in ["net.d", "bin", "cache", "config", "probe", "istio", "pod"] {
        fs::create_dir_all(directory.join(name))?;
    }
    let primary = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "bridge" }] });
    fs::write(directory.join("net.d/10-pods.conflist"), primary.to_string())?;
    fs::write(directory.join("config/backend"), "nft")?;
    let gybe = built_program("gybe")?;
    let mut command = command(&gybe);
    command.env_clear().envs(agent_environment(directory, Layout::Short));
    command.envs(cluster_environment(server.address()));
    command.env("GYBE_PROGRAMS_DIR", gybe.parent().unwrap_or(Path::new("/")));
    command.env("GYBE_POD_DIR", directory.join("pod"));
    command.env("AMBIENT_ENABLED", "true").env("ZTUNNEL_UDS_ADDRESS", directory.join("ztunnel/ztunnel.sock"));
    command.args(["node", "--install", "--node-name=node-1", "--kubeconfig"]);
    command.arg(server.kubeconfig(directory)?);
    Ok(Agent::start_serving(command))
}

/// A wakeup is a voluntary context switch (proc_pid_status(5)) of one of the threads.
fn used(agent: &Agent) -> Result<Used, Failure> {
    let process = format!("/proc/{}", agent.pid());
    let mut used = Used { threads: 0, wakeups: 0.0, nanoseconds: 0.0 };
    for thread in fs::read_dir(format!("{process}/task"))? {
        let thread = thread?.path();
        let status = fs::read_to_string(thread.join("status"))?;
        // Its first field is the time on a processor (Documentation/scheduler/sched-stats.rst).
        let schedule = fs::read_to_string(thread.join("schedstat"))?;
        used.nanoseconds += schedule.split(' ').next().unwrap_or_default().parse::<f64>()?;
        let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        used.wakeups += switches.unwrap_or_default().trim().parse::<f64>()?;
        used.threads += 1;
    }
    Ok(used)
}

fn report(measured: &[Idle]) -> Report {
    let row = |it: &Idle| {
        let figures = [it.wakeups, it.processor_ms].map(|figure| format!("{figure:.0}"));
        let [wakeups, processor] = figures;
        vec![it.pods.to_string(), it.threads.to_string(), wakeups, processor, format!("{:.2}", it.memory)]
    };
    let table = Table {
        title: "An idle agent with ambient mode, by the minute".into(),
        head: cells(["Pods", "threads", "wakeups", "ms of processor time", "anonymous memory, MB"]),
        rows: measured.iter().map(row).collect(),
    };
    let most = |figure: fn(&Idle) -> f64| measured.iter().map(figure).fold(f64::NAN, f64::max);
    let target = |what: &str, measured, most, unit| Target {
        what: format!("idle agent: {what}"),
        measured,
        limit: Limit::AtMost(most),
        unit,
    };
    let targets = vec![
        target("wakeups", most(|it| it.wakeups), 600.0, "a minute"),
        target("processor time a minute", most(|it| it.processor_ms), 600.0, "ms"),
        target("memory with 500 pods", most(|it| it.memory), 8.0, "MB"),
    ];
    Report { tables: vec![table], targets }
}
