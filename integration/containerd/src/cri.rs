//! The kubelet's calls over containerd's socket; not what their answers ought to be.

mod containers;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_cri::v1;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

pub use containers::Lived;

use crate::{Loaded, Sandbox, Trouble};

/// Longer than any call here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A connection to containerd.
#[derive(Debug)]
pub struct Cri {
    runtime: Runtime,
    sandboxes: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    cgroup: String,
}

/// What containerd says about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Whether its process runs; a stopped one is known until it is removed.
    pub ready: bool,
    /// All its addresses, the first first.
    pub addresses: Vec<String>,
    /// Where its network namespace is, seen from containerd.
    pub netns: Option<PathBuf>,
}

/// A condition of the node, such as the network's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Whether it holds.
    pub holds: bool,
    /// Why not.
    pub reason: String,
    /// In more words.
    pub message: String,
}

impl Cri {
    /// Connects; sandboxes will be under `cgroup`.
    pub fn connect(socket: &Path, cgroup: String) -> Result<Cri, Trouble> {
        let built = Builder::new_current_thread().enable_all().build();
        let runtime = built.map_err(Trouble::file("epoll"))?;
        let failed = |source| Trouble::Connect { path: socket.to_path_buf(), source };
        let address = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(address).map_err(failed)?;
        let endpoint = endpoint.timeout(PATIENCE);
        let channel = runtime.block_on(endpoint.connect()).map_err(failed)?;
        Ok(Cri {
            runtime,
            sandboxes: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
            cgroup,
        })
    }

    /// Makes a sandbox and tells its id.
    pub fn run(&self, sandbox: &Sandbox) -> Result<String, Trouble> {
        self.runtime.block_on(self.running(sandbox))
    }

    /// Makes them all at once and tells their ids in the same order.
    pub fn run_together(&self, sandboxes: &[Sandbox]) -> Vec<Result<String, Trouble>> {
        self.together(sandboxes.iter().map(|sandbox| self.running(sandbox)))
    }

