//! CHECK: compares the rules and routes in the pod's namespace with those that ADD writes.
//!
//! Other owners' rules fail no CHECK: only `gybe verify` follows connections through all rules and finds out
//! whether they change one (docs/VERDICT.md).

use crate::conf::PluginConf;
use crate::error::PluginError;
use crate::reply::Reply;
use crate::request::Request;
use crate::target::{self, CallTarget};
use gybe_netfilter::apply::presence::Presence;

pub(crate) fn check(request: &Request) -> Result<Reply, PluginError> {
    let conf = PluginConf::read(request.network.members())?;
    let CallTarget::Redirect(target) = target::find(request, &conf)? else { return Ok(Reply::Empty) };
    let pod = target.pod.to_string();
    let report = target.in_namespace(&conf, |redirection, backend, _| {
        let presence = Presence::look()?;
        Ok((redirection.differences(backend, &presence)?, presence.other_nat))
    })?;
    let (differences, other_owners) = report.outcome;
    for owner in &other_owners {
        tracing::warn!(pod, beside = %owner, "gybe-cni cmdCheck: other owners' rules translate addresses here");
    }
    match differences.is_empty() {
        true => Ok(Reply::Empty),
        false => Err(PluginError::Drifted(differences.iter().map(ToString::to_string).collect())),
    }
}
