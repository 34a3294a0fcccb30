//! `gybe apply`: make a namespace hold exactly the rules a wish asks for.

use super::answer::{Answer, Failure};
use super::backend::{self, BackendArg};
use super::namespace::NetnsArg;
use super::wish::{Asked, Place, WishArgs};
use clap::Args;
use gybe_plugin::gates::InitContainer;
use serde_json::json;

/// Make a network namespace hold exactly the rules a policy or a pod asks for.
///
/// Rules of ours that are there are replaced, those of others are not touched. Twice is the same
/// as once. A pod that is left alone has nothing written, and nothing taken away.
#[derive(Debug, Args)]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    netns: NetnsArg,
    #[command(flatten)]
    wish: WishArgs,
    #[command(flatten)]
    backend: BackendArg,
}

impl ApplyArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let wish = self.wish.one()?;
        let there = self.netns.open_to_change()?;
        let place = Place::Namespace(there.addresses()?);
        let policy = match wish.asked(&place, InitContainer::Counts)? {
            Asked::Redirect(policy) => policy,
            Asked::LeaveAlone(reason) => {
                let text = format!("{} is left alone: {reason}\n", wish.origin());
                return Ok(Answer::yes(text, json!({ "applied": false, "left_alone": reason })));
            }
        };
        // Last: where nothing is known about the node it takes a probe.
        let writer = self.backend.writer()?;
        let (redirection, notes) = backend::redirection(&writer, &policy)?;
        let backend = &*writer.backend;
        let rules = redirection.rules.rules().count();
        let applied = there.inside(|| redirection.apply(backend))?;
        let applied =
            applied.map_err(|why| Failure::hinted(format!("cannot redirect {}", there.path()), why))?;
        let (origin, path, name) = (wish.origin(), there.path(), backend.name());
        let text = format!("{origin} is in force in {path}: {rules} rules, by {name}\n");
        let json = json!({ "applied": true, "backend": name, "rules": rules });
        let other_nat = backend::notes(&applied.other_nat);
        Ok(Answer::yes(text, json).noting([place.notes(&wish, &policy), notes, other_nat].concat()))
    }
}
