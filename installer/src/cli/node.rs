//! `gybe node`: the node agent, in the foreground.

use super::answer::{Answer, Failure};
use crate::node::{self, PodsFrom};
use clap::Args;
use gybe_plugin::conf::SOCKET;
use serde_json::json;
use std::path::PathBuf;

/// Run the node agent: tell gybe-cni about this node's pods, and print its log lines on stderr.
///
/// Serves until SIGTERM. Beside the socket for facts stands log.sock, to which gybe-cni sends its log.
#[derive(Debug, Args)]
pub(super) struct NodeArgs {
    /// Know pods by the manifests in this directory, read again when they change; needs no cluster
    #[arg(long, value_name = "DIR")]
    pods_from: PathBuf,
    /// Where gybe-cni asks, as its facts.socket says
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

impl NodeArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let pods = PodsFrom::new(&self.pods_from);
        match node::serve(&pods, &self.socket) {
            Ok(()) => Ok(Answer::yes("", json!({ "stopped": true }))),
            Err(why) => Err(Failure::because("the node agent cannot run", why)),
        }
    }
}
