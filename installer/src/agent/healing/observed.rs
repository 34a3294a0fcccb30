//! What the loop knows of the node beside its directories: who else is there, and who will still ask.

use crate::agent::incumbent::IstioAgent;
use crate::agent::stand_in::{ours, stand_in};
use crate::host::conflist::ISTIO;
use crate::host::desired::TakeOver;
use crate::host::identity::Identity;
use crate::host::observe::{HashCache, NodeDirectories, ObserveScope, look};
use crate::host::settings::{StandIn, TakeOverSetting};
use std::time::{Duration, Instant};

/// How often the cache of sandboxes is read while nothing says that it matters: a file for each.
const SELDOM: Duration = Duration::from_secs(60);

/// What was found last.
#[derive(Debug, Default)]
pub(super) struct Observed {
    looked: Option<Instant>,
    /// Which file had istio-cni's name: another one may be its own again.
    program: Option<Identity>,
    pub(super) stand_in: StandIn,
}

impl Observed {
    /// Looks after istio-cni's program: at once when it has gone, else now and then.
    pub(super) fn look(&mut self, places: &NodeDirectories, now: Instant) {
        let there = places.programs.join(ISTIO).symlink_metadata().ok().map(|it| Identity::of(&it));
        let is_due = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= SELDOM);
        if !is_due && there == self.program {
            return;
        }
        let seen = look(places, &ObserveScope::in_programs([]), &mut HashCache::default());
        if seen.lacks_descriptors() {
            return;
        }
        (self.looked, self.program) = (Some(now), there);
        self.stand_in = stand_in(&seen, ours(&places.programs));
    }
}

/// Whether an istio-cni entry may be replaced.
pub(super) fn take_over(wish: TakeOverSetting, istio: IstioAgent) -> TakeOver {
    match wish {
        TakeOverSetting::Wait if istio.may_live() => TakeOver::Waits,
        TakeOverSetting::Wait | TakeOverSetting::Now => TakeOver::Now,
    }
}
