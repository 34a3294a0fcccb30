//! `gybe install` and `gybe uninstall` by an operator: the same passes as the agent's, once, and without a
//! cluster. What the agent learns from the cluster is observed on the node, or set by flags.

mod elsewhere;
mod out;
mod rest;
mod run_directory;

pub use elsewhere::Elsewhere;
pub use out::{Out, Stays, StaysWhile, leave};
pub use run_directory::forget_run_directory;

use crate::host::image::Image;
use crate::host::install::entry::EntryError;
use crate::host::install::perform::{Busy, Failed};
use crate::host::install::plan::{Plan, plan};
use crate::host::install::runtimes::Runtimes;
use crate::host::install::seen::{Hashes, Interest, Places, Snapshot, look};
use crate::host::install::wanted::{TakeOver, Wanted};
use crate::host::install::{Memory, Pass, pass};
use crate::host::istio_cni::{accepts_log, our_stand_in, stand_in};
use crate::host::settings::{Burial, OnNode, Settings, TakeOverWish};
use crate::probe::node_backend::{NodeProbe, node_backend};

/// How often a pass is repeated because another program wrote at the same time.
const ATTEMPTS: usize = 3;

/// The desired state for these settings.
///
/// # Errors
/// Never with an entry made here; the type cannot express that.
pub fn wanted(settings: &Settings, image: &Image, found: Option<&NodeProbe>) -> Result<Wanted, EntryError> {
    let backend = node_backend(settings.choices.conf.backend, None, found);
    let take_over = match settings.choices.take_over {
        // A socket that accepts connections belongs to istio-cni's agent, which may write the entry again; pods
        // are not queried here.
        TakeOverWish::Wait if accepts_log(&settings.ground.istio_run) => TakeOver::Waits,
        TakeOverWish::Now | TakeOverWish::Wait => TakeOver::Now,
    };
    let places = &settings.ground.places;
    let stand_in = stand_in(
        &look(places, &Interest::in_programs([]), &mut Hashes::default()),
        our_stand_in(&places.programs),
    );
    let burial = Burial::Now;
    settings.wanted(&OnNode { image, backend: Some(&backend), probed: None, take_over, stand_in, burial })
}

/// The plan for the observed state, without applying it.
#[must_use]
pub fn foreseen(places: &Places, wanted: &Wanted, runtimes: Runtimes) -> Plan {
    let seen = look(places, &wanted.interest(), &mut Hashes::default());
    plan(&Snapshot { runtimes, ..seen }, wanted)
}

/// Runs one pass, and repeats it if another program wrote at the same time.
///
/// # Errors
/// If another gybe, most likely the agent, holds the lock.
pub fn settle(places: &Places, wanted: &Wanted, runtimes: &Runtimes) -> Result<Pass, Busy> {
    let one = || {
        let mut memory = Memory::default();
        memory.learn(runtimes.clone());
        pass(places, wanted, &mut memory)
    };
    let mut passed = one()?;
    for _ in 1..ATTEMPTS {
        if passed.performed.failed.is_empty() || !passed.performed.failed.iter().all(Failed::is_overtaken) {
            break;
        }
        passed = one()?;
    }
    Ok(passed)
}
