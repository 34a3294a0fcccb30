//! `gybe install` and `gybe uninstall` by an operator: the same passes as the agent's, once, and without a
//! cluster. Flags or observations of the node replace the values that the agent queries from the cluster.

use crate::host::apply::{Busy, FailedChange};
use crate::host::conflist::entry::EntryError;
use crate::host::desired::{DesiredState, TakeOver};
use crate::host::image::Image;
use crate::host::istio_cni::{accepts_log, our_stand_in, stand_in};
use crate::host::observe::runtimes::Runtimes;
use crate::host::observe::{HashCache, NodeDirectories, ObserveScope, ObservedState, observe};
use crate::host::pass::{Pass, PassHistory, pass};
use crate::host::plan::{Plan, plan};
use crate::host::settings::{NodeContext, ProgramRemoval, Settings, TakeOverSetting};
use crate::probe::node_backend::{NodeProbe, node_backend};

/// How often a pass is repeated because another program wrote at the same time.
const ATTEMPTS: usize = 3;

/// The desired state for these settings.
///
/// # Errors
/// Never in practice: settings make a valid entry.
pub fn desired(
    settings: &Settings,
    image: &Image,
    found: Option<&NodeProbe>,
) -> Result<DesiredState, EntryError> {
    let backend = node_backend(settings.options.conf.backend, None, found);
    let take_over = match settings.options.take_over {
        // A socket that accepts connections belongs to istio-cni's agent, which may write the entry again; pods
        // are not queried here.
        TakeOverSetting::Wait if accepts_log(&settings.environment.istio_run) => TakeOver::Waits,
        TakeOverSetting::Now | TakeOverSetting::Wait => TakeOver::Now,
    };
    let directories = &settings.environment.directories;
    let stand_in = stand_in(
        &observe(directories, &ObserveScope::in_programs([]), &mut HashCache::default()),
        our_stand_in(&directories.programs),
    );
    let program_removal = ProgramRemoval::Now;
    settings.desired(&NodeContext {
        image,
        backend: Some(&backend),
        probed: None,
        take_over,
        stand_in,
        program_removal,
    })
}

/// The plan for the observed state, without applying it.
#[must_use]
pub fn planned(directories: &NodeDirectories, desired: &DesiredState, runtimes: Runtimes) -> Plan {
    let observed = observe(directories, &desired.interest(), &mut HashCache::default());
    plan(&ObservedState { runtimes, ..observed }, desired)
}

/// Runs one pass, and repeats it if another program wrote at the same time.
///
/// # Errors
/// If another gybe, most likely the agent, holds the lock.
pub fn settle(
    directories: &NodeDirectories,
    desired: &DesiredState,
    runtimes: &Runtimes,
) -> Result<Pass, Busy> {
    let one = || {
        let mut memory = PassHistory::default();
        memory.set_runtimes(runtimes.clone());
        pass(directories, desired, &mut memory)
    };
    let mut passed = one()?;
    for _ in 1..ATTEMPTS {
        if passed.applied.failed.is_empty() || !passed.applied.failed.iter().all(FailedChange::is_overtaken) {
            break;
        }
        passed = one()?;
    }
    Ok(passed)
}
