//! Findings about the programs, and about leftovers: of an uninstall that has to wait, or of a process that was killed.

use super::observe::{AgentContact, FileSystem, Observation};
use super::{About, DoctorFinding, Section, access_remedy};
use crate::host::apply::TrialError;
use crate::host::conflist::ISTIO;
use crate::host::entries::OurEntries;
use crate::host::image::{PLUGIN, TOOL, every_name};
use crate::host::observe::{CachedPlugins, ORIGINAL, ProgramFile, Unreadable};
use crate::host::problem::ProgramFault;
use gybe_netfilter::model::Hint;
use nix::errno::Errno;
use std::ffi::OsStr;

/// Reports whether the plugin or the tool exists under its own name.
pub(super) fn are_there(observation: &Observation) -> bool {
    [PLUGIN, TOOL].iter().any(|name| program(observation, name).is_some())
}

pub(super) fn program<'a>(observation: &'a Observation, name: &str) -> Option<&'a ProgramFile> {
    observation.snapshot.programs.files.get(OsStr::new(name))
}

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    let mut found: Vec<DoctorFinding> = every_name()
        .filter(|name| *name != ISTIO)
        .filter_map(|name| Some(of_program(observation, name, program(observation, name)?)))
        .collect();
    if program(observation, PLUGIN).is_none() {
        let text =
            format!("the program {PLUGIN} is missing, and a conf file or an existing sandbox may need it");
        let remedy =
            "run gybe install: until then every ADD and DEL that needs it fails, and CRI-O drops the network";
        found.push(DoctorFinding::wrong(About::Programs, text, remedy).in_section(Section::NodeNotReady));
    } else if ours.is_anywhere() && program(observation, TOOL).is_none() {
        let text =
            "the program gybe is missing next to the plugin, so the plugin cannot query the API server";
        found.push(DoctorFinding::note(About::Programs, text, Some("run gybe install")));
    }
    // That no program can be run, or this one, has its own finding.
    let is_noexec =
        |space: &FileSystem| space.of == "program" && space.space.is_ok_and(|space| space.no_exec);
    let may_run = program(observation, PLUGIN).is_some_and(|plugin| plugin.access.is_executable_for_all())
        && !observation.file_systems.iter().any(is_noexec);
    let trial = observation.trial.as_ref().filter(|_| may_run);
    found.extend(trial.map(|trial| of_trial(observation, trial)));
    found.extend(other_build(observation));
    found
}

fn of_program(observation: &Observation, name: &str, program: &ProgramFile) -> DoctorFinding {
    let access = program.access;
    let hash = match &program.hash {
        Ok(hash) => hash.to_string(),
        Err(Unreadable::System(Errno::EACCES | Errno::EPERM)) => {
            return DoctorFinding::wrong(
                About::Programs,
                format!("{name} cannot be read"),
                access_remedy(observation),
            );
        }
        Err(why) => {
            let text = format!("{name} is not a program: {why}");
            return DoctorFinding::wrong(About::Programs, text, "remove it, and run gybe install");
        }
    };
    let fault = ProgramFault::of(access, observation.snapshot.us);
    if fault == Some(ProgramFault::Writable) {
        let text =
            format!("{name} is writable by other users: mode {:04o}, owner {}", access.mode, access.uid);
        return DoctorFinding::wrong(
            About::Programs,
            text,
            "run gybe install: a user who writes it can become root",
        );
    }
    if fault.is_some() {
        let text = format!("{name} is not executable: mode {:04o}", access.mode);
        return DoctorFinding::wrong(About::Programs, text, "run gybe install")
            .in_section(Section::NodeNotReady);
    }
    let short: String = hash.chars().take(12).collect();
    DoctorFinding::well(About::Programs, format!("{name}: mode {:04o}, SHA-256 {short}…", access.mode))
}