    fn running(&self, sandbox: &Sandbox) -> impl Future<Output = Result<String, Trouble>> + Send + use<> {
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox.config(&self.cgroup)),
            runtime_handler: String::new(),
        };
        let mut client = self.sandboxes.clone();
        async move {
            let answer = client.run_pod_sandbox(request).await;
            Ok(taken("RunPodSandbox", answer)?.pod_sandbox_id)
        }
    }

    /// Stops a sandbox: its network is taken down.
    pub fn stop(&self, id: &str) -> Result<(), Trouble> {
        self.runtime.block_on(self.stopping(id))
    }

    /// Stops them all at once.
    pub fn stop_together(&self, ids: &[String]) -> Vec<Result<(), Trouble>> {
        self.together(ids.iter().map(|id| self.stopping(id)))
    }

    fn stopping(&self, id: &str) -> impl Future<Output = Result<(), Trouble>> + Send + use<> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        let mut client = self.sandboxes.clone();
        async move {
            let answer = client.stop_pod_sandbox(request).await;
            taken("StopPodSandbox", answer).map(drop)
        }
    }

    /// Removes a sandbox, stopped or not.
    pub fn remove(&self, id: &str) -> Result<(), Trouble> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        let mut client = self.sandboxes.clone();
        let answer = self.runtime.block_on(client.remove_pod_sandbox(request));
        taken("RemovePodSandbox", answer).map(drop)
    }

    /// What containerd knows about a sandbox.
    pub fn standing(&self, id: &str) -> Result<Standing, Trouble> {
        let call = "PodSandboxStatus";
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
        let mut client = self.sandboxes.clone();
        let answer = self.runtime.block_on(client.pod_sandbox_status(request));
        let answer = taken(call, answer)?;
        let missing = "status";
        let status = answer.status.ok_or(Trouble::Incomplete { call, missing })?;
        let network = status.network.unwrap_or_default();
        let more = network.additional_ips.into_iter().map(|more| more.ip);
        let all = std::iter::once(network.ip).chain(more);
        Ok(Standing {
            ready: status.state == i32::from(v1::PodSandboxState::SandboxReady),
            addresses: all.filter(|address| !address.is_empty()).collect(),
            netns: answer.info.get("info").and_then(|text| netns_in(text)),
        })
    }

    /// The ids of all sandboxes containerd knows.
    pub fn list(&self) -> Result<Vec<String>, Trouble> {
        let mut client = self.sandboxes.clone();
        let request = v1::ListPodSandboxRequest::default();
        let answer = self.runtime.block_on(client.list_pod_sandbox(request));
        let items = taken("ListPodSandbox", answer)?.items;
        Ok(items.into_iter().map(|item| item.id).collect())
    }

    /// The node's NetworkReady condition, as the kubelet reads it every few seconds.
    pub fn network(&self) -> Result<Condition, Trouble> {
        let call = "Status";
        let mut client = self.sandboxes.clone();
        let request = v1::StatusRequest::default();
        let answer = taken(call, self.runtime.block_on(client.status(request)))?;
        let conditions = answer.status.unwrap_or_default().conditions;
        let missing = "NetworkReady";
        let mut named = conditions.into_iter();
        let found = named.find(|condition| condition.r#type == missing);
        let found = found.ok_or(Trouble::Incomplete { call, missing })?;
        Ok(Condition { holds: found.status, reason: found.reason, message: found.message })
    }

    /// What containerd has loaded as the pods' network.
    pub fn loaded(&self) -> Result<Loaded, Trouble> {
        let mut client = self.sandboxes.clone();
        let request = v1::StatusRequest { verbose: true };
        let answer = self.runtime.block_on(client.status(request));
        Loaded::told(&taken("Status", answer)?.info)
    }

    /// Returns when calls are answered: the socket is there a little earlier.
    pub(crate) fn wait_until_serving(&self) -> Result<(), Trouble> {
        ask_until("containerd's CRI service", || match self.network() {
            Err(Trouble::Refused { .. }) => Ok(None),
            Err(trouble) => Err(trouble),
            Ok(_) => Ok(Some(())),
        })
    }

    /// Returns when the CRI service has heard of an image that was imported beside it.
    pub(crate) fn wait_for_image(&self, name: &str) -> Result<(), Trouble> {
        let request = v1::ImageStatusRequest {
            image: Some(v1::ImageSpec { image: name.into(), ..v1::ImageSpec::default() }),
            verbose: false,
        };
        ask_until("the image's arrival", || {
            let mut client = self.images.clone();
            let answer = self.runtime.block_on(client.image_status(request.clone()));
            Ok(taken("ImageStatus", answer)?.image.map(drop))
        })
    }

    /// Runs calls side by side; the answers come in the order of the calls.
    fn together<T: Send + 'static>(
        &self,
        calls: impl Iterator<Item = impl Future<Output = Result<T, Trouble>> + Send + 'static>,
    ) -> Vec<Result<T, Trouble>> {
        self.runtime.block_on(async {
            let mut set = JoinSet::new();
            for (place, call) in calls.enumerate() {
                set.spawn(async move { (place, call.await) });
            }
            let mut answers = set.join_all().await;
            answers.sort_by_key(|(place, _)| *place);
            answers.into_iter().map(|(_, answer)| answer).collect()
        })
    }
}

/// Asks again as long as the answer is no answer: each round trip is the pause before the next.
fn ask_until<T>(
    what: &'static str,
    mut ask: impl FnMut() -> Result<Option<T>, Trouble>,
) -> Result<T, Trouble> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
    }
    let within = PATIENCE;
    Err(Trouble::Late { what, within })
}

fn taken<T>(call: &'static str, answer: Result<Response<T>, Status>) -> Result<T, Trouble> {
    answer.map(Response::into_inner).map_err(|status| Trouble::Refused { call, status: Box::new(status) })
}

/// The verbose answer carries the sandbox's runtime specification as JSON text.
fn netns_in(text: &str) -> Option<PathBuf> {
    let told: Value = serde_json::from_str(text).ok()?;
    let namespaces = told.pointer("/runtimeSpec/linux/namespaces")?.as_array()?;
    let network = namespaces.iter().find(|one| one["type"] == "network")?;
    network["path"].as_str().map(PathBuf::from)
}
