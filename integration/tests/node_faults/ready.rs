//! States of a node in which a pod that starts now is not redirected by the settings in force, or does not start: a
//! running agent is not ready, and says why.

use crate::fixture::AgentState::Running;
use crate::fixture::{HealthyNode, with_directory_in_memory};
use gybe_integration::namespace::in_parallel_at_most;
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::wait_until;
use nix::mount::MsFlags;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most of a case is waiting for programs.
const THREADS: usize = 4;

struct State {
    name: &'static str,
    plant: fn(&HealthyNode),
    /// A line of `/readyz`; none where the agent stays ready.
    reason: Option<&'static str>,
}

const fn unready(name: &'static str, plant: fn(&HealthyNode), reason: &'static str) -> State {
    State { name, plant, reason: Some(reason) }
}

const fn ready(name: &'static str, plant: fn(&HealthyNode)) -> State {
    State { name, plant, reason: None }
}

/// Changes a setting while the conf directory is read-only.
fn set_unwritable(node: &HealthyNode, key: &str, value: &str) {
    node.remount("etc/cni/net.d", MsFlags::MS_RDONLY);
    node.set_configmap(key, value);
    wait_until("a failed write", || {
        node.agent().metric("istio_cni_installs_total{result=\"CREATE_CNI_CONFIG_FAILURE\"}") > 0.0
    });
}

/// Writes the report of the container `repair`: containerd looks for plugins in these directories.
fn report(node: &HealthyNode, directories: &[&str], further: &Value) {
    let directory = |path: &&str| {
        let meta = fs::metadata(node.path(path)).unwrap();
        let names = fs::read_dir(node.path(path)).unwrap();
        let names = names.map(|entry| (entry.unwrap().file_name().into_string().unwrap(), json!(true)));
        let programs: serde_json::Map<_, _> = names.collect();
        json!({ "path": path, "identity": [meta.dev(), meta.ino()], "programs": programs })
    };
    let mut runtime = json!({
        "name": "containerd", "reads_drop_ins": true,
        "plugin_dirs": directories.iter().map(directory).collect::<Vec<_>>(),
    });
    runtime.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    node.write("run/gybe/.runtime.json.new", &json!({ "runtimes": [runtime] }).to_string());
    fs::rename(node.path("run/gybe/.runtime.json.new"), node.path("run/gybe/runtime.json")).unwrap();
}

/// Mounts a program directory, read-only, in which this program is the plugin.
fn put_unwritable_plugin(node: &HealthyNode, script: &str) {
    let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
    node.node.root.write_programs("other", ["bridge", "loopback", "gybe", "gybe-cni"]);
    node.write("other/gybe-cni", &format!("#!/bin/sh\n# {script}\necho '{answer}'\n"));
    node.mount("other", "opt/cni/bin", MsFlags::MS_RDONLY);
    node.set_configmap("log_level", "info");
}

fn remove_program(node: &HealthyNode, name: &str) {
    fs::remove_file(node.path("opt/cni/bin").join(name)).unwrap();
}

