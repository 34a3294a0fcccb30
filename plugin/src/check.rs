//! CHECK: the way of ADD up to the rules, which are then compared instead of written.
//!
//! Other owners' rules fail no CHECK: whether they change a connection only `gybe verify` finds out, which
//! follows connections through all of them (docs/VERDICT.md).

use crate::conf::PluginConf;
use crate::error::PluginError;
use crate::reply::Reply;
use crate::request::Request;
use crate::wanted::{self, Wanted};
use gybe_netfilter::presence::Presence;

pub(crate) fn check(request: &Request) -> Result<Reply, PluginError> {
    let conf = PluginConf::read(request.network.members())?;
    match wanted::wanted(request, &conf)? {
        Wanted::LeaveAlone(..) => Ok(Reply::Nothing),
        Wanted::Redirect(subject) => {
            let pod = subject.pod.to_string();
            let found = subject.inside(&conf, |redirection, backend, _| {
                let presence = Presence::look()?;
                Ok((redirection.differences(backend, &presence)?, presence.other_nat))
            })?;
            let (differences, other_nat) = found.outcome;
            for beside in &other_nat {
                tracing::warn!(pod, %beside, "gybe-cni cmdCheck: other owners' rules translate addresses here");
            }
            let differences: Vec<_> = differences.iter().map(ToString::to_string).collect();
            if differences.is_empty() { Ok(Reply::Nothing) } else { Err(PluginError::Drifted(differences)) }
        }
    }
}
