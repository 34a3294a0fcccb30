//! The kubelet's calls over containerd's socket: sandboxes, containers, and the node's status.

use std::collections::HashMap;
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

use crate::{HarnessError, Sandbox};

/// Longer than a program takes on a busy machine.
const EXEC_SECONDS: i64 = 30;

/// What the plugin `bridge` says when duplicate address detection takes longer than the 5 s that it waits: the kernel
/// has one queue for the addresses of all namespaces, which is long on a busy machine. The kubelet tries again, too.
pub const STILL_TENTATIVE: &str = "still has tentative addresses";
/// The most attempts to start a sandbox. Only [`STILL_TENTATIVE`] causes another one.
pub const ATTEMPTS: usize = 5;

/// Longer than any call takes on a busy machine.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(600);

/// A connection to containerd.
#[derive(Debug)]
pub struct Cri {
    executor: Runtime,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    cgroup: String,
}

/// containerd's status of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatus {
    /// Whether its process runs. A stopped sandbox is listed until it is removed.
    pub ready: bool,
    /// All addresses, the primary one first.
    pub addresses: Vec<String>,
    /// The path of its network namespace on the test node.
    pub netns: Option<PathBuf>,
}

/// containerd's status of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Whether its process runs.
    pub running: bool,
    /// Its start, in nanoseconds since 1970.
    pub started_at: i64,
    /// Its exit code, if it has ended.
    pub exit_code: i32,
    /// Its process id in containerd's PID namespace.
    pub pid: Option<u64>,
}

/// A condition of the node, such as `NetworkReady`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Whether it holds.
    pub holds: bool,
    /// The reason in one word.
    pub reason: String,
    /// The reason in full.
    pub message: String,
}

/// The CNI network that containerd has loaded, and the result of its last attempt to load one.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedNetwork {
    /// The conflist of the pods' network as it was in the file, if there is one.
    pub conflist: Option<Value>,
    /// The plugins that containerd runs for a pod, with those of drop-ins.
    pub plugins: Vec<String>,
    /// `OK`, or the error of the last attempt.
    pub outcome: String,
}

impl Cri {
    /// Connects. Sandboxes are placed below `cgroup`.
    pub fn connect(socket: &Path, cgroup: String) -> Result<Cri, HarnessError> {
        let executor = Builder::new_current_thread().enable_all().build();
        let executor = executor.map_err(HarnessError::file("epoll"))?;
        let failed = |source| HarnessError::Connect { path: socket.to_path_buf(), source };
        let address = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(address).map_err(failed)?.timeout(CALL_TIMEOUT);
        let channel = executor.block_on(endpoint.connect()).map_err(failed)?;
        Ok(Cri {
            executor,
            runtime: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
            cgroup,
        })
    }

    /// Creates and starts a sandbox and returns its id.
    pub fn run(&self, sandbox: &Sandbox) -> Result<String, HarnessError> {
        self.executor.block_on(self.run_request(sandbox))
    }

    /// Creates and starts sandboxes at the same time and returns their ids in the same order.
    pub fn run_concurrently(&self, sandboxes: &[Sandbox]) -> Vec<Result<String, HarnessError>> {
        self.concurrently(sandboxes.iter().map(|sandbox| self.run_request(sandbox)))
    }

    /// Starts sandboxes and returns their ids in the same order; ten at a time, so that few have to be tried again.
    pub fn run_all(&self, sandboxes: &[Sandbox]) -> Result<Vec<String>, HarnessError> {
        sandboxes.chunks(10).flat_map(|some| self.run_concurrently(some)).collect()
    }

