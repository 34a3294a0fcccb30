//! Which file a runtime takes, and where our entry is.

use super::programs::program;
use super::sight::Sight;
use super::{About, Finding, of_security};
use crate::install::conflist::Chain;
use crate::install::fight::rivals;
use crate::install::json::{self, Node};
use crate::install::loads::choice::{Broken, Choice, NoChoice, Runtime, Why, candidates, choose};
use crate::install::seen::{ConfDirectory, DROP_IN, FileName, ORIGINAL, Standing, Unreadable};
use crate::platform::Platform;
use crate::settings::PLUGIN;
use nix::errno::Errno;
use std::ffi::OsStr;

/// Where our entry is: in a list, as a network of its own, in a network's directory.
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

    /// Whether no runtime but Multus takes our file, by its name: in a directory of Multus' own on
    /// OpenShift, or as a network of its own elsewhere.
    pub(super) fn is_for_multus(&self, sight: &Sight) -> bool {
        let of_openshift = || sight.platform.places(&sight.ground.root).conf == sight.ground.places.conf;
        let named = !self.alone.is_empty() || (sight.platform == Platform::OpenShift && of_openshift());
        named && self.listed.is_empty() && self.dropped_in.is_empty()
    }

    pub(super) fn is_anywhere(&self) -> bool {
        self.entries().next().is_some()
    }

    /// Every one of them, and where it is.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a FileName, &'a [u8])> + '_ {
        [&self.listed, &self.alone, &self.dropped_in].into_iter().flatten().copied()
    }
}

fn is_of_our_type(bytes: &[u8]) -> bool {
    json::parse(bytes).is_ok_and(|tree| tree.field("type").and_then(Node::as_text) == Some(PLUGIN))
}

pub(super) fn examine(sight: &Sight, ours: &Ours<'_>) -> Vec<Finding> {
    let conf = &sight.snapshot.conf;
    if conf.standing != Standing::There {
        return Vec::new();
    }
    if ours.is_for_multus(sight) {
        return vec![alone(sight, ours)];
    }
    let mut found = broken(sight);
    match (choose(conf, Runtime::Containerd), choose(conf, Runtime::CriO)) {
        (Ok(containerd), Ok(crio)) if containerd == crio => {
            found.push(taken("containerd and CRI-O take", &crio));
            found.push(entry(sight, &crio, ours));
        }
        (Err(NoChoice::Nothing), Err(NoChoice::Nothing)) => {
            found.push(nothing("the runtime", &NoChoice::Nothing));
        }
        (containerd, crio) => {
            let counts = !is_crio(sight);
            found.extend(containerd.err().filter(|_| counts).map(|why| nothing("containerd", &why)));
            // CRI-O's is containerd's as soon as no broken file stands before it.
            match crio {
                Ok(choice) => {
                    found.push(taken("CRI-O takes", &choice));
                    found.push(entry(sight, &choice, ours));
                }
                Err(why) => found.push(nothing("CRI-O", &why)),
            }
        }
    }
    found
}

/// CRI-O runs here, and passes over what containerd stops at.
fn is_crio(sight: &Sight) -> bool {
    let runs = |name: &str| sight.runtimes.iter().any(|runtime| runtime.name == name);
    runs("crio") && !runs("containerd")
}

/// The first good file ends containerd's search; what is broken before it ends everything.
fn broken(sight: &Sight) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut behind_a_good_one = false;
    for candidate in candidates(&sight.snapshot.conf) {
        match candidate {
            Ok(_) => behind_a_good_one = true,
            Err(broken) if behind_a_good_one || is_crio(sight) => {
                found.push(Finding::note(About::Chain, told(&broken), None));
            }
            Err(broken) => {
                let remedy = match &broken.why {
                    Why::Unreadable(Unreadable::Refused(Errno::EACCES | Errno::EPERM)) => of_security(sight),
                    _ => "containerd loads nothing while it is there: remove it, or let its owner write it again".into(),
                };
                found.push(Finding::wrong(About::Chain, told(&broken), remedy));
            }
        }
    }
    found
}

fn told(broken: &Broken) -> String {
    format!("{broken}: {}", broken.why)
}

fn taken(who: &str, choice: &Choice) -> Finding {
    let Choice { file, network } = choice;
    let says = format!("{who} {file}: network {} of {}", network.name, network.plugins.join(", "));
    Finding::well(About::Chain, says)
}

fn nothing(runtime: &str, why: &NoChoice) -> Finding {
    let says = format!("{runtime} has no network: {why}");
    let remedy = match why {
        NoChoice::Nothing => "the primary plugin has not written its file: look at its DaemonSet",
        NoChoice::Stopped(_) => "remove the broken file",
    };
    Finding::wrong(About::Chain, says, remedy)
}

fn entry(sight: &Sight, choice: &Choice, ours: &Ours<'_>) -> Finding {
    let Choice { file, network } = choice;
    let plugins: Vec<&str> = network.plugins.iter().map(String::as_str).collect();
    let elsewhere: Vec<String> = ours.listed.iter().map(|(name, _)| name.to_string()).collect();
    if plugins.last() == Some(&PLUGIN) {
        let how = if ours.dropped_in.is_empty() { "" } else { " (as a drop-in)" };
        return Finding::well(About::Chain, format!("{PLUGIN} is last in {file}{how}, as wanted"));
    }
    if plugins.contains(&PLUGIN) {
        let says = format!(
            "{PLUGIN} is wanted last in {file}, and {} comes behind it",
            plugins.last().unwrap_or(&"")
        );
        return Finding::wrong(About::Chain, says, heal(&plugins));
    }
    if let Some(found) = not_installed(sight, ours) {
        return found;
    }
    if !ours.is_anywhere() {
        let says = format!("{PLUGIN} is not in {file}: new pods are not redirected");
        return Finding::wrong(About::Chain, says, heal(&plugins));
    }
    let others = elsewhere
        .into_iter()
        .chain(ours.dropped_in.iter().map(|(network, _)| format!("{network}/{DROP_IN}")));
    let says =
        format!("{PLUGIN} is in {}, and the runtime takes {file}", others.collect::<Vec<_>>().join(", "));
    Finding::wrong(About::Chain, says, heal(&plugins))
}

/// What Multus calls is judged by itself: which network a runtime takes is Multus' own business there.
fn alone(sight: &Sight, ours: &Ours<'_>) -> Finding {
    if let Some((name, _)) = ours.alone.first() {
        let says = format!("{PLUGIN} is a network of its own in {name}, for Multus to call");
        return Finding::well(About::Chain, says);
    }
    not_installed(sight, ours).unwrap_or_else(|| {
        let says = format!("{PLUGIN} is in no conf file, and Multus has no network to call");
        Finding::wrong(About::Chain, says, "the agent writes it within a second with shape: standalone: look at its log, or run gybe install --shape standalone")
    })
}

fn not_installed(sight: &Sight, ours: &Ours<'_>) -> Option<Finding> {
    let says = format!("{PLUGIN} is in no conf file: Gybe is not installed on this node");
    let remedy = "gybe install, or the DaemonSet gybe-node, puts it there";
    let is_there = ours.is_anywhere() || program(sight, "gybe").is_some();
    (!is_there).then(|| Finding::note(About::Chain, says, Some(remedy)))
}

fn heal(plugins: &[&str]) -> String {
    let agent = "the agent writes it within a second: look at its log, or run gybe install";
    match rivals::likely(plugins) {
        Some(rival) => format!("{agent}; if it keeps coming back, that is {}: {}", rival.name, rival.setting),
        None => agent.to_owned(),
    }
}
