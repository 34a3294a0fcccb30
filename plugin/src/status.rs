//! STATUS: would ADD work on this node?
//!
//! It judges the node, never the agent: a failing STATUS keeps every pod, and so the agent itself,
//! from starting. So whoever tells facts (socket, kubeconfig, directory) is not looked for. What is
//! wrong is told with CNI's code 50; 51 is for plugins whose absence cuts off running pods, and ours
//! keep their rules.

use crate::backend::{SelectError, Selection};
use crate::conf::PluginConf;
use crate::error::PluginError;
use crate::reply::Reply;
use crate::request::Request;

/// Reads what ADD would read first, and asks what is known about what it would write with: tried out on
/// this node, and kept. Asked every 5 s it reads two small files. ADD takes the operator's word; here it
/// is doubted, since a node whose word does not work refuses every pod of the mesh.
pub(crate) fn status(request: &Request) -> Result<Reply, PluginError> {
    let conf = PluginConf::read(request.network.members())?;
    match Selection::of(&conf).verified() {
        Ok(_) => Ok(Reply::Nothing),
        // Nobody could try it out, or somebody is at it: nothing is known against the node.
        Err(SelectError::Probe(fault)) => {
            tracing::warn!(%fault, "gybe-cni cmdStatus: not judged");
            Ok(Reply::Nothing)
        }
        Err(fault) => Err(fault.into()),
    }
}