const STATES: &[State] = &[
    unready(
        "the primary's program is gone, and the runtime's directories are known",
        |node| {
            report(node, &["opt/cni/bin"], &json!({}));
            remove_program(node, "bridge");
        },
        "bridge, which the runtime runs for 10-pods.conflist, is in none of the directories",
    ),
    unready(
        "loopback is gone, and the runtime's directories are not known",
        |node| remove_program(node, "loopback"),
        "loopback, which the runtime runs for 10-pods.conflist, is not in the program directory",
    ),
    ready("loopback is gone, and containerd does not run it", |node| {
        report(node, &["opt/cni/bin"], &json!({ "internal_loopback": true }));
        remove_program(node, "loopback");
    }),
    ready("loopback is in a further directory", |node| {
        node.node.root.write_programs("further", ["loopback"]);
        report(node, &["opt/cni/bin", "further"], &json!({}));
        remove_program(node, "loopback");
    }),
    unready(
        "another program removes the entry, and a slow disk delays the repair",
        |node| {
            node.delay_syncs();
            node.put_primary();
        },
        "the runtime uses 10-pods.conflist (bridge), which does not run gybe-cni",
    ),
    unready(
        "the program of the primary's IPAM is missing",
        |node| {
            node.change_conf(
                "\"bridge\": \"cni0\"",
                "\"bridge\": \"cni0\", \"ipam\": { \"type\": \"host-local\" }",
            );
        },
        "host-local, which the runtime runs for 10-pods.conflist, is not in the program directory",
    ),
    unready(
        "the program directory is mounted noexec",
        |node| {
            node.remount("opt/cni/bin", MsFlags::MS_NOEXEC);
            node.set_configmap("log_level", "info");
        },
        "the program gybe-cni cannot be run: its directory is mounted noexec",
    ),
    unready(
        "another program has the plugin's name, answers VERSION, and cannot be replaced",
        |node| put_unwritable_plugin(node, "another program"),
        "the program gybe-cni is not the one that was placed there",
    ),
    ready("another build has the plugin's name and cannot be replaced", |node| {
        put_unwritable_plugin(node, BUILD_MARK);
    }),
    unready(
        "an earlier directory of the runtime has another gybe-cni",
        |node| {
            node.node.root.write_programs("earlier", ["gybe-cni"]);
            report(node, &["earlier", "opt/cni/bin"], &json!({}));
        },
        "the runtime runs the gybe-cni in earlier, not the one that is placed",
    ),
    unready(
        "a runtime handler has another conf directory",
        |node| {
            let directory = json!({ "path": "/etc/cni/kata", "identity": null });
            let handlers = json!([{ "name": "kata", "conf_dir": directory, "has_entry": false }]);
            report(node, &["opt/cni/bin"], &json!({ "handlers": handlers }));
        },
        "pods of the runtime handler kata use the first conf file in /etc/cni/kata, which is missing or does not run gybe-cni",
    ),
    unready(
        "a namespace is excluded, and the entry cannot be written",
        |node| set_unwritable(node, "exclude_namespaces", "shop"),
        "the entry in 10-pods.conflist does not have the desired settings yet: exclude_namespaces differ",
    ),
    unready(
        "another backend is configured, and the entry cannot be written",
        |node| set_unwritable(node, "backend", "nft"),
        "the entry in 10-pods.conflist does not have the desired settings yet: backend differ",
    ),
    ready("another log level is configured, and the entry cannot be written", |node| {
        set_unwritable(node, "log_level", "error");
    }),
];

/// Returns what the agent reports wrongly.
fn miss(state: &State) -> Option<String> {
    with_directory_in_memory(|directory| {
        let node = HealthyNode::new(directory, Running);
        (state.plant)(&node);
        let says = |reason: &str| {
            node.agent().get("/readyz").1.lines().any(|line| line.starts_with(&format!("- {reason}")))
        };
        match state.reason {
            Some(reason) => wait_until("the reason", || says(reason)),
            // Two turns of the loop later.
            None => {
                let turns = || node.agent().metric("gybe_passes_total");
                let before = turns();
                wait_until("two turns", || turns() >= before + 2.0);
            }
        }
        let (code, text) = node.agent().get("/readyz");
        let is_right = (code == 200) == state.reason.is_none();
        (!is_right).then(|| format!("{}: {code} {text}", state.name))
    })
}

#[test]
fn an_agent_whose_node_does_not_redirect_the_next_pod_is_not_ready_and_says_why() {
    let found = in_parallel_at_most(THREADS, STATES.iter().collect(), |state| {
        let missed = catch_unwind(AssertUnwindSafe(|| miss(state)));
        missed.unwrap_or_else(|_| Some(format!("{}: a panic", state.name)))
    });
    let found: Vec<String> = found.into_iter().flatten().collect();
    assert!(found.is_empty(), "{} failed:\n{}", found.len(), found.join("\n\n"));
}
