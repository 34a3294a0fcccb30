//! What a pass comes to: what is posted of it, what is told, and when the next is due.

use super::Healing;
use crate::agent::bulletin::Stage;
use crate::host::apply::Busy;
use crate::host::directory::Directory;
use crate::host::image::PLUGIN;
use crate::host::pass::{Pass, RESYNC, RETRY};
use crate::host::plan::Plan;
use crate::host::problem::Problem;
use crate::host::settings::Mode;
use crate::retry::NextTurn;
use gybe_netfilter::hint::Hint;
use serde_json::json;
use std::time::{Duration, Instant};

impl Healing<'_> {
    /// `woken` is when this turn began.
    pub(super) fn account(&mut self, pass: &Pass, woken: Instant) -> NextTurn {
        let mut problems = pass.left.problems.iter();
        self.posted.cut_off = problems.find(|it| matches!(it, Problem::Deleted(_))).map(ToString::to_string);
        let (missing, notes) = sentences(self.is_as_it_should_be(pass), &pass.left);
        self.posted.missing = missing;
        self.posted.notes = notes.into_iter().chain(self.following.good.notes.iter().cloned()).collect();
        let healed = self.healed(woken);
        self.count(pass);
        self.tell(pass, healed);
        self.stage(pass);
        self.next(pass)
    }

    /// In: a pod that is started now is redirected. Out: nothing of ours is left to be taken out.
    fn is_as_it_should_be(&self, pass: &Pass) -> bool {
        match self.following.good.choices.mode {
            Mode::Install => pass.left.judgement.is_met(),
            Mode::Leave => pass.left.is_done(),
        }
    }

    /// Nothing could be looked at, so what was known before holds no more.
    pub(super) fn waits_for(&mut self, busy: &Busy) -> NextTurn {
        self.posted.missing = vec![busy.to_string()];
        if self.following.good.choices.mode == Mode::Leave {
            self.posted.stage = Stage::Leaving;
        }
        self.told.state("busy", ("warn", Some(busy.to_string())), json!({ "hint": busy.hint() }));
        NextTurn::After(RETRY)
    }

    /// Nobody has said what is wanted, and nothing is done by what nobody said.
    pub(super) fn waits_for_choices(&mut self) -> NextTurn {
        self.posted.missing = vec!["the node stays as it is until the ConfigMap can be followed".to_owned()];
        NextTurn::OnChange(RESYNC)
    }

    /// How long what this pass put back was undone.
    fn healed(&mut self, woken: Instant) -> Option<Duration> {
        Directory::BOTH.into_iter().filter_map(|directory| self.healed_in(directory, woken)).max()
    }

    fn healed_in(&mut self, directory: Directory, woken: Instant) -> Option<Duration> {
        let healed = self.posted.counts.healing.of_mut(directory);
        let since = self.undone.of_mut(directory);
        let (before, tally) = (healed.tally, self.memory.rewrite_counts(directory));
        healed.tally = tally;
        if tally.rewrites > before.rewrites {
            since.get_or_insert(woken);
        }
        let took = since.filter(|_| tally.repairs > before.repairs).map(|since| since.elapsed());
        if took.is_some() || !tally.is_undone {
            // Undone once more before anybody looked, it is undone anew.
            *since = tally.is_undone.then(Instant::now);
        }
        let took = took?;
        healed.took += took;
        healed.longest = healed.longest.max(took);
        Some(took)
    }

    fn count(&mut self, pass: &Pass) {
        let (is_first, counts) = (self.posted.turned.is_none(), &mut self.posted.counts);
        let failed_in = |directory| pass.refused().any(|failed| failed.change.directory() == directory);
        counts.program_failures += u64::from(failed_in(Directory::Programs));
        counts.conf_failures += u64::from(failed_in(Directory::Conf));
        counts.successes += u64::from(pass.left.is_done() && (is_first || pass.performed.done > 0));
    }

    fn tell(&mut self, pass: &Pass, healed: Option<Duration>) {
        if pass.performed.done > 0 {
            let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            let more = healed.map_or(json!({}), |took| json!({ "healed_in_us": micros(took) }));
            self.told.done(pass, more);
        }
        self.told.failures(pass);
        self.told.problems(&pass.left.problems);
        self.told.fights(&pass.conflicts);
        for directory in Directory::BOTH {
            let fight = pass.conflicts.of(directory).as_ref().map(ToString::to_string);
            let before = std::mem::replace(self.posted.fights.of_mut(directory), fight);
            let is_new = before.is_none() && pass.conflicts.of(directory).is_some();
            self.posted.counts.healing.of_mut(directory).fights += u64::from(is_new);
        }
    }

    fn stage(&mut self, pass: &Pass) {
        let settings = &self.following.good;
        if settings.choices.mode == Mode::Install {
            self.leaving.stays();
            self.posted.stage = Stage::In;
            return;
        }
        let is_out = pass.left.is_done();
        let wrote = pass.plan.changes.iter().any(|change| change.directory() == Directory::Conf);
        self.leaving.passed(is_out, wrote, Instant::now());
        let plugin_stays = settings.ground.places.programs.join(PLUGIN).symlink_metadata().is_ok();
        self.posted.stage = if is_out { Stage::Left { plugin_stays } } else { Stage::Leaving };
        let sentence = match self.posted.stage {
            Stage::Left { plugin_stays: true } => {
                Some("left; the plugin stays for sandboxes that live".to_owned())
            }
            Stage::Left { plugin_stays: false } => Some("left; nothing stays".to_owned()),
            _ => None,
        };
        self.told.state("left", ("info", sentence), json!({}));
    }

    fn next(&self, pass: &Pass) -> NextTurn {
        let rests = self.leaving.rests(Instant::now()).filter(|rest| !rest.is_zero());
        pass.next_turn().within(rests.unwrap_or(RESYNC))
    }
}

/// What keeps the node from being as it should be, and what else should be known.
fn sentences(is_well: bool, left: &Plan) -> (Vec<String>, Vec<String>) {
    let reasons = left.judgement.reasons.iter().filter(|reason| !left.problems.contains(reason));
    let (against, notes): (Vec<_>, Vec<_>) = left.problems.iter().partition(|problem| problem.blocks());
    let against = against.into_iter().chain(reasons).map(ToString::to_string);
    let against = against.chain(left.changes.iter().map(|change| format!("still to do: {change}")));
    let notes = notes.into_iter().map(ToString::to_string);
    match is_well {
        true => (Vec::new(), against.chain(notes).collect()),
        false => (against.collect(), notes.collect()),
    }
}
