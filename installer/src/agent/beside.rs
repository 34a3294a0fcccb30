//! What runs beside the sockets of an agent that keeps its node: the healing loop, HTTP, and whoever
//! asks about the node's label. They begin before the sockets' loop, and end after it.

use super::asked::Asked;
use super::bulletin::Bulletin;
use super::calls::Calls;
use super::daemonset::DaemonSet;
use super::healing::{Around, Healing, Keeping};
use super::label::{Home, Label};
use super::page::Page;
use super::sockets::Unserved;
use super::view::View;
use super::{NodeError, health, http, metrics};
use crate::agent::agent_status::AgentStatus;
use crate::agent::cluster::Fate;
use crate::error::errno;
use crate::host::settings::Environment;
use crate::log::Journal;
use serde_json::json;
use std::io::{PipeReader, pipe};
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;
use tokio::sync::oneshot;

/// What they share.
pub(super) struct Beside<'a> {
    pub(super) pods: &'a Asked<'a>,
    pub(super) calls: &'a Calls,
    pub(super) unserved: &'a Unserved,
    pub(super) journal: &'a Journal,
    pub(super) home: Option<Home>,
}

impl Beside<'_> {
    /// Runs them for as long as `serving` takes.
    pub(super) fn run(
        &self,
        keeping: Keeping,
        serving: impl FnOnce(&(dyn Fn() -> AgentStatus + Sync)) -> Result<(), NodeError>,
    ) -> Result<(), NodeError> {
        let wait = |what| move |why: std::io::Error| NodeError::Wait { what, source: errno(&why) };
        let (stop, running) = pipe().map_err(wait("the end"))?;
        let (bulletin, label) = (Bulletin::default(), Label::default());
        let ground = keeping.settings.ground().clone();
        let set = DaemonSet::new(self.home.as_ref(), &ground.namespace);
        let (end_http, http_ends) = oneshot::channel();
        let around = Around {
            pods: self.pods,
            calls: self.calls,
            journal: self.journal,
            bulletin: &bulletin,
            label: self.home.as_ref().map(|_| &label),
        };
        let healing = Healing::new(keeping, around);
        let (pods, calls, unserved) = (self.pods, self.calls, self.unserved);
        let view = View { bulletin: &bulletin, pods, calls, unserved, started: Instant::now() };
        thread::scope(|scope| {
            let healing = scope.spawn(|| healing.run(stop.as_fd()));
            let seen = scope.spawn(|| set.look(stop.as_fd()));
            scope.spawn(|| self.label(&label, &stop));
            scope.spawn(|| self.http(&ground, &view, http_ends));
            let served = serving(&|| health::status(&view.look()));
            // Whoever polls the other end wakes.
            drop(running);
            if let (Ok(healing), Ok(())) = (healing.join(), seen.join()) {
                self.end(healing, &set);
            }
            drop(end_http);
            served
        })
    }

    fn label(&self, label: &Label, stop: &PipeReader) {
        if let Some(home) = &self.home {
            label.follow(home, stop.as_fd(), self.journal);
        }
    }

    fn http(&self, ground: &Environment, view: &View<'_>, ends: oneshot::Receiver<()>) {
        let health = |path: &str| health::page(path, &view.look()).unwrap_or_else(Page::unknown);
        let numbers = |path: &str| match path {
            "/metrics" => Page::metrics(metrics::text(&view.look())),
            _ => Page::unknown(),
        };
        let health = ground.health.map(|listen| (listen, &health as http::Answer<'_>, "health"));
        let numbers = ground.metrics.map(|listen| (listen, &numbers as http::Answer<'_>, "metrics"));
        let places: Vec<http::Place<'_>> = health.into_iter().chain(numbers).collect();
        if let Err(why) = http::serve(&places, ends, self.journal) {
            self.journal.tell(
                "error",
                "gybe node: nothing is served over HTTP",
                json!({ "why": why.to_string() }),
            );
        }
    }

    /// Everything stays in place, unless the operator wants us gone with our DaemonSet, and it is.
    fn end(&self, mut healing: Healing<'_>, set: &DaemonSet<'_>) {
        let is_wanted = healing.settings().choices.leave_when_daemonset_gone;
        let Some(fate) = is_wanted.then(|| set.fate()).flatten() else { return };
        let told = |level, message, cause: &str| {
            let hint = "to take the node out of the chain, run gybe uninstall on it";
            self.journal.tell(level, message, json!({ "cause": cause, "hint": hint }));
        };
        match fate {
            Fate::Gone | Fate::BeingDeleted => {
                self.journal.tell("info", "gybe node: the DaemonSet is gone, and so are we", json!({}));
                healing.leave();
            }
            Fate::Present => {}
            Fate::Refused(cause) => {
                told(
                    "warn",
                    "gybe node: nobody may say whether the DaemonSet is gone; everything stays",
                    &cause,
                );
            }
            Fate::Unknown(cause) => {
                told(
                    "warn",
                    "gybe node: nobody says whether the DaemonSet is gone; everything stays",
                    &cause,
                );
            }
        }
    }
}
