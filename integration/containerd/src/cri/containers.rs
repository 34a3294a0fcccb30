//! The kubelet's calls for a container inside a sandbox.

use k8s_cri::v1;
use serde_json::Value;

use super::{Cri, taken};
use crate::{Sandbox, Trouble};

/// What containerd says about a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lived {
    /// Whether its process runs.
    pub running: bool,
    /// How it ended, if it has.
    pub exit_code: i32,
    /// Its process, as containerd numbers it.
    pub pid: Option<u64>,
}

impl Cri {
    /// Makes a container in a sandbox, starts it, and tells its id.
    pub fn start(
        &self,
        (id, sandbox): (&str, &Sandbox),
        container: v1::ContainerConfig,
    ) -> Result<String, Trouble> {
        let mut client = self.sandboxes.clone();
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: id.into(),
            config: Some(container),
            sandbox_config: Some(sandbox.config(&self.cgroup)),
        };
        let made = self.runtime.block_on(client.create_container(request));
        let container_id = taken("CreateContainer", made)?.container_id;
        let request = v1::StartContainerRequest { container_id: container_id.clone() };
        taken("StartContainer", self.runtime.block_on(client.start_container(request)))?;
        Ok(container_id)
    }

    /// What containerd knows about a container.
    pub fn lived(&self, id: &str) -> Result<Lived, Trouble> {
        let call = "ContainerStatus";
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: true };
        let mut client = self.sandboxes.clone();
        let answer = taken(call, self.runtime.block_on(client.container_status(request)))?;
        let status = answer.status.ok_or(Trouble::Incomplete { call, missing: "status" })?;
        let told = answer.info.get("info").and_then(|text| serde_json::from_str::<Value>(text).ok());
        Ok(Lived {
            running: status.state == i32::from(v1::ContainerState::ContainerRunning),
            exit_code: status.exit_code,
            pid: told.and_then(|told| told.get("pid")?.as_u64()),
        })
    }

    /// Has it told to end, and killed after so many seconds.
    pub fn end(&self, id: &str, seconds: i64) -> Result<(), Trouble> {
        let request = v1::StopContainerRequest { container_id: id.into(), timeout: seconds };
        let mut client = self.sandboxes.clone();
        taken("StopContainer", self.runtime.block_on(client.stop_container(request))).map(drop)
    }
}
