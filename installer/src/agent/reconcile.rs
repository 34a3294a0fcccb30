//! The reconcile loop: wakes when something may have changed, observes the node, and applies one pass of changes. Each
//! turn returns a report, which is published as the agent's status. No error of a turn ends the loop.

mod environment;
mod live_settings;
mod report;
mod status_log;
#[cfg(test)]
mod tests;
mod uninstall;

pub use live_settings::{LiveSettings, SettingsLoadError};

use super::ambient::AmbientNode;
use super::events::EventQueue;
use super::kubeconfig::{self, Kubeconfig, Validity};
use super::plugin_calls::PluginCalls;
use super::status::{FollowedSettings, Phase, Published, TurnReport};
use crate::agent::pods::PodLookup;
use crate::cluster::OwnNode;
use crate::error::chain;
use crate::host::apply::Busy;
use crate::host::desired::{DesiredState, Shape, ShapeSetting};
use crate::host::entries::{desired_conf, written_conf};
use crate::host::image::Image;
use crate::host::judge::Judgement;
use crate::host::observe::PerDirectory;
use crate::host::observe::runtimes::{ReportWait, Runtimes};
use crate::host::pass::{PassHistory, RESYNC, RETRY, pass_with};
use crate::host::problem::{Problem, ProgramFault};
use crate::host::runtimes::RuntimeReport;
use crate::host::settings::{NodeContext, NodeMode, PodSource, ProgramRemoval, RepairMode, Settings};
use crate::host::watch::{DirectoryWatch, WakeReason, WatchedDirectories};
use crate::lead::process::Shared;
use crate::log::{Level, Log};
use crate::retry::NextTurn;
use crate::sandboxes::repair::RepairSetting;
use environment::{BackendDecider, EnvironmentObserver};
use gybe_netfilter::model::Hint;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::probe_cache::ProbeCache;
use live_settings::Origin;
use report::{Known, RepairTimer, TurnResult, report};
use serde_json::json;
use status_log::{NodeEvents, StatusLog};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};
use uninstall::GracePeriod;

/// How long the agent relies on a report after it last found it renewed. The probe renews it every minute. A change of
/// the system's clock makes a valid report look too old, or puts its time in the future.
const RENEWAL_WAIT: Duration = Duration::from_secs(90);

/// The configuration of the loop.
#[derive(Debug)]
pub struct ReconcileConfig {
    pub settings: LiveSettings,
    /// The programs to place.
    pub image: Image,
    /// The file with the probe's report.
    pub probe: ProbeCache,
    /// How long after its start the loop waits for the probe's report about the runtimes.
    pub report_wait: Duration,
    /// What the loop leaves undone until the report is there.
    pub waits_for_report: ReportWait,
    /// How long the plugin stays after an uninstall has removed its entry; [`crate::host::settings::GRACE_PERIOD`]
    /// except in tests.
    pub grace_period: Duration,
}

/// The state of the loop.
pub(crate) struct Reconciler<'a> {
    settings: LiveSettings,
    image: Image,
    watch: DirectoryWatch,
    memory: PassHistory,
    desired: Option<DesiredState>,
    desired_since: Instant,
    timers: PerDirectory<RepairTimer>,
    /// Until when the loop waits for the probe's report about the runtimes.
    report_until: Instant,
    waits_for_report: ReportWait,
    /// Until when the report counts as renewed; none before it was.
    renewed_until: Option<Instant>,
    environment: EnvironmentObserver,
    backend: BackendDecider,
    grace_period: GracePeriod,
    context: ReconcileContext<'a>,
    published: Published,
    events: NodeEvents,
    log: StatusLog<'a>,
}

/// What the loop shares with the agent's other threads.
#[derive(Clone, Copy)]
pub(crate) struct ReconcileContext<'a> {
    pub(crate) pods: &'a dyn PodLookup,
    pub(crate) calls: &'a PluginCalls,
    pub(crate) published: &'a Shared<Published>,
    pub(crate) log: &'a Log,
    /// None without a cluster.
    pub(crate) node: Option<&'a OwnNode>,
    /// None without a cluster.
    pub(crate) events: Option<&'a EventQueue>,
    /// None where ambient mode is off.
    pub(crate) ambient: Option<&'a AmbientNode>,
}

/// The result of a turn.
struct Turn {
    report: TurnReport,
    /// The plugin's configuration by the settings, if the node's entry has it.
    in_force: Option<PluginConf>,
    next: NextTurn,
}

