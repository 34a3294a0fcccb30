//! Findings about the chain: the file that the runtime uses, and the directories of our entry.

use super::observe::{AgentContact, Observation};
use super::programs::program;
use super::{About, DoctorFinding, Section, access_remedy};
use crate::host::apply::TrialError;
use crate::host::conflict;
use crate::host::conflist::ISTIO;
use crate::host::desired::Shape;
use crate::host::entries::OurEntries;
use crate::host::image::PLUGIN;
use crate::host::judge::{JudgeInput, Judgement, judge};
use crate::host::libcni::{BrokenFile, BrokenReason, ChosenNetwork, candidates};
use crate::host::observe::runtimes::DropIns;
use crate::host::observe::{DROP_IN, DirectoryState, FileName, Unreadable};
use crate::host::platform::Platform;
use crate::host::problem::{Problem, ProgramFault};
use crate::host::runtimes::processes::RuntimeProcess;
use crate::host::settings::STANDALONE;
use gybe_netfilter::model::Hint;
use nix::errno::Errno;

/// Reports whether only Multus uses our file, which it selects by name: in Multus' own directory on
/// OpenShift, or as a network of its own elsewhere.
pub(super) fn is_for_multus(ours: &OurEntries<'_>, observation: &Observation) -> bool {
    let of_openshift = || {
        observation.platform.node_directories(&observation.options.root).conf
            == observation.options.directories.conf
    };
    let of_multus = observation.snapshot.conf.is_of_multus;
    let named = !ours.standalone.is_empty()
        || of_multus
        || (observation.platform == Platform::OpenShift && of_openshift());
    named && ours.listed.is_empty() && ours.drop_ins.is_empty()
}

/// The verdict for a pod that is started now.
pub(super) fn judged(observation: &Observation, ours: &OurEntries<'_>) -> Judgement {
    judge(&JudgeInput {
        conf: &observation.snapshot.conf,
        programs: &observation.snapshot.programs,
        runtimes: &observation.snapshot.runtimes,
        plugin: PLUGIN,
        // The agent, which knows the settings, reports an outdated entry.
        entry: None,
        fault: fault(observation),
        shape: &shape(observation, ours),
        confirmed: observation.confirmed(),
    })
}

fn fault(observation: &Observation) -> Option<ProgramFault> {
    let Some(there) = program(observation, PLUGIN) else { return Some(ProgramFault::Missing) };
    let of_access = ProgramFault::of(there.access, observation.snapshot.us);
    of_access.or(match &observation.trial {
        Some(Ok(())) => None,
        Some(Err(TrialError::Another)) => Some(ProgramFault::Another),
        Some(Err(_)) | None => Some(ProgramFault::NotRun),
    })
}

/// The shape in which our entry is found, because the desired shape is not written on the node.
fn shape(observation: &Observation, ours: &OurEntries<'_>) -> Shape {
    let standalone = ours.standalone.first().map(|(file, _)| (*file).clone());
    match (standalone, ours.listed.first(), ours.drop_ins.is_empty()) {
        (Some(file), None, true) => Shape::Standalone { file },
        (_, Some((file, _)), _) => Shape::Chained { pinned: Some((*file).clone()) },
        (_, None, false) => Shape::DropIn,
        (None, None, true) => match FileName::new(STANDALONE) {
            Ok(file) if is_for_multus(ours, observation) => Shape::Standalone { file },
            _ => Shape::Chained { pinned: None },
        },
    }
}

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    if observation.snapshot.conf.state != DirectoryState::Present {
        return Vec::new();
    }
    let judgement = judged(observation, ours);
    let mut found: Vec<_> = judgement.in_use.iter().map(|choice| in_use(observation, choice)).collect();
    found.extend(broken(observation, &judgement));
    // If no conf file has our entry, and neither the tool nor an agent is there or the agent removed the entry on
    // purpose, Gybe is not installed, and no more findings are needed.
    let has_no_entry = |reason: &Problem| {
        let is_elsewhere = matches!(reason, Problem::PluginsElsewhere(_) | Problem::NetworksElsewhere(_));
        reason.is_entry_pending() || is_elsewhere
    };
    if let Some(absent) =
        not_installed(observation, ours).filter(|_| judgement.reasons.iter().any(has_no_entry))
    {
        found.push(absent);
        return found;
    }
    let reasons = judgement.reasons.iter().filter(|reason| !has_own_finding(reason));
    found.extend(reasons.map(|reason| wrong(observation, ours, reason)));
    if judgement.is_redirected() {
        found.push(well(observation, ours, judgement.in_use.as_ref()));
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
            | Problem::BothEntries(_)
    )
}