    fn run_request(
        &self,
        sandbox: &Sandbox,
    ) -> impl Future<Output = Result<String, HarnessError>> + Send + use<> {
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox.config(&self.cgroup)),
            runtime_handler: String::new(),
        };
        let mut client = self.runtime.clone();
        async move {
            let mut response = client.run_pod_sandbox(request.clone()).await;
            for _ in 1..ATTEMPTS {
                let is_late = |status: &Status| status.message().contains(STILL_TENTATIVE);
                if !response.as_ref().is_err_and(is_late) {
                    break;
                }
                response = client.run_pod_sandbox(request.clone()).await;
            }
            Ok(response_of("RunPodSandbox", response)?.pod_sandbox_id)
        }
    }

    /// Stops a sandbox; containerd removes its network.
    pub fn stop(&self, id: &str) -> Result<(), HarnessError> {
        self.executor.block_on(self.stop_request(id))
    }

    /// Stops sandboxes at the same time.
    pub fn stop_concurrently(&self, ids: &[String]) -> Vec<Result<(), HarnessError>> {
        self.concurrently(ids.iter().map(|id| self.stop_request(id)))
    }

    fn stop_request(&self, id: &str) -> impl Future<Output = Result<(), HarnessError>> + Send + use<> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        let mut client = self.runtime.clone();
        async move {
            let response = client.stop_pod_sandbox(request).await;
            response_of("StopPodSandbox", response).map(drop)
        }
    }

    /// Removes a sandbox, stopped or not.
    pub fn remove(&self, id: &str) -> Result<(), HarnessError> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        let mut client = self.runtime.clone();
        let response = self.executor.block_on(client.remove_pod_sandbox(request));
        response_of("RemovePodSandbox", response).map(drop)
    }

    /// Stops and removes a sandbox.
    pub fn delete(&self, id: &str) -> Result<(), HarnessError> {
        self.stop(id)?;
        self.remove(id)
    }

    /// Returns the status of a sandbox.
    pub fn sandbox_status(&self, id: &str) -> Result<SandboxStatus, HarnessError> {
        let call = "PodSandboxStatus";
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: true };
        let mut client = self.runtime.clone();
        let response = self.executor.block_on(client.pod_sandbox_status(request));
        let response = response_of(call, response)?;
        let status = response.status.ok_or(HarnessError::Incomplete { call, missing: "status" })?;
        let network = status.network.unwrap_or_default();
        let additional = network.additional_ips.into_iter().map(|additional| additional.ip);
        let addresses = std::iter::once(network.ip).chain(additional);
        Ok(SandboxStatus {
            ready: status.state == i32::from(v1::PodSandboxState::SandboxReady),
            addresses: addresses.filter(|address| !address.is_empty()).collect(),
            netns: response.info.get("info").and_then(|text| netns_in(text)),
        })
    }

    /// Returns the ids of all sandboxes.
    pub fn list(&self) -> Result<Vec<String>, HarnessError> {
        let mut client = self.runtime.clone();
        let request = v1::ListPodSandboxRequest::default();
        let response = self.executor.block_on(client.list_pod_sandbox(request));
        let items = response_of("ListPodSandbox", response)?.items;
        Ok(items.into_iter().map(|item| item.id).collect())
    }

    /// Creates and starts a container in a sandbox and returns its id.
    pub fn start_container(
        &self,
        sandbox_id: &str,
        sandbox: &Sandbox,
        container: v1::ContainerConfig,
    ) -> Result<String, HarnessError> {
        let mut client = self.runtime.clone();
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.into(),
            config: Some(container),
            sandbox_config: Some(sandbox.config(&self.cgroup)),
        };
        let created = self.executor.block_on(client.create_container(request));
        let container_id = response_of("CreateContainer", created)?.container_id;
        let request = v1::StartContainerRequest { container_id: container_id.clone() };
        response_of("StartContainer", self.executor.block_on(client.start_container(request)))?;
        Ok(container_id)
    }

    /// Returns the status of a container.
    pub fn container_status(&self, id: &str) -> Result<ContainerStatus, HarnessError> {
        let call = "ContainerStatus";
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: true };
        let mut client = self.runtime.clone();
        let response = response_of(call, self.executor.block_on(client.container_status(request)))?;
        let status = response.status.ok_or(HarnessError::Incomplete { call, missing: "status" })?;
        let info = response.info.get("info").and_then(|text| serde_json::from_str::<Value>(text).ok());
        Ok(ContainerStatus {
            running: status.state == i32::from(v1::ContainerState::ContainerRunning),
            started_at: status.started_at,
            exit_code: status.exit_code,
            pid: info.and_then(|info| info.get("pid")?.as_u64()),
        })
    }

    /// Runs a program in a container, as the kubelet does for a probe; returns its exit code and its standard output.
    pub fn exec(&self, id: &str, command: &[String]) -> Result<(i32, String), HarnessError> {
        let request =
            v1::ExecSyncRequest { container_id: id.into(), cmd: command.to_vec(), timeout: EXEC_SECONDS };
        let mut client = self.runtime.clone();
        let response = response_of("ExecSync", self.executor.block_on(client.exec_sync(request)))?;
        Ok((response.exit_code, String::from_utf8_lossy(&response.stdout).into_owned()))
    }

    /// Stops a container; containerd kills it after so many seconds.
    pub fn stop_container(&self, id: &str, seconds: i64) -> Result<(), HarnessError> {
        let request = v1::StopContainerRequest { container_id: id.into(), timeout: seconds };
        let mut client = self.runtime.clone();
        response_of("StopContainer", self.executor.block_on(client.stop_container(request))).map(drop)
    }

    /// Returns the node's `NetworkReady` condition, which the kubelet reads every few seconds.
    pub fn network_condition(&self) -> Result<Condition, HarnessError> {
        let missing = "NetworkReady";
        let conditions = self.status(false)?.status.unwrap_or_default().conditions;
        let found = conditions.into_iter().find(|condition| condition.r#type == missing);
        let found = found.ok_or(HarnessError::Incomplete { call: "Status", missing })?;
        Ok(Condition { holds: found.status, reason: found.reason, message: found.message })
    }

    /// Returns the pods' network as containerd has loaded it.
    pub fn loaded_network(&self) -> Result<LoadedNetwork, HarnessError> {
        LoadedNetwork::from_info(&self.status(true)?.info)
    }

    fn status(&self, verbose: bool) -> Result<v1::StatusResponse, HarnessError> {
        let request = v1::StatusRequest { verbose };
        response_of("Status", self.executor.block_on(self.runtime.clone().status(request)))
    }

    /// Waits until containerd answers calls: it makes the socket a little earlier.
    pub(crate) fn wait_until_serving(&self) -> Result<(), HarnessError> {
        poll_until("containerd's CRI service", || match self.network_condition() {
            Err(HarnessError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
            Ok(_) => Ok(true),
        })
    }

    /// Waits until the CRI service has an image that `ctr` imported.
    pub(crate) fn wait_for_image(&self, name: &str) -> Result<(), HarnessError> {
        poll_until("the import of the image", || self.has_image(name))
    }

    /// Reports whether an image of this name is in the list of images.
    pub fn has_image(&self, name: &str) -> Result<bool, HarnessError> {
        let mut client = self.images.clone();
        let response = self.executor.block_on(client.list_images(v1::ListImagesRequest::default()));
        let images = response_of("ListImages", response)?.images;
        Ok(images.iter().any(|image| image.repo_tags.iter().any(|tag| tag == name)))
    }

    /// Makes calls at the same time and returns their results in the order of the calls.
    fn concurrently<T: Send + 'static>(
        &self,
        calls: impl Iterator<Item = impl Future<Output = Result<T, HarnessError>> + Send + 'static>,
    ) -> Vec<Result<T, HarnessError>> {
        self.executor.block_on(async {
            let mut set = JoinSet::new();
            for (index, call) in calls.enumerate() {
                set.spawn(async move { (index, call.await) });
            }
            let mut results = set.join_all().await;
            results.sort_by_key(|(index, _)| *index);
            results.into_iter().map(|(_, result)| result).collect()
        })
    }
}