impl<'a> Reconciler<'a> {
    /// Starts to watch; changes nothing before `run`.
    pub(crate) fn new(config: ReconcileConfig, context: ReconcileContext<'a>) -> Self {
        // Before the first turn, which takes seconds: pods are added meanwhile.
        config.settings.set_ambient_selectors(context.ambient);
        let settings = &config.settings.current;
        for note in &settings.notes {
            context.log.warn("gybe node: note on the settings", json!({ "note": note }));
        }
        Self {
            watch: DirectoryWatch::of(watched_directories(settings)),
            settings: config.settings,
            image: config.image,
            memory: PassHistory::default(),
            desired: None,
            desired_since: Instant::now(),
            timers: PerDirectory::default(),
            report_until: Instant::now() + config.report_wait,
            waits_for_report: config.waits_for_report,
            renewed_until: None,
            environment: EnvironmentObserver::default(),
            backend: BackendDecider::new(config.probe),
            grace_period: GracePeriod::new(config.grace_period),
            context,
            published: Published::default(),
            events: NodeEvents::default(),
            log: StatusLog::new(context.log),
        }
    }

    /// Takes turns until `stop` is readable; changes nothing after that.
    pub(crate) fn run(mut self, stop: BorrowedFd<'_>) -> Self {
        let mut woken = Instant::now();
        loop {
            let next = self.turn(woken);
            if self.wait(next, Some(stop)) {
                return self;
            }
            woken = Instant::now();
        }
    }

    /// Reports whether there are valid settings; reads the ConfigMap again until then.
    pub(crate) fn has_settings(&mut self) -> bool {
        if self.settings.origin == Origin::Environment {
            self.settings.refresh(&self.log);
        }
        self.settings.origin == Origin::ConfigMap
    }

    /// Forgets the node's state: another agent changes it from now on. The counters stay.
    pub(crate) fn paused(mut self) -> Self {
        self.memory.desired_state_changed();
        self.desired = None;
        self.published.status.pause();
        self.published.settings = FollowedSettings::default();
        self.events = NodeEvents::default();
        self.context.published.set(self.published.clone());
        self
    }

