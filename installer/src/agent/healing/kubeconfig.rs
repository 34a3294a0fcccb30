//! The kubeconfig in the loop: written before the conf that names it, and gone after the last that did.

use super::Healing;
use crate::agent::credentials::{self, Kept};
use crate::agent::token::Validity;
use crate::error::chain;
use crate::host::settings::{Mode, PodSource, ProgramRemoval};
use serde_json::json;
use std::time::{Instant, SystemTime};

impl Healing<'_> {
    /// Before the conf that names it. Its fault keeps nobody from the chain: the agent is asked first.
    pub(super) fn credentials(&mut self) -> Result<(), String> {
        let settings = &self.following.good;
        self.posted.token_ends = None;
        if settings.choices.pod_source == PodSource::Agent || settings.choices.mode == Mode::Leave {
            return Ok(());
        }
        let kept = credentials::keep(&settings.ground, SystemTime::now());
        let (more, failed) = (json!({}), kept.as_ref().err().map(|why| chain(why)));
        self.told.state("kubeconfig", ("error", failed.clone()), more);
        match kept {
            Ok(kept) => {
                self.about_token(&kept);
                Ok(())
            }
            Err(_) => {
                self.posted.counts.kubeconfig_failures += 1;
                Err(failed.unwrap_or_default())
            }
        }
    }

    fn about_token(&mut self, kept: &Kept) {
        let path = self.following.good.ground.kubeconfig();
        if kept.news {
            self.told.news("info", "gybe node: wrote the kubeconfig", json!({ "path": path }));
        }
        self.posted.token_ends = kept.ends;
        let sentence = match kept.validity {
            Validity::Unlimited | Validity::For(_) => None,
            Validity::EndsSoon(_) => Some("the token in the kubeconfig ends soon, and no newer one has come"),
            Validity::Expired => Some("the token in the kubeconfig has expired"),
        };
        let hint = "the kubelet renews it: look at its log, and at the clocks of node and API server";
        self.told.state("token", ("warn", sentence.map(str::to_owned)), json!({ "hint": hint }));
    }

    /// After the conf that named it.
    pub(super) fn forget_credentials(&mut self) {
        let settings = &self.following.good;
        let leaves = settings.choices.mode == Mode::Leave;
        let asked = if leaves {
            self.leaving.burial(Instant::now()) == ProgramRemoval::Deferred
        } else {
            settings.choices.pod_source == PodSource::Api
        };
        if asked {
            return;
        }
        match credentials::drop_it(&settings.ground) {
            Ok(true) => self.told.news("info", "gybe node: removed the kubeconfig", json!({})),
            Ok(false) => {}
            Err(why) => self.told.state("kubeconfig", ("error", Some(chain(&why))), json!({})),
        }
    }
}
