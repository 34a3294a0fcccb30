//! The agent's two sockets, and that they go on standing: without them every ADD of a meshed pod is
//! refused, and an uninstall, or whoever cleans up `/run`, may take them away at any time.

use super::NodeError;
use super::journal::{Journal, LogSocket};
use super::place::PlaceError;
use crate::facts_socket::FactsSocket;
use crate::layers::chain;
use gybe_plugin::conf::LOG_SOCKET;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Where the plugin asks, and where it sends its lines.
#[derive(Debug)]
pub(super) struct Sockets {
    pub(super) facts: FactsSocket,
    pub(super) log: LogSocket,
    path: PathBuf,
}

/// Why one of them does not stand, for who is asked about the agent's health.
#[derive(Debug, Default)]
pub(crate) struct Unserved(Mutex<Option<String>>);

impl Unserved {
    pub(crate) fn read(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether that is news.
    fn note(&self, why: Option<&String>) -> bool {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = noted.as_ref() != why;
        *noted = why.cloned();
        is_news
    }
}

impl Sockets {
    /// The one for facts at that path, the other beside it.
    pub(super) fn open(path: &Path) -> Result<Self, NodeError> {
        Ok(Self { facts: facts(path)?, log: log(path)?, path: path.to_owned() })
    }

    /// Whether who speaks to either is heard.
    pub(super) fn stand(&self) -> bool {
        self.facts.stands() && self.log.stands()
    }

    /// Makes anew what was taken away. Where that cannot be done, because the directory that is mounted
    /// here was deleted on the host, only another start helps.
    pub(super) fn keep(&mut self, unserved: &Unserved, journal: &Journal) {
        let made = self.anew();
        if let Ok(true) = made {
            journal.tell("warn", "gybe node: its sockets had been taken away; serving again", json!({}));
        }
        let why = made.err().map(|why| chain(&why));
        if unserved.note(why.as_ref())
            && let Some(why) = why
        {
            journal.tell("error", "gybe node: nobody can ask the agent", json!({ "why": why }));
        }
    }

    fn anew(&mut self) -> Result<bool, NodeError> {
        let (facts_stand, log_stands) = (self.facts.stands(), self.log.stands());
        if !facts_stand {
            self.facts = facts(&self.path)?;
        }
        if !log_stands {
            self.log = log(&self.path)?;
        }
        Ok(!(facts_stand && log_stands))
    }
}

fn facts(path: &Path) -> Result<FactsSocket, NodeError> {
    FactsSocket::open(path).map_err(failed(path))
}

fn log(facts: &Path) -> Result<LogSocket, NodeError> {
    let path = facts.with_file_name(LOG_SOCKET);
    LogSocket::open(&path).map_err(failed(&path))
}

fn failed(path: &Path) -> impl FnOnce(PlaceError) -> NodeError {
    let path = path.to_owned();
    move |source| NodeError::Serve { path, source }
}
