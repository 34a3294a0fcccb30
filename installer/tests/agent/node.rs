//! A simulated node: directories that are removed when the test ends.

use gybe_installer::host::conflist::PluginChain;
use gybe_plugin::probe_cache::findings::{self, VERSION};
use gybe_plugin::probe_cache::this_node;
use gybe_plugin::version::BUILD_MARK;
use gybe_test_support::{Agent, Layout, TestDir, agent_environment, facts, write_volume};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const PRIMARY: &str = "{\n  \"cniVersion\": \"1.0.0\",\n  \"name\": \"k8s-pod-network\",\n  \"plugins\": [\n    {\n      \"type\": \"calico\"\n    }\n  ]\n}\n";

/// The conf file of the node's primary plugin.
pub(crate) const FILE: &str = "10-calico.conflist";

/// Names of the other owners' plugins in the node's program directory.
pub(crate) const PRIMARIES: [&str; 4] = ["bridge", "calico", "cilium-cni", "loopback"];

/// The directories of a node, and the agent's environment.
pub(crate) struct Node {
    pub(crate) root: TestDir,
    pub(crate) environment: BTreeMap<String, String>,
}

impl Node {
    pub(crate) fn new(test: &str) -> Self {
        // Not below /tmp, which may be mounted noexec: the programs in it are run.
        let root = TestDir::new_in(Path::new(env!("CARGO_TARGET_TMPDIR")), &format!("node-{test}"))
            .with_subdirectories(&[
                "net.d",
                "bin",
                "cache/results",
                "image",
                "config",
                "account",
                "probe",
                "pods",
            ]);
        let environment = agent_environment(&root, Layout::Short);
        let node = Self { root, environment };
        node.place_primaries();
        node.write_image("1");
        node.write_probe_report("works");
        node
    }

    /// Creates the other owners' plugins in the program directory.
    pub(crate) fn place_primaries(&self) {
        self.root.write_programs("bin", PRIMARIES);
    }

    pub(crate) fn set_env(&mut self, name: &str, value: &str) {
        self.environment.insert(name.to_owned(), value.to_owned());
    }

