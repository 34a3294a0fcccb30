//! Findings about the programs in the runtime's directory: whether they exist, are complete, run, and are
//! writable only by root.

use super::observe::{FileSystem, Observation};
use super::{About, Finding, Section, of_security};
use crate::host::apply::TrialError;
use crate::host::conflist::ISTIO;
use crate::host::entries::OurEntries;
use crate::host::image::PLUGIN;
use crate::host::image::{TOOL, every_name};
use crate::host::observe::{ProgramFile, Unreadable};
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

pub(super) fn examine(observation: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = every_name()
        .filter(|name| *name != ISTIO)
        .filter_map(|name| Some(of_program(observation, name, program(observation, name)?)))
        .collect();
    if program(observation, PLUGIN).is_none() {
        let text =
            format!("the program {PLUGIN} is missing, and a conf file or an existing sandbox may need it");
        let remedy =
            "run gybe install: until then every ADD and DEL that needs it fails, and CRI-O drops the network";
        found.push(Finding::wrong(About::Programs, text, remedy).in_section(Section::NodeNotReady));
    } else if ours.is_anywhere() && program(observation, TOOL).is_none() {
        let text =
            "the program gybe is missing next to the plugin, so the plugin cannot query the API server";
        found.push(Finding::note(About::Programs, text, Some("run gybe install")));
    }
    // That no program can be run, or this one, has its own finding.
    let is_noexec =
        |space: &FileSystem| space.of == "program" && space.space.is_ok_and(|space| space.no_exec);
    let may_run = program(observation, PLUGIN).is_some_and(|plugin| is_executable(plugin.access.mode))
        && !observation.file_systems.iter().any(is_noexec);
    let trial = observation.trial.as_ref().filter(|_| may_run);
    found.extend(trial.map(|trial| of_trial(observation, trial)));
    found.extend(other_build(observation));
    found
}

fn of_program(observation: &Observation, name: &str, program: &ProgramFile) -> Finding {
    let access = program.access;
    let hash = match &program.hash {
        Ok(hash) => hash.to_string(),
        Err(Unreadable::System(Errno::EACCES | Errno::EPERM)) => {
            return Finding::wrong(
                About::Programs,
                format!("{name} cannot be read"),
                of_security(observation),
            );
        }
        Err(why) => {
            let text = format!("{name} is not a program: {why}");
            return Finding::wrong(About::Programs, text, "remove it, and run gybe install");
        }
    };
    if access.mode & 0o022 != 0 || (access.uid != 0 && access.uid != observation.snapshot.us) {
        let text =
            format!("{name} is writable by other users: mode {:04o}, owner {}", access.mode, access.uid);
        return Finding::wrong(
            About::Programs,
            text,
            "run gybe install: a user who writes it can become root",
        );
    }
    if !is_executable(access.mode) {
        let text = format!("{name} is not executable: mode {:04o}", access.mode);
        return Finding::wrong(About::Programs, text, "run gybe install").in_section(Section::NodeNotReady);
    }
    let short: String = hash.chars().take(12).collect();
    Finding::well(About::Programs, format!("{name}: mode {:04o}, SHA-256 {short}…", access.mode))
}

fn is_executable(mode: u32) -> bool {
    mode & 0o111 == 0o111
}

fn of_trial(observation: &Observation, trial: &Result<(), TrialError>) -> Finding {
    match trial {
        Ok(()) => Finding::well(About::Programs, format!("{PLUGIN} answers VERSION")),
        Err(why) => {
            let text = match why {
                TrialError::Another => format!("{PLUGIN} is another program: {why}"),
                why => format!("{PLUGIN} does not run: {}", with_reason(why)),
            };
            let remedy = match why {
                TrialError::NotRun(Errno::EACCES | Errno::EPERM) => of_security(observation),
                TrialError::Hung | TrialError::Another => why.hint().unwrap_or_default().into_owned().into(),
                _ => "run gybe install, which replaces it with a program for this node's architecture".into(),
            };
            Finding::wrong(About::Programs, text, remedy).in_section(Section::NodeNotReady)
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
fn other_build(observation: &Observation) -> Option<Finding> {
    let text = format!("{PLUGIN} is another build than the one next to this gybe");
    observation
        .offers_another_build
        .then(|| Finding::note(About::Programs, text, Some("run gybe install, which installs this one")))
}
