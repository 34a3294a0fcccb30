//! The loop that keeps a node as it is wanted: wakes when something may have changed, looks, and does
//! what one pass can do. Nothing that goes wrong in a turn ends it.

mod account;
mod backend;
mod following;
mod kubeconfig;
mod leaving;
mod observed;
mod parting;
#[cfg(test)]
mod tests;
mod told;
mod watched;

pub use leaving::REST;

use super::bulletin::{Bulletin, Posted};
use super::calls::Calls;
use super::incumbent::IstioAgent;
use super::label::Label;
use super::{Part, Pods};
use crate::error::chain;
use crate::host::desired::{DesiredState, Shape, TakeOver};
use crate::host::directory::PerDirectory;
use crate::host::image::Image;
use crate::host::pass::{PassHistory, RESYNC, RETRY, pass};
use crate::host::runtimes::report::RuntimeReport;
use crate::host::runtimes::{ConfiguredDirectory, Runtimes};
use crate::host::settings::{NodeContext, Settings};
use crate::host::watch::{DirectoryWatch, WakeReason, WatchMode};
use crate::log::Journal;
use crate::retry::NextTurn;
use backend::Backend;
use following::Chosen;
pub use following::{Following, NoSettings};
use gybe_plugin::probe_cache::ProbeCache;
use leaving::Leaving;
use observed::{Observed, take_over};
use serde_json::json;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use told::Told;
use watched::watched;

/// What it takes to keep a node.
#[derive(Debug)]
pub struct Keeping {
    /// What an operator wants, now and later.
    pub settings: Following,
    /// The programs to be placed.
    pub image: Image,
    /// Where the probe keeps what it finds out.
    pub probe: ProbeCache,
    /// How long, from the start on, nothing is chained without the probe's report about the runtimes.
    pub report_wait: Duration,
    /// How long the plugin outlives the conf when we leave; [`REST`] but in tests.
    pub rest: Duration,
}

/// The loop's own.
pub(crate) struct Healing<'a> {
    following: Following,
    image: Image,
    watch: DirectoryWatch,
    memory: PassHistory,
    wanted: Option<DesiredState>,
    wanted_since: Instant,
    /// Since when it is undone.
    undone: PerDirectory<Option<Instant>>,
    /// Until when the probe's report about the runtimes is waited for.
    report_until: Instant,
    observed: Observed,
    backend: Backend,
    leaving: Leaving,
    around: Around<'a>,
    posted: Posted,
    told: Told<'a>,
}

/// Whom it knows, and where it tells.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) pods: &'a dyn Pods,
    pub(crate) calls: &'a Calls,
    pub(crate) bulletin: &'a Bulletin,
    pub(crate) journal: &'a Journal,
    /// None where there is no cluster.
    pub(crate) label: Option<&'a Label>,
}

impl<'a> Healing<'a> {
    /// Watches from here on; nothing is done before `run`.
    pub(crate) fn new(keeping: Keeping, around: Around<'a>) -> Self {
        let settings = &keeping.settings.good;
        for note in &settings.notes {
            around.journal.tell("warn", "gybe node: a setting", json!({ "note": note }));
        }
        Self {
            watch: DirectoryWatch::new(watched(settings)),
            following: keeping.settings,
            image: keeping.image,
            memory: PassHistory::default(),
            wanted: None,
            wanted_since: Instant::now(),
            undone: PerDirectory::default(),
            report_until: Instant::now() + keeping.report_wait,
            observed: Observed::default(),
            backend: Backend::new(keeping.probe),
            leaving: Leaving::new(keeping.rest),
            around,
            posted: Posted::default(),
            told: Told::new(around.journal),
        }
    }

    /// Turns until `stop` is readable, and leaves everything in place then.
    pub(crate) fn run(mut self, stop: BorrowedFd<'_>) -> Self {
        let mut woken = Instant::now();
        loop {
            let next = self.turn(woken);
            if self.rest(&next, Some(stop)) {
                return self;
            }
            woken = Instant::now();
        }
    }

    /// The settings that hold.
    pub(crate) fn settings(&self) -> &Settings {
        &self.following.good
    }

    /// One turn: what is wanted now, and as much of it as can be done now.
    fn turn(&mut self, woken: Instant) -> NextTurn {
        self.following.follow(&mut self.told);
        while self.watch.turn_to(watched(&self.following.good)) {
            // Where to watch is a setting; what changed before the new watch stood, nobody tells.
            self.following.follow(&mut self.told);
        }
        self.posted.settings.clone_from(&self.following.fault);
        self.posted.plugin_dir = self.following.good.choices.plugin_dir;
        self.posted.is_told = self.watch.mode() == WatchMode::Inotify;
        let next = match self.following.chosen {
            Chosen::Yes => self.keep(woken),
            Chosen::NotYet => self.waits_for_choices(),
        };
        self.post();
        next
    }

