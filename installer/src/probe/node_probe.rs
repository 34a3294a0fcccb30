//! Findings about the node kept up to date: tried out at the start, and again when somebody has
//! forgotten them, when they are doubtful, or when they are another kernel's. The plugin forgets them
//! on the first "not supported"; here that is seen at once, so that the next ADD finds new ones.

mod rhythm;

use crate::host::platform::Platform;
use crate::host::runtimes::processes::{DropInCheck, RuntimeProcess, running};
use crate::host::runtimes::report::RuntimeReport;
use crate::host::watch::{DirectoryWatch, WakeReason};
use crate::log::Journal;
use gybe_netfilter::backend::BackendKind;
use gybe_netfilter::choose::{BackendSetting, choose};
use gybe_netfilter::hint::Hint;
use gybe_netfilter::probe::Capabilities;
use gybe_plugin::probe_cache::{DIRECTORY, MaxAge, ProbeCache, ProbeCacheError, ProbeReport};
use nix::sys::signalfd::SignalFd;
use rhythm::{Kept, Rhythm, is_flawless};
use serde_json::json;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// What the kernel does not report is looked at as often: which runtime runs, and its configuration.
const IDLE: Duration = Duration::from_secs(60);

/// A backend that has not been tried.
#[must_use]
pub fn untried(known: &Capabilities) -> Option<BackendKind> {
    BackendKind::ALL.into_iter().find(|kind| !known.backends.contains(*kind))
}

/// Tries everything out, whatever is known, and keeps what it finds.
///
/// # Errors
/// When nothing can be tried here.
pub fn afresh() -> Result<ProbeReport, ProbeCacheError> {
    ProbeCache::default().get_or_probe(MaxAge::Fresh, untried)
}

/// Keeps findings up to date until `stop` is readable. `learnt` is what has just been found out.
pub(crate) fn watch(learnt: &ProbeReport, stop: &SignalFd, journal: &Journal) {
    let mut watch = DirectoryWatch::new([DIRECTORY.into()]);
    let mut rhythm = Rhythm::start(&learnt.capabilities, Instant::now());
    tell(journal, learnt);
    let mut runtimes = Vec::new();
    loop {
        keep_runtimes(&mut runtimes, journal);
        // After the watch was armed: what changes from here on wakes the wait below.
        let now = Instant::now();
        let wait = match rhythm.due(&kept(&ProbeCache::default())) {
            None => IDLE,
            Some(due) if due > now => due - now,
            Some(_) => {
                rhythm.tried(again(journal).as_ref(), now);
                continue;
            }
        };
        if watch.wait(wait, Some(stop.as_fd())) == WakeReason::Readable {
            return;
        }
    }
}

/// Keeps what is seen of the node's runtimes, for the agent. It is called where the host's root is this thread's.
/// A runtime's program is read once: it has some 50 MB.
fn keep_runtimes(known: &mut Vec<RuntimeProcess>, journal: &Journal) {
    let root = Path::new("/");
    let conf = Platform::of_host(root).places(root).conf;
    let mut seen = running(root, &conf, DropInCheck::Skip);
    let same =
        |one: &RuntimeProcess, other: &RuntimeProcess| (&one.name, one.pid) == (&other.name, other.pid);
    if seen.iter().any(|one| !known.iter().any(|other| same(one, other))) {
        seen = running(root, &conf, DropInCheck::Read);
    } else {
        for one in &mut seen {
            one.drop_ins = known.iter().find(|other| same(one, other)).and_then(|other| other.drop_ins);
        }
    }
    known.clone_from(&seen);
    if let Err(why) = RuntimeReport::of(root, &seen).keep_in(Path::new(DIRECTORY)) {
        let more = json!({ "why": why.to_string() });
        journal.tell("warn", "gybe probe: what was seen of the runtimes cannot be kept in /run/gybe", more);
    }
}

/// What is in the file, as others see it.
fn kept(cache: &ProbeCache) -> Kept {
    match cache.load() {
        Some(known) if untried(&known).is_none() && is_flawless(&known) => Kept::Complete,
        Some(_) => Kept::Doubtful,
        None if cache.exists() => Kept::Doubtful,
        None => Kept::Gone,
    }
}

fn again(journal: &Journal) -> Option<Capabilities> {
    match ProbeCache::default().get_or_probe(MaxAge::Recent, untried) {
        Ok(learnt) => {
            tell(journal, &learnt);
            Some(learnt.capabilities)
        }
        Err(why) => {
            let hint = why.hint();
            journal.tell(
                "error",
                "gybe probe: cannot find out again",
                json!({ "why": why.to_string(), "hint": hint }),
            );
            None
        }
    }
}

fn tell(journal: &Journal, learnt: &ProbeReport) {
    match choose(&learnt.capabilities, BackendSetting::Auto) {
        Ok(choice) => {
            let more =
                json!({ "backend": choice.backend.name(), "why": choice.why, "kernel": learnt.node.kernel });
            journal.tell("info", "gybe probe: found out", more);
        }
        Err(none) => {
            let more = json!({ "why": none.to_string(), "hint": none.hint(), "kernel": learnt.node.kernel });
            journal.tell("error", "gybe probe: no backend works", more);
        }
    }
    if let Some(why) = &learnt.store_error {
        journal.tell(
            "warn",
            "gybe probe: this cannot be kept in /run/gybe",
            json!({ "why": why.to_string() }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_netfilter::probe::{Finding, Profile, Refusal};
    use gybe_plugin::probe_cache::findings;
    use gybe_plugin::probe_cache::this_node;
    use std::fs;

    /// What the plugin goes by for the boot is asked again here, and nowhere on the path of a pod.
    #[test]
    fn what_does_not_work_is_doubtful_though_another_backend_does_everything() {
        let place = std::env::temp_dir().join(format!("gybe-node-probe-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        let cache = ProbeCache::at(&place);
        assert_eq!(kept(&cache), Kept::Gone);
        for (of_legacy, found) in [
            (Some(Finding::Works), Kept::Complete),
            (Some(Finding::Refused(Refusal::default())), Kept::Doubtful),
            (None, Kept::Doubtful),
        ] {
            let all = |finding: Finding| {
                Profile::ALL.map(|profile| (profile, finding.clone())).into_iter().collect()
            };
            let findings = [Some(Finding::Works), Some(Finding::Works), of_legacy];
            let backends = BackendKind::ALL.into_iter().zip(findings);
            let backends = backends.filter_map(|(kind, finding)| Some((kind, all(finding?)))).collect();
            let capabilities = Capabilities { backends, ..Capabilities::default() };
            let json = findings::to_json(&this_node().unwrap(), &capabilities);
            fs::write(place.join("probe.json"), json.to_string()).unwrap();
            assert_eq!(kept(&cache), found);
        }
        fs::remove_dir_all(&place).unwrap();
    }
}
