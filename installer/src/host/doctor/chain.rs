//! Findings about the chain: the file that the runtime uses, and the places of our entry.

use super::programs::program;
use super::sight::{AgentSeen, Sight};
use super::{About, Finding, of_security};
use crate::host::install::change::{Problem, ProgramFault};
use crate::host::install::conflict::other_owner;
use crate::host::install::conflist::{Chain, ISTIO};
use crate::host::install::json::{self, Node};
use crate::host::install::judge::{Judgement, Question, judge};
use crate::host::install::loads::DropIns;
use crate::host::install::loads::choice::{Broken, Choice, Why, candidates};
use crate::host::install::seen::{ConfDirectory, DROP_IN, FileName, ORIGINAL, Standing, Unreadable};
use crate::host::install::wanted::Shape;
use crate::host::platform::Platform;
use crate::host::settings::{PLUGIN, STANDALONE};
use gybe_netfilter::hint::Hint;
use nix::errno::Errno;
use std::ffi::OsStr;

/// The places of our entry: in a list, as a network of its own, in a network's directory.
#[derive(Debug, Default)]
pub(super) struct Ours<'a> {
    pub(super) listed: Vec<(&'a FileName, &'a [u8])>,
    pub(super) alone: Vec<(&'a FileName, &'a [u8])>,
    pub(super) dropped_in: Vec<(&'a FileName, &'a [u8])>,
}

impl<'a> Ours<'a> {
    pub(super) fn find(conf: &'a ConfDirectory) -> Self {
        let mut ours = Self::default();
        let files = conf.files.iter().filter(|(name, _)| !name.ends_in(ORIGINAL));
        for (name, bytes) in files.filter_map(|(name, file)| Some((name, file.content.as_ref().ok()?))) {
            match Chain::read(bytes) {
                Ok(chain) => ours.listed.extend(chain.entry(PLUGIN).map(|entry| (name, entry))),
                Err(_) if is_of_our_type(bytes) => ours.alone.push((name, bytes)),
                Err(_) => {}
            }
        }
        for (network, files) in &conf.networks {
            let there = files.get(OsStr::new(DROP_IN)).and_then(|file| file.content.as_ref().ok());
            ours.dropped_in.extend(there.map(|bytes| (network, bytes.as_slice())));
        }
        ours
    }

    /// Reports whether only Multus uses our file, which it selects by name: in Multus' own directory on
    /// OpenShift, or as a network of its own elsewhere.
    pub(super) fn is_for_multus(&self, sight: &Sight) -> bool {
        let of_openshift = || sight.platform.places(&sight.ground.root).conf == sight.ground.places.conf;
        let of_multus = sight.snapshot.conf.is_of_multus;
        let named =
            !self.alone.is_empty() || of_multus || (sight.platform == Platform::OpenShift && of_openshift());
        named && self.listed.is_empty() && self.dropped_in.is_empty()
    }

    pub(super) fn is_anywhere(&self) -> bool {
        self.entries().next().is_some()
    }

    /// Every entry with the name of its file or network.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a FileName, &'a [u8])> + '_ {
        [&self.listed, &self.alone, &self.dropped_in].into_iter().flatten().copied()
    }
}

fn is_of_our_type(bytes: &[u8]) -> bool {
    json::parse(bytes).is_ok_and(|tree| tree.field("type").and_then(Node::as_text) == Some(PLUGIN))
}

/// The verdict for a pod that is started now.
pub(super) fn judged(sight: &Sight, ours: &Ours<'_>) -> Judgement {
    judge(&Question {
        conf: &sight.snapshot.conf,
        programs: &sight.snapshot.programs,
        runtimes: &sight.snapshot.runtimes,
        plugin: PLUGIN,
        fault: fault(sight),
        shape: &shape(sight, ours),
        confirmed: sight.confirmed(),
    })
}

fn fault(sight: &Sight) -> Option<ProgramFault> {
    let Some(there) = program(sight, PLUGIN) else { return Some(ProgramFault::Missing) };
    let of_access = ProgramFault::of(there.access, sight.snapshot.us);
    of_access.or_else(|| (!matches!(sight.trial, Some(Ok(())))).then_some(ProgramFault::NotRun))
}

