//! ocicni, the library with which CRI-O chooses a conf file and calls plugins, as a process on a simulated host. The
//! process itself is `ocicni/main.go`.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use gybe_containerd_tests::cri::{ATTEMPTS, STILL_TENTATIVE};
use gybe_containerd_tests::{Sandbox, SimulatedHost};
use gybe_installer::host::observe::runtimes::DropIns;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};

/// Longer than a chain of plugins takes on a busy machine.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The libcni in ocicni.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Libcni {
    /// In ocicni 0.4.3.
    V1_2,
    /// In ocicni 0.5.0.
    V1_3,
}

impl Libcni {
    /// Whether it reads the networks' own directories.
    pub(crate) fn drop_ins(self) -> DropIns {
        match self {
            Libcni::V1_2 => DropIns::Ignored,
            Libcni::V1_3 => DropIns::Loaded,
        }
    }

    fn program(self) -> PathBuf {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("ocicni");
        let program = directory.join(match self {
            Libcni::V1_2 => "libcni-1.2",
            Libcni::V1_3 => "libcni-1.3",
        });
        assert!(program.exists(), "{}: run make -C integration containerd", program.display());
        program
    }
}

/// CRI-O's configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NetworkConfig<'c> {
    /// `network_dir`
    pub(crate) conf_dir: &'c str,
    /// The only one of `plugin_dirs`.
    pub(crate) plugin_dir: &'c str,
    /// `cni_default_network`
    pub(crate) default_network: Option<&'c str>,
}

/// A running process with ocicni, and nsenter, its parent. It ends after it is dropped, with its host at the latest.
pub(crate) struct Ocicni {
    nsenter: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

/// A pod of CRI-O.
pub(crate) struct CrioPod {
    sandbox: Sandbox,
    /// Whether this version of CRI-O passes the annotations.
    passes_annotations: bool,
}

impl Ocicni {
    pub(crate) fn start(
        host: &SimulatedHost,
        libcni: Libcni,
        config: NetworkConfig<'_>,
        log: &Path,
    ) -> Ocicni {
        let mut command = host.command(Path::new("/nonexistent"), libcni.program());
        command.args([config.conf_dir, config.plugin_dir]).args(config.default_network);
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut nsenter = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let requests = nsenter.stdin.take();
        let replies = BufReader::new(nsenter.stdout.take().unwrap());
        Ocicni { nsenter, requests, replies }
    }

    /// Returns the default network's name; none if no file is a network.
    pub(crate) fn default_network(&mut self) -> Option<String> {
        let reply = self.call("Status", &[]);
        let name = reply["network"].as_str().unwrap();
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Returns the network's STATUS.
    pub(crate) fn status(&mut self) -> Result<(), String> {
        self.result("Status", &[]).map(drop)
    }

    /// Makes a pod's network as CRI-O does: ADD, then CHECK. Returns the pod's addresses. Tries again as [`Cri`] does.
    ///
    /// [`Cri`]: gybe_containerd_tests::Cri
    pub(crate) fn set_up(&mut self, pod: &CrioPod) -> Result<Vec<IpAddr>, String> {
        let mut added = self.add(pod);
        for _ in 1..ATTEMPTS {
            if !added.as_ref().is_err_and(|why| why.contains(STILL_TENTATIVE)) {
                break;
            }
            self.tear_down(pod)?;
            added = self.add(pod);
        }
        added?;
        self.check(pod)
    }

    pub(crate) fn add(&mut self, pod: &CrioPod) -> Result<(), String> {
        self.result("SetUpPod", &[pod]).map(drop)
    }

    /// Returns the pod's addresses.
    pub(crate) fn check(&mut self, pod: &CrioPod) -> Result<Vec<IpAddr>, String> {
        let reply = self.result("GetPodNetworkStatus", &[pod])?;
        let address =
            |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap();
        Ok(reply["results"][0]["ips"].as_array().unwrap().iter().map(address).collect())
    }

    pub(crate) fn tear_down(&mut self, pod: &CrioPod) -> Result<(), String> {
        self.result("TearDownPod", &[pod]).map(drop)
    }

    /// Removes the attachments of all pods but these.
    pub(crate) fn collect_garbage(&mut self, existing: &[&CrioPod]) -> Result<(), String> {
        self.result("GC", existing).map(drop)
    }

    fn result(&mut self, call: &str, pods: &[&CrioPod]) -> Result<Value, String> {
        let reply = self.call(call, pods);
        match reply["error"].as_str() {
            None => Ok(reply),
            Some(error) => Err(error.to_owned()),
        }
    }

    fn call(&mut self, call: &str, pods: &[&CrioPod]) -> Value {
        let pods: Vec<Value> = pods.iter().map(|pod| pod.request()).collect();
        writeln!(self.requests.as_mut().unwrap(), "{}", json!({ "call": call, "pods": pods })).unwrap();
        let mut descriptors = [PollFd::new(self.replies.get_ref().as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(REPLY_TIMEOUT).unwrap();
        assert_eq!(poll(&mut descriptors, timeout), Ok(1), "no reply to {call} within {REPLY_TIMEOUT:?}");
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{call}: {error}: {line:?}"))
    }
}

impl Drop for Ocicni {
    fn drop(&mut self) {
        drop(self.requests.take());
        // Closing its input ends ocicni. nsenter is killed so that this does not wait for a plugin that hangs, which ends
        // with the host. Drop cannot report a failure.
        let _ = self.nsenter.kill();
        let _ = self.nsenter.wait();
    }
}

impl CrioPod {
    /// Makes the pod's network namespace.
    pub(crate) fn new(host: &SimulatedHost, sandbox: &Sandbox, passes_annotations: bool) -> CrioPod {
        let pod = CrioPod { sandbox: sandbox.clone(), passes_annotations };
        host.run(Path::new("ip"), &["netns", "add", &pod.id()]).unwrap();
        pod
    }

    pub(crate) fn id(&self) -> String {
        self.sandbox.uid()
    }

    pub(crate) fn netns(&self) -> String {
        format!("/run/netns/{}", self.id())
    }

    fn request(&self) -> Value {
        json!({
            "namespace": self.sandbox.namespace,
            "name": self.sandbox.name,
            "uid": self.sandbox.uid(),
            "id": self.id(),
            "netns": self.netns(),
            "cgroupPath": format!("/kubepods/burstable/pod{}", self.sandbox.uid()),
            "annotations": self.passes_annotations.then_some(&self.sandbox.annotations),
        })
    }
}