    /// The settings in use.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings.current
    }

    /// Takes one turn, and publishes its report. `woken` is when it began.
    fn turn(&mut self, woken: Instant) -> NextTurn {
        let former = self.settings.current.options.clone();
        self.settings.refresh(&self.log);
        while self.watch.set_paths(watched_directories(&self.settings.current)) {
            // The directories depend on the settings; a change before the new watch was set up causes no event.
            self.settings.refresh(&self.log);
        }
        self.settings.set_ambient_selectors(self.context.ambient);
        let turn = match self.settings.origin {
            Origin::ConfigMap => {
                if self.settings.error.is_some() || self.settings.current.options != former {
                    self.withdraw_settings();
                }
                self.write_repair_setting(false);
                self.reconcile(woken)
            }
            Origin::Environment => {
                let why = "the node stays as it is until the ConfigMap can be followed";
                self.unchanged(why.to_owned(), None, None, NextTurn::OnChange(RESYNC))
            }
        };
        self.publish(turn)
    }

    /// Publishes a turn's report and, by themselves, its settings.
    fn publish(&mut self, Turn { report, in_force, next }: Turn) -> NextTurn {
        let Settings { options, .. } = &self.settings.current;
        let is_followed = self.settings.origin == Origin::ConfigMap;
        let followed = is_followed.then(|| options.clone());
        let error = self.settings.error.clone();
        self.published.settings = FollowedSettings {
            plugin_dir: options.plugin_dir,
            taints: followed.as_ref().map(|options| options.node_taints.clone()).unwrap_or_default(),
            has_condition: followed.as_ref().is_some_and(|options| options.node_condition),
            repair: followed.map(|options| options.repair).unwrap_or_default(),
            in_force: in_force.filter(|_| is_followed && error.is_none()),
            error,
        };
        self.write_repair_setting(self.published.settings.in_force.is_some());
        self.published.status.update(report, Instant::now());
        // Findings come once the agent is seen ready, and their events are dropped while events are off.
        self.post_events();
        self.context.published.set(self.published.clone());
        next
    }

    /// Publishes that no settings are in force until the turn ends: it may take seconds.
    fn withdraw_settings(&mut self) {
        self.published.settings.in_force = None;
        self.context.published.set(self.published.clone());
    }

    /// For the process that repairs pods: the mode once the settings are in force, and until then `off` if it has
    /// changed. An uninstall removes the file, and without our entry that process repairs nothing.
    fn write_repair_setting(&mut self, is_in_force: bool) {
        let Settings { options, environment, .. } = &self.settings.current;
        if self.settings.origin != Origin::ConfigMap || options.mode == NodeMode::Leave {
            return;
        }
        let mode = options.repair.mode;
        let setting = match RepairSetting::kept_in(&environment.probe) {
            _ if is_in_force => mode,
            Some(kept) if kept.repair != mode => RepairMode::Off,
            _ => return,
        };
        let written = RepairSetting { repair: setting }.keep_in(&environment.probe);
        let why = written.err().map(|why| why.to_string());
        let message = "gybe node: the setting `repair` cannot be stored in /run/gybe";
        self.log.condition(Level::Warn, message, why, json!({}));
    }

    fn post_events(&mut self) {
        let Some(queue) = self.context.events else { return };
        let is_followed = self.settings.origin == Origin::ConfigMap;
        queue.set_enabled(is_followed && self.settings.current.options.events);
        self.events.observe(&self.published.status).into_iter().for_each(|event| queue.post(event));
    }

    /// Returns a turn that could not observe the node, because of `why`; its phase stays, unless it has one.
    fn unchanged(&self, why: String, phase: Option<Phase>, known: Option<&Known>, next: NextTurn) -> Turn {
        let result = TurnResult::Unchanged { before: &self.published.status.report, why, phase };
        Turn { report: report(result, known, self.watch.mode()), in_force: None, next }
    }

    /// Applies as much of the desired state as is possible now.
    fn reconcile(&mut self, woken: Instant) -> Turn {
        let known = Known {
            kubeconfig: self.update_kubeconfig(),
            environment: self.environment.observe(&self.settings.current, self.context.pods, &mut self.log),
            backend: self.backend.decide(&self.settings.current, self.context.node, &mut self.log),
        };
        let Known { environment: facts, backend, .. } = &known;
        let node = NodeContext {
            image: &self.image,
            backend: Some(backend),
            probed: self.backend.recorded_probe(),
            take_over: facts.take_over,
            stand_in: facts.stand_in,
            program_removal: self.grace_period.programs(Instant::now()),
        };
        let desired = match self.settings.current.desired(&node) {
            Ok(desired) => desired,
            Err(why) => {
                return self.unchanged(chain(&why), None, Some(&known), NextTurn::OnChange(RESYNC));
            }
        };
        if self.desired.as_ref() != Some(&desired) {
            self.memory.desired_state_changed();
            self.desired_since = Instant::now();
        }
        let conf = desired_conf(&desired);
        if self.published.settings.in_force != conf {
            self.withdraw_settings();
        }
        let runtimes = self.runtimes();
        let waits_for_probe = runtimes.waits == ReportWait::Entry;
        self.memory.set_runtimes(runtimes);
        let (published, shared) = (&mut self.published, self.context.published);
        let before_writing = |judgement: &Judgement| {
            // Whether another build works is known only after its trial, which is one of the changes.
            let is_known =
                |why: &&Problem| !matches!(why, Problem::Program { why: ProgramFault::Another, .. });
            let reasons: Vec<_> =
                judgement.reasons.iter().filter(is_known).map(ToString::to_string).collect();
            if !reasons.is_empty() {
                published.status.record_lost_redirection(reasons, Instant::now());
                shared.set(published.clone());
            }
        };
        let directories = &self.settings.current.environment.directories;
        let pass = match pass_with(directories, &desired, &mut self.memory, before_writing) {
            Ok(pass) => pass,
            Err(busy) => return self.busy(&busy, &known),
        };
        self.log.condition(Level::Warn, BUSY, None, json!({}));
        let in_force = conf.filter(|conf| {
            written_conf(&self.settings.current.environment.directories.conf).as_ref() == Some(conf)
        });
        self.desired = Some(desired);
        let turn = self.passed(&pass, Some(&known), woken);
        // A pending change may concern the conf file that names the kubeconfig.
        if turn.report.missing.is_empty() {
            self.remove_kubeconfig();
        }
        let until_report = self.report_until.saturating_duration_since(Instant::now());
        // The report is read at once, also in a conflict.
        let next = if waits_for_probe { NextTurn::OnChange(RESYNC.min(until_report)) } else { turn.next };
        Turn { in_force, next, ..turn }
    }

    /// Another gybe holds the lock, or there is no free descriptor: the node could not be observed.
    fn busy(&mut self, busy: &Busy, known: &Known) -> Turn {
        let why = busy.to_string();
        self.log.condition(Level::Warn, BUSY, Some(why.clone()), json!({ "hint": busy.hint() }));
        let leaves = self.settings.current.options.mode == NodeMode::Leave;
        self.unchanged(why, leaves.then_some(Phase::Uninstalling), Some(known), NextTurn::After(RETRY))
    }

    /// Returns the probe's report about the runtimes. A call of our plugin shows that the runtime reads the drop-in, if
    /// it comes so late that the runtime cannot have begun the sandbox under an earlier conf.
    fn runtimes(&mut self) -> Runtimes {
        let environment = &self.settings.current.environment;
        let report = RuntimeReport::kept_in(&environment.probe);
        let mut runtimes =
            report.as_ref().map_or_else(Runtimes::default, |it| it.known(&environment.directories));
        let now = Instant::now();
        // A probe that started before the runtime has reported none.
        let is_missing = match self.waits_for_report {
            ReportWait::Move => report.as_ref().is_none_or(RuntimeReport::is_empty),
            ReportWait::Nothing | ReportWait::Entry => report.is_none(),
        };
        if is_missing && now < self.report_until {
            runtimes.waits = self.waits_for_report;
        }
        if report.as_ref().is_some_and(RuntimeReport::is_renewed) {
            self.renewed_until = Some(now + RENEWAL_WAIT);
        }
        let is_renewed = report.is_some() && self.renewed_until.is_some_and(|until| now < until);
        let shape = &self.settings.current.options.shape;
        if *shape == ShapeSetting::Auto && !is_renewed {
            runtimes.forget_drop_ins();
        }
        let is_drop_in = *shape == ShapeSetting::Fixed(Shape::DropIn);
        if is_drop_in && self.context.calls.added_after(self.desired_since + self.grace_period.length) {
            runtimes.read_drop_ins();
        }
        runtimes
    }

    /// Writes the kubeconfig, before the conf that names it; none if the settings need none. Its failure does not delay
    /// the conf: the plugin queries the agent first.
    fn update_kubeconfig(&mut self) -> Result<Option<Kubeconfig>, String> {
        let settings = &self.settings.current;
        if settings.options.pod_source == PodSource::Agent || settings.options.mode == NodeMode::Leave {
            return Ok(None);
        }
        let updated = kubeconfig::update(&settings.environment, SystemTime::now()).map_err(|why| chain(&why));
        self.log.condition(Level::Error, KUBECONFIG_FAILED, updated.as_ref().err().cloned(), json!({}));
        let kubeconfig = updated?;
        if kubeconfig.was_written {
            let path = settings.environment.kubeconfig();
            self.log.event(Level::Info, "gybe node: wrote the kubeconfig", json!({ "path": path }));
        }
        let why = match kubeconfig.validity {
            Validity::Unlimited | Validity::For(_) => None,
            Validity::EndsSoon(_) => Some("the token in the kubeconfig expires soon"),
            Validity::Expired => Some("the token in the kubeconfig has expired"),
        };
        let hint = "the kubelet renews it: look at its log, and at the clocks of node and API server";
        let message = "gybe node: the token is not renewed";
        self.log.condition(Level::Warn, message, why.map(str::to_owned), json!({ "hint": hint }));
        Ok(Some(kubeconfig))
    }

    /// Removes the kubeconfig, after the conf that named it.
    fn remove_kubeconfig(&mut self) {
        let settings = &self.settings.current;
        let is_needed = match settings.options.mode {
            NodeMode::Leave => self.grace_period.programs(Instant::now()) == ProgramRemoval::Deferred,
            NodeMode::Install => settings.options.pod_source == PodSource::Api,
        };
        if is_needed {
            return;
        }
        match kubeconfig::remove(&settings.environment) {
            Ok(true) => self.log.event(Level::Info, "gybe node: removed the kubeconfig", json!({})),
            Ok(false) => {}
            Err(why) => self.log.condition(Level::Error, KUBECONFIG_FAILED, Some(chain(&why)), json!({})),
        }
    }

    /// Waits for the next turn; reports whether `stop` is readable.
    fn wait(&mut self, next: NextTurn, stop: Option<BorrowedFd<'_>>) -> bool {
        let until = Instant::now() + next.wait();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match (self.watch.wait(left, stop), next) {
                (WakeReason::Readable, _) => return true,
                (WakeReason::Changed, NextTurn::After(_)) if !left.is_zero() => {}
                _ => return false,
            }
        }
    }
}