/// The shape in which our entry is found, because the desired shape is not written on the node.
fn shape(sight: &Sight, ours: &Ours<'_>) -> Shape {
    let alone = ours.alone.first().map(|(file, _)| (*file).clone());
    match (alone, ours.listed.first(), ours.dropped_in.is_empty()) {
        (Some(file), None, true) => Shape::Standalone { file },
        (_, Some((file, _)), _) => Shape::Chained { pinned: Some((*file).clone()) },
        (_, None, false) => Shape::DropIn,
        (None, None, true) => match FileName::new(STANDALONE) {
            Ok(file) if ours.is_for_multus(sight) => Shape::Standalone { file },
            _ => Shape::Chained { pinned: None },
        },
    }
}

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    if sight.snapshot.conf.standing != Standing::There {
        return Vec::new();
    }
    let judgement = judged(sight, ours);
    let mut found: Vec<_> = judgement.taken.iter().map(|choice| taken(sight, choice)).collect();
    found.extend(broken(sight, &judgement));
    // Without an entry of ours, and without our tool or on purpose, Gybe is not installed, and no more findings
    // are needed.
    let not_in = |reason: &&Problem| matches!(reason, Problem::NotIn { .. } | Problem::NotWritten(_));
    if let Some(absent) =
        not_installed(sight, ours).filter(|_| judgement.reasons.iter().any(|it| not_in(&it)))
    {
        found.push(absent);
        return found;
    }
    let reasons = judgement.reasons.iter().filter(|reason| !has_own_finding(reason));
    found.extend(reasons.map(|reason| wrong(sight, ours, reason)));
    if judgement.is_met() {
        found.push(well(sight, ours, judgement.taken.as_ref()));
    }
    found
}

/// Reports whether another topic has a finding about this reason, with more details.
fn has_own_finding(reason: &Problem) -> bool {
    matches!(
        reason,
        Problem::Missing(_)
            | Problem::Deleted(_)
            | Problem::Unreadable(..)
            | Problem::Program { .. }
            | Problem::BadEntry { .. }
            | Problem::BesideIstio(_)
    )
}

fn taken(sight: &Sight, choice: &Choice) -> Finding {
    let runs = |name: &str| sight.runtimes.iter().any(|runtime| runtime.name == name);
    let who = match (runs("containerd"), runs("crio")) {
        (true, false) => "containerd uses",
        (false, true) => "CRI-O uses",
        _ => "containerd and CRI-O use",
    };
    let Choice { file, network } = choice;
    let says =
        format!("{who} {file}: network {} with the plugins {}", network.name, network.plugins.join(", "));
    Finding::well(About::Chain, says)
}

/// Files that cannot be loaded but stop no runtime.
fn broken(sight: &Sight, judgement: &Judgement) -> Vec<Finding> {
    let stops = |broken: &Broken| {
        judgement.reasons.iter().any(|reason| match reason {
            Problem::Stopped(by) | Problem::Unread(by) => by == broken,
            Problem::TooLarge { file, .. } => *file == broken.file,
            _ => false,
        })
    };
    let all = candidates(&sight.snapshot.conf, DropIns::Loaded).filter_map(Result::err);
    let all = all.filter(|broken| !stops(broken));
    all.map(|broken| Finding::note(About::Chain, format!("{broken}: {}", broken.why), None)).collect()
}

fn well(sight: &Sight, ours: &Ours<'_>, taken: Option<&Choice>) -> Finding {
    let last = |choice: &&Choice| choice.network.plugins.last().is_some_and(|last| last == PLUGIN);
    let runs = |choice: &&Choice| choice.network.plugins.iter().any(|kind| kind == PLUGIN);
    let how = if ours.dropped_in.is_empty() { "" } else { " (as a drop-in)" };
    if let Some(choice) = taken.filter(last) {
        return Finding::well(About::Chain, format!("{PLUGIN} is the last plugin in {}{how}", choice.file));
    }
    if let Some(choice) = taken.filter(runs) {
        let behind = choice.network.plugins.last().map_or("", String::as_str);
        let says = format!("{PLUGIN} should be the last plugin in {}, but {behind} follows it", choice.file);
        return Finding::note(About::Chain, says, Some(writer(sight)));
    }
    let file = ours.entries().next().map_or(String::new(), |(file, _)| file.to_string());
    let says = match ours.alone.is_empty() {
        true => format!("{PLUGIN} is in {file}, which Multus calls"),
        false => format!("{PLUGIN} is a network of its own in {file}, which Multus calls"),
    };
    Finding::well(About::Chain, says)
}