fn in_use(observation: &Observation, choice: &ChosenNetwork) -> DoctorFinding {
    let runs = |name: &str| observation.runtimes.iter().any(|runtime| runtime.name == name);
    let runtime = match (runs("containerd"), runs("crio")) {
        (true, false) => "containerd uses",
        (false, true) => "CRI-O uses",
        _ => "containerd and CRI-O use",
    };
    let ChosenNetwork { file, network } = choice;
    let text =
        format!("{runtime} {file}: network {} with the plugins {}", network.name, network.plugins.join(", "));
    DoctorFinding::well(About::Chain, text)
}

/// Files that cannot be loaded but stop no runtime.
fn broken(observation: &Observation, judgement: &Judgement) -> Vec<DoctorFinding> {
    let stops = |broken: &BrokenFile| {
        judgement.reasons.iter().any(|reason| match reason {
            Problem::BrokenFirst(by) | Problem::BrokenFurther(by) | Problem::UnreadableFirst(by) => {
                by == broken
            }
            Problem::TooLarge { file, .. } => *file == broken.file,
            _ => false,
        })
    };
    let all = candidates(&observation.snapshot.conf, DropIns::Loaded).filter_map(Result::err);
    let all = all.filter(|broken| !stops(broken));
    all.map(|broken| DoctorFinding::note(About::Chain, format!("{broken}: {}", broken.why), None)).collect()
}

fn well(observation: &Observation, ours: &OurEntries<'_>, in_use: Option<&ChosenNetwork>) -> DoctorFinding {
    let last = |choice: &&ChosenNetwork| choice.network.plugins.last().is_some_and(|last| last == PLUGIN);
    let runs = |choice: &&ChosenNetwork| choice.network.plugins.iter().any(|kind| kind == PLUGIN);
    let how = if ours.drop_ins.is_empty() { "" } else { " (as a drop-in)" };
    if let Some(choice) = in_use.filter(last) {
        return DoctorFinding::well(
            About::Chain,
            format!("{PLUGIN} is the last plugin in {}{how}", choice.file),
        );
    }
    if let Some(choice) = in_use.filter(runs) {
        let behind = choice.network.plugins.last().map_or("", String::as_str);
        let text = format!("{PLUGIN} should be the last plugin in {}, but {behind} follows it", choice.file);
        return DoctorFinding::note(About::Chain, text, Some(writer(observation)));
    }
    let file = ours.entries().next().map_or(String::new(), |(file, _)| file.to_string());
    let text = match ours.standalone.is_empty() {
        true => format!("{PLUGIN} is in {file}, which Multus calls"),
        false => format!("{PLUGIN} is a network of its own in {file}, which Multus calls"),
    };
    DoctorFinding::well(About::Chain, text)
}

fn wrong(observation: &Observation, ours: &OurEntries<'_>, reason: &Problem) -> DoctorFinding {
    let is_refused = |errno: &Errno| matches!(errno, Errno::EACCES | Errno::EPERM);
    let hint = || reason.hint().unwrap_or_default().into_owned();
    if let Problem::UnreadableFirst(BrokenFile { why, .. }) = reason
        && let BrokenReason::Unreadable(Unreadable::System(errno)) = why
        && is_refused(errno)
    {
        let finding = DoctorFinding::wrong(About::Chain, reason.to_string(), access_remedy(observation));
        return finding.in_section(Section::NodeNotReady);
    }
    let (text, remedy) = match reason {
        Problem::NoEntry { file, plugins, .. } if is_istios(observation, ours, plugins) => {
            let text = format!("{PLUGIN} is not in {file}: istio-cni redirects pods");
            return DoctorFinding::note(About::Chain, text, None);
        }
        Problem::NoEntry { file, plugins, .. } => (not_in(ours, file), restore_entry(observation, plugins)),
        Problem::Preempted { file, by } => {
            (format!("{PLUGIN} is in {file}, but the runtime uses {by}"), restore_entry(observation, &[]))
        }
        Problem::Waiting => (
            "the runtime has no network: there is no conf file to load".to_owned(),
            "look at the DaemonSet of the primary plugin, which has not written its file".to_owned(),
        ),
        Problem::NoNetwork(_) => (
            format!("no conf file names {PLUGIN}, so Multus has no network to call"),
            format!("{}, with shape: standalone (--shape standalone)", writer(observation)),
        ),
        _ => (reason.to_string(), hint()),
    };
    let about = match reason {
        Problem::PluginDirUnconfirmed { .. }
        | Problem::Unreported
        | Problem::PluginsElsewhere(_)
        | Problem::NetworksElsewhere(_)
        | Problem::HandlerElsewhere { .. } => About::Directories,
        Problem::OtherProgram { .. } | Problem::EarlierProgram { .. } => About::Programs,
        _ => About::Chain,
    };
    DoctorFinding::wrong(about, text, remedy).in_section(Section::NodeNotReady)
}

