//! STATUS: would ADD work on this node?
//!
//! It judges the node, never the agent: a failing STATUS keeps every pod, and so the agent itself,
//! from starting. So whoever tells facts (socket, kubeconfig, directory) is not looked for. What is
//! wrong is told with CNI's code 50; 51 is for plugins whose absence cuts off running pods, and ours
//! keep their rules.

use crate::conf::PluginConf;
use crate::error::PluginError;
use crate::reply::Reply;
use crate::request::Request;
use crate::wanted;

/// Reads what ADD would read first and finds what it would write with; both without a trace.
pub(crate) fn status(request: &Request) -> Result<Reply, PluginError> {
    let conf = PluginConf::read(request.network.members())?;
    wanted::backend(conf.backend)?;
    Ok(Reply::Nothing)
}
