//! Everything that is told about the agent over HTTP, gathered at the moment somebody asks.

use super::asked::Asked;
use super::bulletin::{Bulletin, Posted, Stage};
use super::calls::{Calls, Counted};
use super::sockets::UnsupportedPolicy;
use super::{Pods, PodsState, process};
use crate::probe::node_backend::Verdict;
use std::time::{Duration, Instant};

/// A turn takes milliseconds. One may wait for a disk, and for a program that is tried: 10 s each.
const HUNG: Duration = Duration::from_secs(120);

/// Where to look.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) bulletin: &'a Bulletin,
    pub(crate) pods: &'a Asked<'a>,
    pub(crate) calls: &'a Calls,
    pub(crate) unserved: &'a UnsupportedPolicy,
    /// When the agent started.
    pub(crate) started: Instant,
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) posted: Posted,
    pub(crate) pods: PodsState,
    pub(crate) answers: [(u16, u64); 3],
    pub(crate) calls: Counted,
    /// Why nobody can ask the agent, or tell it; none when both sockets stand.
    pub(crate) unserved: Vec<String>,
    /// How often each socket was taken away.
    pub(crate) sockets_lost: [(&'static str, u64); 2],
    /// When the process started, in seconds since 1970.
    pub(crate) start_time: Option<f64>,
    /// How long no turn of the loop has ended.
    pub(crate) idle: Duration,
}

impl View<'_> {
    pub(crate) fn look(&self) -> Seen {
        let posted = self.bulletin.read();
        Seen {
            idle: posted.turned.unwrap_or(self.started).elapsed(),
            posted,
            pods: self.pods.state(),
            answers: self.pods.counts(),
            calls: self.calls.read(),
            unserved: self.unserved.read(),
            sockets_lost: self.unserved.lost(),
            start_time: process::start_time(),
        }
    }
}

impl Seen {
    /// Whether the loop lives.
    fn hangs(&self) -> Option<String> {
        (self.idle > HUNG).then(|| format!("the loop has ended no turn for {} s", self.idle.as_secs()))
    }

    /// Why only another start of the container can help: its loop hangs, or a directory that it holds is
    /// gone or renamed, and the host has another in its place (F13), or neither socket can stand in theirs.
    /// A mount follows an inode, not a path.
    pub(crate) fn is_beyond_help(&self) -> Option<String> {
        self.hangs().or_else(|| self.posted.cut_off.clone()).or_else(|| self.homeless())
    }

    /// Why neither socket can stand: their directory is gone from here. What stands in the way of one of
    /// them another start would meet as well, and lose the other one.
    fn homeless(&self) -> Option<String> {
        match self.unserved.as_slice() {
            [why, _, ..] => Some(why.clone()),
            _ => None,
        }
    }

    /// What keeps the agent from being ready, in sentences.
    pub(crate) fn missing(&self) -> Vec<String> {
        let stage = match self.posted.stage {
            Stage::Starting if self.posted.turned.is_none() => {
                Some("the first pass has not ended".to_owned())
            }
            // Why there has been no pass is among what is missing.
            Stage::In | Stage::Starting => None,
            Stage::Leaving => Some("leaving".to_owned()),
            Stage::Left { .. } => Some("left, as the ConfigMap's mode says".to_owned()),
        };
        let backend = match self.posted.backend.as_ref().map(|backend| &backend.verdict) {
            // None before the first pass.
            Some(Verdict::Works(_)) | None => None,
            Some(Verdict::Fails(why)) => Some(why.to_string()),
            Some(Verdict::Unknown) => Some("nobody has found out what works on this node".to_owned()),
        };
        let all = self.hangs().into_iter().chain(stage).chain(self.posted.lacks().iter().cloned());
        all.chain(backend).chain(self.pods.missing.clone()).chain(self.unserved.clone()).collect()
    }
}