    /// Writes the image of a build: scripts that answer as the real programs do, and print their build.
    pub(crate) fn write_image(&self, build: &str) {
        for program in ["gybe", "gybe-cni"] {
            let path = self.root.join("image").join(program);
            let answer = r#"{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}"#;
            fs::write(&path, format!("#!/bin/sh\n# {program} {build}\n# {BUILD_MARK}\necho '{answer}'\n"))
                .unwrap();
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// Writes a probe report with this finding for every backend's profile `v4`.
    pub(crate) fn write_probe_report(&self, finding: &str) {
        let node = this_node().unwrap();
        let profiles: Vec<&str> = gybe_netfilter::probe::Profile::EVERY.iter().map(|it| it.name()).collect();
        let finding = match finding {
            "works" => json!({ "finding": "works" }),
            what => json!({ "finding": "misbehaves", "what": what }),
        };
        let of: serde_json::Map<_, _> =
            profiles.iter().map(|name| ((*name).to_owned(), finding.clone())).collect();
        let text = json!({
            "version": VERSION, "boot_id": node.boot, "kernel": node.kernel,
            "backends": { "nft": of, "iptables-nft": of, "iptables-legacy": of }, "untried": [],
        });
        assert!(findings::from_json(&text, &node).is_some(), "{text}");
        self.root.replace("probe/probe.json", text.to_string());
    }

    /// Replaces the mounted ConfigMap, as the kubelet does.
    pub(crate) fn set_configmap(&self, files: &[(&str, &str)]) {
        write_volume(&self.root.join("config"), files.iter().copied()).unwrap();
    }

    /// Writes a file into the conf directory by rename, as other agents do.
    pub(crate) fn put_conf(&self, name: &str, text: &str) {
        let new = self.root.join("net.d/.another.tmp");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.conf_path(name)).unwrap();
    }

    pub(crate) fn conf_path(&self, name: &str) -> PathBuf {
        self.root.join("net.d").join(name)
    }

    pub(crate) fn conf_text(&self, name: &str) -> String {
        fs::read_to_string(self.conf_path(name)).unwrap_or_default()
    }

    /// Returns Gybe's entry in a conf file.
    pub(crate) fn entry(&self, name: &str) -> Option<Value> {
        let text = self.conf_text(name);
        let entry = PluginChain::read(text.as_bytes()).ok()?.entry("gybe-cni")?.to_vec();
        serde_json::from_slice(&entry).ok()
    }

    pub(crate) fn program_path(&self, name: &str) -> PathBuf {
        self.root.join("bin").join(name)
    }

    /// Returns the output of the installed program, which names its build.
    pub(crate) fn installed_build(&self, name: &str) -> String {
        let text = fs::read_to_string(self.program_path(name)).unwrap_or_default();
        text.lines().nth(1).unwrap_or_default().trim_start_matches("# ").to_owned()
    }

    /// Writes libcni's cached result of a running sandbox that was created with these plugins.
    pub(crate) fn add_sandbox(&self, id: &str, plugins: &[&str]) {
        use base64::prelude::{BASE64_STANDARD, Engine as _};
        let types: Vec<_> = plugins.iter().map(|plugin| json!({ "type": plugin })).collect();
        let config =
            json!({ "cniVersion": "1.0.0", "name": "k8s-pod-network", "plugins": types }).to_string();
        let result =
            json!({ "kind": "cniCacheV1", "containerId": id, "config": BASE64_STANDARD.encode(config) });
        fs::write(self.cached_result(id), result.to_string()).unwrap();
    }

    pub(crate) fn cached_result(&self, id: &str) -> PathBuf {
        self.root.join("cache/results").join(format!("k8s-pod-network-{id}-eth0"))
    }

    /// Writes the manifest of a pod of istio-cni's agent and returns its path.
    pub(crate) fn add_pod(&self, name: &str) -> PathBuf {
        let path = self.root.join("pods").join(format!("{name}.json"));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {
                "namespace": "istio-system", "name": name, "uid": name, "labels": { "k8s-app": "istio-cni-node" },
            },
            "spec": { "containers": [{ "name": "install-cni" }] },
        });
        fs::write(&path, pod.to_string()).unwrap();
        path
    }

    #[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gybe"));
        command.arg("node");
        // Without a cluster the agent reads pods from manifests.
        if !self.environment.contains_key("KUBERNETES_NODE_NAME") {
            command.args(["--install", "--pods-from"]).arg(self.root.join("pods"));
        }
        command.env_clear().envs(&self.environment);
        command
    }

    /// Returns a command of `gybe` for this node's directories.
    #[expect(clippy::disallowed_methods, reason = "the program under test is a program")]
    pub(crate) fn gybe(&self, command: &str) -> Command {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_gybe"));
        tool.arg(command);
        let folders = [("--conf-dir", "net.d"), ("--bin-dir", "bin"), ("--results-dir", "cache/results")];
        for (flag, folder) in folders {
            tool.arg(flag).arg(self.root.join(folder));
        }
        tool
    }

    /// Returns the report of `gybe doctor`.
    pub(crate) fn doctor(&self) -> Value {
        self.doctor_with("probe", &[])
    }

    /// As `doctor`, with the probe report and sockets in this directory, and these flags.
    pub(crate) fn doctor_with(&self, run: &str, flags: &[&str]) -> Value {
        let mut doctor = self.gybe("doctor");
        let output = doctor.args(["--json", "--run-dir"]).arg(self.root.join(run)).args(flags).output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap()
    }

    /// Queries a pod at the facts socket, as the plugin does.
    pub(crate) fn query(&self, namespace: &str, name: &str, uid: &str) -> Value {
        let mut query = facts::request(namespace, name, uid);
        query["deadline_ms"] = 5000.into();
        facts::query(&self.root.join("run/facts.sock"), &query)
    }

    /// Starts an agent.
    pub(crate) fn spawn_agent(&self) -> Agent {
        Agent::start(self.command())
    }

    /// Starts an agent and waits for the end of its first pass.
    pub(crate) fn start_agent(&self) -> Agent {
        let agent = self.spawn_agent();
        agent.wait_for_first_pass();
        agent
    }
}