impl LoadedNetwork {
    /// Reads the verbose part of the response to `Status`.
    fn from_info(info: &HashMap<String, String>) -> Result<LoadedNetwork, HarnessError> {
        let member = |missing| info.get(missing).ok_or(HarnessError::Incomplete { call: "Status", missing });
        let outcome = member("lastCNILoadStatus")?.clone();
        let network = pods_network(member("cniconfig")?);
        let conflist = network.as_ref().and_then(|it| serde_json::from_str(it.get("Source")?.as_str()?).ok());
        let plugins = network.as_ref().and_then(|it| it.get("Plugins")?.as_array());
        let kind = |plugin: &Value| Some(plugin.pointer("/Network/type")?.as_str()?.to_owned());
        let plugins = plugins.into_iter().flatten().filter_map(kind).collect();
        Ok(LoadedNetwork { conflist, plugins, outcome })
    }
}

/// Returns the network that is not loopback, with the text of its file.
fn pods_network(cni_config: &str) -> Option<Value> {
    let config: Value = serde_json::from_str(cni_config).ok()?;
    let networks = config.pointer("/Networks")?.as_array()?;
    let mut networks = networks.iter().filter_map(|network| network.get("Config"));
    networks.find(|network| network.get("Name").is_none_or(|name| name != "cni-loopback")).cloned()
}

/// Repeats a call until it returns true. The duration of the call is the interval.
fn poll_until(
    what: &'static str,
    mut call: impl FnMut() -> Result<bool, HarnessError>,
) -> Result<(), HarnessError> {
    let start = Instant::now();
    while start.elapsed() < CALL_TIMEOUT {
        if call()? {
            return Ok(());
        }
    }
    Err(HarnessError::Timeout { what, within: CALL_TIMEOUT })
}

fn response_of<T>(call: &'static str, result: Result<Response<T>, Status>) -> Result<T, HarnessError> {
    let refused = |status| HarnessError::Refused { call, status: Box::new(status) };
    result.map(Response::into_inner).map_err(refused)
}

/// Reads the network namespace from the sandbox's runtime specification in a verbose response.
fn netns_in(text: &str) -> Option<PathBuf> {
    let info: Value = serde_json::from_str(text).ok()?;
    let namespaces = info.pointer("/runtimeSpec/linux/namespaces")?.as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    network["path"].as_str().map(PathBuf::from)
}
