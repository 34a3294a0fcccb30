//! Findings about the programs in the runtime's directory: whether they exist, are complete, run, and are
//! writable only by root.

use super::observe::Observation;
use super::{About, Finding, of_security};
use crate::host::apply::TrialError;
use crate::host::conflist::ISTIO;
use crate::host::entries::OurEntries;
use crate::host::image::PLUGIN;
use crate::host::image::{TOOL, every_name};
use crate::host::observe::{ProgramFile, Unreadable};
use gybe_netfilter::hint::Hint;
use nix::errno::Errno;
use std::ffi::OsStr;

/// Reports whether the plugin or the tool exists under its own name.
pub(super) fn are_there(sight: &Observation) -> bool {
    [PLUGIN, TOOL].iter().any(|name| program(sight, name).is_some())
}

pub(super) fn program<'a>(sight: &'a Observation, name: &str) -> Option<&'a ProgramFile> {
    sight.snapshot.programs.files.get(OsStr::new(name))
}

pub(super) fn examine(sight: &Observation, ours: &OurEntries<'_>) -> Vec<Finding> {
    let mut found: Vec<Finding> = every_name()
        .filter(|name| *name != ISTIO)
        .filter_map(|name| Some(of_program(sight, name, program(sight, name)?)))
        .collect();
    if program(sight, PLUGIN).is_none() {
        let says =
            format!("the program {PLUGIN} is missing, and a conf file or a living sandbox may name it");
        let remedy =
            "run gybe install: until then every ADD and DEL that needs it fails, and CRI-O drops the network";
        found.push(Finding::wrong(About::Programs, says, remedy));
    } else if ours.is_anywhere() && program(sight, TOOL).is_none() {
        let says =
            "the program gybe is missing next to the plugin, so the plugin cannot query the API server";
        found.push(Finding::note(About::Programs, says, Some("run gybe install")));
    }
    found.extend(sight.trial.as_ref().map(|trial| tried(sight, trial)));
    found.extend(another(sight));
    found
}

fn of_program(sight: &Observation, name: &str, program: &ProgramFile) -> Finding {
    let access = program.access;
    let hash = match &program.hash {
        Ok(hash) => hash.to_string(),
        Err(Unreadable::System(Errno::EACCES | Errno::EPERM)) => {
            return Finding::wrong(About::Programs, format!("{name} cannot be read"), of_security(sight));
        }
        Err(why) => {
            let says = format!("{name} is not a program: {why}");
            return Finding::wrong(About::Programs, says, "remove it, and run gybe install");
        }
    };
    if access.mode & 0o022 != 0 || (access.uid != 0 && access.uid != sight.snapshot.us) {
        let says =
            format!("{name} is writable by other users: mode {:04o}, owner {}", access.mode, access.uid);
        return Finding::wrong(
            About::Programs,
            says,
            "run gybe install: a user who writes it can become root",
        );
    }
    if access.mode & 0o111 != 0o111 {
        let says = format!("{name} is not executable: mode {:04o}", access.mode);
        return Finding::wrong(About::Programs, says, "run gybe install");
    }
    let short: String = hash.chars().take(12).collect();
    Finding::well(About::Programs, format!("{name}: mode {:04o}, SHA-256 {short}…", access.mode))
}

fn tried(sight: &Observation, trial: &Result<(), TrialError>) -> Finding {
    match trial {
        Ok(()) => Finding::well(About::Programs, format!("{PLUGIN} answers VERSION")),
        Err(why) => {
            let says = format!("{PLUGIN} does not run: {}", with_reason(why));
            let remedy = match why {
                TrialError::NotRun(Errno::EACCES | Errno::EPERM) => of_security(sight),
                why => why.hint().unwrap_or("run gybe install, which replaces it".into()).into_owned(),
            };
            Finding::wrong(About::Programs, says, remedy)
        }
    }
}

fn with_reason(why: &TrialError) -> String {
    match why {
        TrialError::NotRun(errno) => format!("{why}: {}", errno.desc()),
        why => why.to_string(),
    }
}

/// Another version works too, but an operator who expects this one should know.
fn another(sight: &Observation) -> Option<Finding> {
    let says = format!("{PLUGIN} is another build than the one next to this gybe");
    sight
        .brings_another
        .then(|| Finding::note(About::Programs, says, Some("run gybe install, which places this one")))
}