const BUSY: &str = "gybe node: the node cannot be changed now";
const KUBECONFIG_FAILED: &str = "gybe node: the kubeconfig cannot be kept up to date";

/// Returns the directories whose changes wake the loop. The host's directories may appear later; the others (settings,
/// token, the reports of the container `repair`) are watched once they exist.
fn watched_directories(settings: &Settings) -> WatchedDirectories {
    let environment = &settings.environment;
    let is_mounted = |path: &&PathBuf| path.is_dir();
    let mounts = [&environment.config, &environment.api.service_account].into_iter().filter(is_mounted);
    let of_host = [&environment.directories.conf, &environment.directories.programs].into_iter();
    WatchedDirectories {
        written: of_host.chain(mounts).cloned().chain(network_directories(settings)).collect(),
        renamed: Some(&environment.probe).filter(is_mounted).into_iter().cloned().collect(),
    }
}

/// A drop-in is in a directory below the conf directory, which has events of its own.
fn network_directories(settings: &Settings) -> BTreeSet<PathBuf> {
    let conf = &settings.environment.directories.conf;
    let entries = matches!(settings.options.shape, ShapeSetting::Auto | ShapeSetting::Fixed(Shape::DropIn))
        .then(|| fs::read_dir(conf).ok())
        .flatten();
    let entries = entries.into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}
