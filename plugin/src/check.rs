//! CHECK: the way of ADD up to the rules, which are then compared instead of written.

use crate::conf::PluginConf;
use crate::error::PluginError;
use crate::reply::Reply;
use crate::request::Request;
use crate::wanted::{self, Wanted};

pub(crate) fn check(request: &Request) -> Result<Reply, PluginError> {
    let conf = PluginConf::read(request.network.members())?;
    match wanted::wanted(request, &conf)? {
        Wanted::LeaveAlone(..) => Ok(Reply::Nothing),
        Wanted::Redirect(subject) => {
            let found = subject.inside(&conf, |redirection, backend, _| redirection.differences(backend))?;
            let differences: Vec<_> = found.outcome.iter().map(ToString::to_string).collect();
            if differences.is_empty() { Ok(Reply::Nothing) } else { Err(PluginError::Drifted(differences)) }
        }
    }
}
