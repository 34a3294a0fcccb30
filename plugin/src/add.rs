//! ADD: the pod's connections go through its proxy before its first process starts.
//!
//! Whatever can be refused is refused before the namespace is entered, so bad input changes nothing.

use crate::conf::{PluginConf, unknown_keys};
use crate::decide::unclear_variables;
use crate::error::PluginError;
use crate::families::ipv6_left_alone;
use crate::reply::Reply;
use crate::request::Request;
use crate::result;
use crate::wanted::{self, Wanted};

pub(crate) fn add(request: &Request) -> Result<Reply, PluginError> {
    let members = request.network.members();
    let answer = result::to_hand_on(&request.network)?;
    let conf = PluginConf::read(members)?;
    let unknown = unknown_keys(members);
    if !unknown.is_empty() {
        tracing::warn!(keys = unknown.join(", "), "gybe-cni cmdAdd: keys nobody knows in the configuration");
    }
    match wanted::wanted(request, &conf)? {
        Wanted::LeaveAlone(reason, pod) => {
            tracing::info!(pod, decision = "leave alone", reason = %reason, "gybe-cni cmdAdd");
        }
        Wanted::Redirect(subject) => {
            let unclear = unclear_variables(&subject.facts).join(", ");
            let (pod, tool) = (subject.pod.to_string(), subject.backend.name());
            let done = subject.inside(&conf, |redirection, backend| redirection.apply(backend))?;
            let left = ipv6_left_alone(done.families, &done.addresses);
            let families = format!("{:?}", done.families);
            tracing::info!(
                pod,
                decision = "redirect",
                tool,
                families,
                ipv6_left_alone = left,
                unclear,
                "gybe-cni cmdAdd"
            );
        }
    }
    Ok(Reply::Answer(answer))
}