fn of_trial(observation: &Observation, trial: &Result<(), TrialError>) -> DoctorFinding {
    match trial {
        Ok(()) => DoctorFinding::well(About::Programs, format!("{PLUGIN} answers VERSION")),
        Err(why) => {
            let text = match why {
                TrialError::Another => format!("{PLUGIN} is another program: {why}"),
                why => format!("{PLUGIN} does not run: {}", with_reason(why)),
            };
            let remedy = match why {
                TrialError::NotRun(Errno::EACCES | Errno::EPERM) => access_remedy(observation),
                TrialError::Hung | TrialError::Another => why.hint().unwrap_or_default().into_owned().into(),
                _ => "run gybe install, which replaces it with a program for this node's architecture".into(),
            };
            DoctorFinding::wrong(About::Programs, text, remedy).in_section(Section::NodeNotReady)
        }
    }
}

fn with_reason(why: &TrialError) -> String {
    match why {
        TrialError::NotRun(Errno::ENOEXEC) => {
            format!("{why}: it is empty, damaged, or for another architecture (Exec format error)")
        }
        TrialError::NotRun(errno) => format!("{why}: {}", errno.desc()),
        why => why.to_string(),
    }
}

/// Another version works too, but an operator who expects this one should know.
fn other_build(observation: &Observation) -> Option<DoctorFinding> {
    let text = format!("{PLUGIN} is another build than the one next to this gybe");
    observation.offers_another_build.then(|| {
        DoctorFinding::note(About::Programs, text, Some("run gybe install, which installs this one"))
    })
}

/// Findings about leftovers.
pub(super) fn leftovers(observation: &Observation, ours: &OurEntries<'_>) -> Vec<DoctorFinding> {
    let mut found = Vec::new();
    let agent = observation.agent.as_ref().filter(|agent| !agent.is_absent());
    // An agent that does not leave restores the entry.
    if !ours.is_anywhere() && agent.is_none_or(AgentContact::leaves) {
        found.extend(program(observation, PLUGIN).map(|_| tombstone(observation, agent)));
        let originals = observation.snapshot.conf.files.keys().filter(|name| name.ends_in(ORIGINAL));
        let originals: Vec<String> = originals.map(ToString::to_string).collect();
        if !originals.is_empty() {
            let text =
                format!("files that gybe set aside and that are no longer needed: {}", originals.join(", "));
            let remedy =
                agent.map_or("run gybe uninstall, which removes them", |_| "the node agent removes them");
            found.push(DoctorFinding::note(About::Leftovers, text, Some(remedy)));
        }
    }
    let has_temporary = [
        (observation.snapshot.conf.has_temporary, "conf"),
        (observation.snapshot.programs.has_temporary, "program"),
    ];
    for (_, of) in has_temporary.iter().filter(|(there, _)| *there) {
        let text = format!("a gybe that was killed left a temporary file in the {of} directory");
        found.push(DoctorFinding::note(
            About::Leftovers,
            text,
            Some("run gybe install, or wait for the agent's next pass: both remove it"),
        ));
    }
    found
}

/// `agent` is the agent that removes Gybe from the node, if one runs.
fn tombstone(observation: &Observation, agent: Option<&AgentContact>) -> DoctorFinding {
    let reason = "the DEL of existing sandboxes needs it";
    let (text, remedy) = match &observation.snapshot.cached {
        CachedPlugins::Unknown => (
            format!("no conf file names {PLUGIN}, and it is unknown which sandboxes still need it"),
            "let --results-dir name libcni's cache (/var/lib/cni/results), or drain the node; then run gybe uninstall",
        ),
        cached if cached.may_name(PLUGIN) => (
            format!("no conf file names {PLUGIN}, but its program has to stay: {reason}"),
            "run gybe uninstall when those pods are gone; do not remove the program before",
        ),
        CachedPlugins::Named(_) => (
            format!("no conf file names {PLUGIN}, and no sandbox needs its program"),
            "run gybe uninstall to remove it, or gybe install to restore the entry",
        ),
    };
    let remedy = agent.map_or(
        remedy,
        |_| "the node agent removes it as soon as no sandbox needs it; do not remove it before",
    );
    DoctorFinding::note(About::Leftovers, text, Some(remedy))
}