fn wrong(sight: &Sight, ours: &Ours<'_>, reason: &Problem) -> Finding {
    let is_refused = |errno: &Errno| matches!(errno, Errno::EACCES | Errno::EPERM);
    let hint = || reason.hint().unwrap_or_default().into_owned();
    let (says, remedy) = match reason {
        Problem::NotIn { file, plugins, .. } if is_istios(sight, ours, plugins) => {
            let says = format!("{PLUGIN} is not in {file}: istio-cni redirects pods");
            return Finding::note(About::Chain, says, None);
        }
        Problem::NotIn { file, plugins, .. } => (not_in(ours, file), restore_entry(sight, plugins)),
        Problem::Preempted { file, by } => {
            (format!("{PLUGIN} is in {file}, but the runtime uses {by}"), restore_entry(sight, &[]))
        }
        Problem::Waiting => (
            "the runtime has no network: there is no conf file to load".to_owned(),
            "look at the DaemonSet of the primary plugin, which has not written its file".to_owned(),
        ),
        Problem::NotWritten(_) => (
            format!("no conf file names {PLUGIN}, so Multus has no network to call"),
            format!("{}, with shape: standalone (--shape standalone)", writer(sight)),
        ),
        Problem::Unread(Broken { why: Why::Unreadable(Unreadable::Refused(errno)), .. })
            if is_refused(errno) =>
        {
            (reason.to_string(), of_security(sight))
        }
        _ => (reason.to_string(), hint()),
    };
    let about = match reason {
        Problem::Alone { .. }
        | Problem::Unreported
        | Problem::Elsewhere(_)
        | Problem::NetworksElsewhere(_) => About::Directories,
        _ => About::Chain,
    };
    Finding::wrong(about, says, remedy)
}

fn not_in(ours: &Ours<'_>, file: &FileName) -> String {
    let listed = ours.listed.iter().map(|(name, _)| name.to_string());
    let others = listed.chain(ours.dropped_in.iter().map(|(network, _)| format!("{network}/{DROP_IN}")));
    let others = others.collect::<Vec<_>>().join(", ");
    match others.is_empty() {
        true => format!("{PLUGIN} is not in {file}: new pods are not redirected"),
        false => format!("{PLUGIN} is in {others}, but the runtime uses {file}"),
    }
}

fn not_installed(sight: &Sight, ours: &Ours<'_>) -> Option<Finding> {
    if !ours.is_anywhere() && sight.agent.as_ref().is_some_and(AgentSeen::leaves) {
        let says = format!("no conf file names {PLUGIN}: the node agent removed it (mode: leave)");
        return Some(Finding::note(About::Chain, says, None));
    }
    let says = format!("no conf file names {PLUGIN}: Gybe is not installed on this node");
    let remedy = "run gybe install, or deploy the DaemonSet gybe-node";
    let is_there = ours.is_anywhere() || program(sight, "gybe").is_some();
    (!is_there).then(|| Finding::note(About::Chain, says, Some(remedy)))
}

/// Reports whether istio-cni serves the chain without us: an entry, and its program.
fn is_istios(sight: &Sight, ours: &Ours<'_>, plugins: &[String]) -> bool {
    !ours.is_anywhere() && plugins.iter().any(|plugin| plugin == ISTIO) && program(sight, ISTIO).is_some()
}

/// The remedy for a missing entry, depending on whether an agent runs.
fn writer(sight: &Sight) -> &'static str {
    match sight.agent.as_ref().is_some_and(AgentSeen::is_running) {
        true => "the agent writes it within a second; if it does not, look at its log, or run gybe install",
        false => "start the agent (DaemonSet gybe-node), or run gybe install: no agent runs here",
    }
}

fn restore_entry(sight: &Sight, plugins: &[String]) -> String {
    let plugins: Vec<&str> = plugins.iter().map(String::as_str).collect();
    let writer = writer(sight);
    // The topic `Others` has more details about istio-cni.
    match other_owner::likely(&plugins).filter(|_| !plugins.contains(&ISTIO)) {
        Some(owner) => {
            format!("{writer}; if {} undoes this again: {}", owner.name, owner.setting)
        }
        None => writer.to_owned(),
    }
}
