//! `gybe pod-facts`: what gybe-cni runs when its configuration names a kubeconfig.

use super::answer::{Answer, Failure};
use crate::agent::cluster::{self, Cluster};
use clap::Args;
use gybe_plugin::bounded_read;
use gybe_plugin::facts::wire::MAX_REQUEST_BYTES;
use serde_json::Value;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Ask the API server about one pod, for gybe-cni: a question line on stdin, an answer line on stdout.
#[derive(Debug, Args)]
pub(super) struct PodFactsArgs {
    /// Who to ask, and who asks: its current context
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// How long the question, the asking and the answer may take together
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 2000)]
    deadline_ms: u32,
}

impl PodFactsArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let until = Instant::now() + Duration::from_millis(self.deadline_ms.into());
        let question = bounded_read::to_end(std::io::stdin().as_fd(), MAX_REQUEST_BYTES, until)
            .map_err(|why| Failure::because("the question on stdin cannot be read", why))?;
        let cluster = Cluster::Kubeconfig(self.kubeconfig.clone());
        let answer = cluster::pod_facts(&cluster, &question, until)
            .map_err(|why| Failure::because("what stdin asks is", why))?;
        let json: Value =
            serde_json::from_str(&answer).map_err(|why| Failure::because("the answer is no JSON", why))?;
        Ok(Answer::yes(answer, json))
    }
}