    fn post(&mut self) {
        let now = Instant::now();
        self.posted.counts.turns += 1;
        self.posted.turned = Some(now);
        self.posted.stamp(now);
        self.around.bulletin.post(&self.posted);
    }

    fn keep(&mut self, woken: Instant) -> NextTurn {
        let ready = self.credentials();
        let wanted = match self.wanted() {
            Ok(wanted) => wanted,
            Err(why) => {
                self.posted.missing = vec![chain(&why)];
                return NextTurn::OnChange(RESYNC);
            }
        };
        let is_new = self.wanted.as_ref() != Some(&wanted);
        if is_new {
            self.memory.desired_state_changed();
            self.wanted_since = Instant::now();
        }
        let runtimes = self.runtimes();
        let is_awaited = runtimes.plugin_directory == ConfiguredDirectory::Awaited;
        self.memory.learn(runtimes);
        let places = &self.following.good.ground.places;
        let next = match pass(places, &wanted, &mut self.memory) {
            Ok(pass) => self.account(&pass, woken),
            Err(busy) => return self.waits_for(&busy),
        };
        self.told.state("busy", ("warn", None), json!({}));
        self.wanted = Some(wanted);
        // What is left to do may be the conf that names it.
        if self.posted.missing.is_empty() {
            self.forget_credentials();
        }
        self.posted.missing.extend(ready.err());
        // Its file is not watched.
        if is_awaited { next.within(RETRY) } else { next }
    }

    /// What the probe saw of them. A runtime that calls us reads the drop-in, for by then no sandbox is on its way that was begun under
    /// another conf.
    fn runtimes(&self) -> Runtimes {
        let ground = &self.following.good.ground;
        let report = RuntimeReport::kept_in(&ground.probe);
        let mut runtimes = report.as_ref().map_or_else(Runtimes::default, |it| it.known(&ground.places));
        if report.is_none() && Instant::now() < self.report_until {
            runtimes.plugin_directory = ConfiguredDirectory::Awaited;
        }
        let is_drop_in = self.following.good.choices.shape == Shape::DropIn;
        if is_drop_in && self.around.calls.added_after(self.wanted_since + self.leaving.rest) {
            runtimes.read_drop_ins();
        }
        runtimes
    }

    fn wanted(&mut self) -> Result<DesiredState, crate::host::conflist::entry::EntryError> {
        let (settings, now) = (&self.following.good, Instant::now());
        let istio = IstioAgent::look(self.around.pods, settings);
        self.observed.look(&settings.ground.places, now);
        self.posted.istio = Some(istio);
        let backend = self.backend.look(settings, self.around.label, &mut self.told);
        self.posted.backend = Some(backend.clone());
        let node = NodeContext {
            image: &self.image,
            backend: Some(&backend),
            probed: self.backend.probed(),
            take_over: take_over(settings.choices.take_over, istio),
            stand_in: self.observed.stand_in,
            burial: self.leaving.burial(now),
        };
        let hasty = node.take_over == TakeOver::Now && istio == IstioAgent::HasPod;
        let sentence = "istio-cni's agent is on this node too, and will write its entry again".to_owned();
        let more = json!({ "hint": "remove the DaemonSet istio-cni-node" });
        self.told.state("istio", ("warn", hasty.then_some(sentence)), more);
        self.told.state("istiod", ("warn", meshed_istiod(self.around.pods, settings)), json!({}));
        settings.wanted(&node)
    }

    /// Waits until the next turn; yes when it is time to stop.
    fn rest(&mut self, next: &NextTurn, stop: Option<BorrowedFd<'_>>) -> bool {
        let until = Instant::now() + next.wait();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let woken = self.watch.wait(left, stop);
            match (woken, next) {
                (WakeReason::Readable, _) => return true,
                (WakeReason::Changed, NextTurn::After(_)) if !left.is_zero() => {}
                _ => return false,
            }
        }
    }
}

/// Istiod's own pods must start before anybody knows a mesh.
fn meshed_istiod(pods: &dyn Pods, settings: &Settings) -> Option<String> {
    let namespace = &settings.ground.control_plane;
    let is_left_alone = settings.choices.conf.exclude_namespaces.contains(namespace);
    let is_meshed = !is_left_alone && pods.has_pod_of(&Part::istiod(settings))?;
    is_meshed.then(|| format!("istiod runs in namespace {namespace}, which is not among those left alone"))
}
