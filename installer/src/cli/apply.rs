//! `gybe apply`: make a namespace hold exactly the rules a wish asks for.

use super::answer::{Answer, Failure};
use super::backend::BackendArg;
use super::namespace::{self, NetnsArg};
use super::wish::{Asked, Place, WishArgs};
use clap::Args;
use gybe_netfilter::redirection::Redirection;
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
        let backend = self.backend.choose()?;
        let netns = self.netns.open_to_change()?;
        let path = self.netns.path().display();
        let addresses = namespace::addresses(&netns, self.netns.path())?;
        let place = Place::Namespace(addresses);
        let policy = match wish.asked(&place, InitContainer::Counts)? {
            Asked::Redirect(policy) => policy,
            Asked::LeaveAlone(reason) => {
                let text = format!("{} is left alone: {reason}\n", wish.origin());
                return Ok(Answer::yes(text, json!({ "applied": false, "left_alone": reason })));
            }
        };
        let redirection = Redirection::of(&policy);
        let rules = redirection.rules.rules().count();
        let applied = namespace::inside(&netns, self.netns.path(), || redirection.apply(&*backend))?;
        applied.map_err(|why| {
            let hint = why.hint();
            Failure::because(format!("cannot redirect {path}"), why).hinting(hint)
        })?;
        let text = format!("{} is in force in {path}: {rules} rules, by {}\n", wish.origin(), backend.name());
        let json = json!({ "applied": true, "backend": backend.name(), "rules": rules });
        Ok(Answer::yes(text, json).noting(place.notes(&policy)))
    }
}
