//! Out of the chain as the agent ends.

use super::Healing;
use crate::agent::bulletin::Stage;
use crate::host::settings::Mode;
use serde_json::json;
use std::time::{Duration, Instant};

/// How long an agent that ends tries to leave the chain, also in a conflict. Its pod has 30 s
/// (`terminationGracePeriodSeconds`), and up to eleven are over by then: callers that wait for a pod are
/// answered, and the API server is asked twice what has become of the DaemonSet.
const PARTING: Duration = Duration::from_secs(8);

impl Healing<'_> {
    /// Goes out of the chain, in as many turns as it takes and there is time for: nobody will be here to
    /// do more.
    pub(crate) fn leave(&mut self) {
        self.following.good.options.mode = Mode::Leave;
        let until = Instant::now() + PARTING;
        loop {
            let next = self.keep(Instant::now());
            self.post();
            let left = until.saturating_duration_since(Instant::now());
            match self.posted.stage {
                Stage::Left { .. } => return,
                _ if left.is_zero() => break,
                _ => drop(self.rest(&next.within(left), None)),
            }
        }
        let hint = "to take the node out of the chain, run gybe uninstall on it";
        let more = json!({ "missing": self.posted.missing, "hint": hint });
        self.told.news("error", "gybe node: the chain still has our entry, and there is no more time", more);
    }
}
