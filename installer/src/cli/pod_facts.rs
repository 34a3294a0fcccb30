//! `gybe pod-facts`: looks up one pod for gybe-cni, which runs it when its configuration names a kubeconfig.

use super::output::{CommandError, CommandOutput};
use crate::cluster::{self, Cluster};
use clap::Args;
use gybe_plugin::bounded_read;
use gybe_plugin::facts::wire::MAX_REQUEST_BYTES;
use serde_json::Value;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Look up one pod at the API server for gybe-cni
///
/// Reads one request line from stdin and writes one response line to stdout. gybe-cni runs this command if
/// its configuration names a kubeconfig.
#[derive(Debug, Args)]
#[command(after_help = super::style::examples(&["gybe pod-facts --kubeconfig /etc/cni/net.d/gybe-kubeconfig < request"]))]
pub(super) struct PodFactsArgs {
    /// The kubeconfig with the API server and the credentials: its current context
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The deadline for reading the request, the lookup and the response together
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000)]
    deadline_ms: u32,
}

impl PodFactsArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let until = Instant::now() + Duration::from_millis(self.deadline_ms.into());
        let request = bounded_read::to_end(std::io::stdin().as_fd(), MAX_REQUEST_BYTES, until)
            .map_err(|why| CommandError::because("the request on stdin cannot be read", why))?;
        let cluster = Cluster::Kubeconfig { path: self.kubeconfig.clone(), context: None };
        let response = cluster::pod_facts(&cluster, &request, until)
            .map_err(|why| CommandError::because("the request on stdin is", why))?;
        let json: Value = serde_json::from_str(&response)
            .map_err(|why| CommandError::because("the response is not JSON", why))?;
        Ok(CommandOutput::done(response, json))
    }
}