fn not_in(ours: &OurEntries<'_>, file: &FileName) -> String {
    let listed = ours.listed.iter().map(|(name, _)| name.to_string());
    let others = listed.chain(ours.drop_ins.iter().map(|(network, _)| format!("{network}/{DROP_IN}")));
    let others = others.collect::<Vec<_>>().join(", ");
    match others.is_empty() {
        true => format!("{PLUGIN} is not in {file}: new pods are not redirected"),
        false => format!("{PLUGIN} is in {others}, but the runtime uses {file}"),
    }
}

fn not_installed(observation: &Observation, ours: &OurEntries<'_>) -> Option<DoctorFinding> {
    if !ours.is_anywhere() && observation.agent.as_ref().is_some_and(AgentContact::leaves) {
        let text = format!("no conf file names {PLUGIN}: the node agent removed it (mode: leave)");
        return Some(DoctorFinding::note(About::Chain, text, None));
    }
    let text = format!("no conf file names {PLUGIN}: Gybe is not installed on this node");
    let remedy = "run gybe install, or deploy the DaemonSet gybe-node";
    let is_running = observation.agent.as_ref().is_some_and(AgentContact::is_running);
    let is_there = ours.is_anywhere() || is_running || program(observation, "gybe").is_some();
    (!is_there).then(|| DoctorFinding::note(About::Chain, text, Some(remedy)))
}

/// Reports whether istio-cni serves the chain without us: an entry, and its program.
fn is_istios(observation: &Observation, ours: &OurEntries<'_>, plugins: &[String]) -> bool {
    !ours.is_anywhere()
        && plugins.iter().any(|plugin| plugin == ISTIO)
        && program(observation, ISTIO).is_some()
}

/// The remedy for a missing entry, depending on whether an agent runs.
fn writer(observation: &Observation) -> &'static str {
    match observation.agent.as_ref().is_some_and(AgentContact::is_running) {
        true => "the agent writes it within a second; if it does not, look at its log, or run gybe install",
        false => "start the agent (DaemonSet gybe-node), or run gybe install: no agent runs here",
    }
}

fn restore_entry(observation: &Observation, plugins: &[String]) -> String {
    let plugins: Vec<&str> = plugins.iter().map(String::as_str).collect();
    let writer = writer(observation);
    // The topic `Others` has more details about istio-cni.
    match conflict::likely(&plugins).filter(|_| !plugins.contains(&ISTIO)) {
        Some(owner) => {
            format!("{writer}; if {} undoes this again: {}", owner.name, owner.setting)
        }
        None => writer.to_owned(),
    }
}

/// Whether the runtimes read a network's own directory, if our entry is in one.
pub(super) fn drop_in_support(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    if ours.drop_ins.is_empty() {
        return Vec::new();
    }
    let text = |RuntimeProcess { name, pid, drop_ins, .. }: &RuntimeProcess| match drop_ins {
        Some(DropIns::Loaded) => format!("{name} (process {pid}) reads drop-ins"),
        Some(DropIns::Ignored) => format!("{name} (process {pid}) does not read drop-ins"),
        None => format!("whether {name} (process {pid}) reads drop-ins is unknown"),
    };
    observation
        .runtimes
        .iter()
        .map(|runtime| DoctorFinding::note(About::Chain, text(runtime), None))
        .collect()
}
