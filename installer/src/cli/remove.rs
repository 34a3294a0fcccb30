//! `gybe remove`: nothing of ours is left in a namespace.

use super::answer::{Answer, Failure};
use super::backend::BackendArg;
use super::namespace::NetnsArg;
use clap::Args;
use gybe_netfilter::redirection;
use serde_json::json;

/// Take everything of ours out of a network namespace: rules, routes, addresses.
///
/// Whichever backend has written it, or the one that is named. Nothing there already is success. What
/// others wrote is not touched.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    backend: BackendArg,
}

impl RemoveArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let there = self.netns.open_to_change()?;
        let tools = self.backend.readers(&there)?;
        let removed = there.inside(|| match self.backend.setting.named() {
            Some(_) => redirection::remove_by(tools.iter().map(|tool| &**tool)),
            None => redirection::remove_all(),
        })?;
        removed.map_err(|why| Failure::hinted(format!("cannot clean up {}", there.path()), why))?;
        let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
        let text = format!("nothing of ours is left in {}\n", there.path());
        Ok(Answer::yes(text, json!({ "removed": true, "backends": names })))
    }
}
