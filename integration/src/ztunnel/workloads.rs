//! The pods of the stand-in, and what each request does to them.

use super::Observed;
use super::packet::Request;
use super::proxy::{Context, Proxy};
use gybe_netfilter::kernel::netns::Netns;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// How often ztunnel tries again to start a proxy.
const RETRY: Duration = Duration::from_secs(5);

pub(super) struct Workloads {
    context: Arc<Context>,
    proxies: BTreeMap<String, Proxy>,
    pending: BTreeMap<String, Netns>,
    /// The uids of the snapshot, until it is complete.
    snapshot: Option<BTreeSet<String>>,
}

impl Workloads {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, proxies: BTreeMap::new(), pending: BTreeMap::new(), snapshot: None }
    }

    /// A new connection starts with a snapshot.
    pub(super) fn start_snapshot(&mut self) {
        self.snapshot = Some(BTreeSet::new());
    }

    /// Processes a request: returns the answer, or the error that ends ztunnel.
    pub(super) fn process(
        &mut self,
        request: Request,
        refuse: Option<&String>,
    ) -> Result<Result<(), String>, String> {
        match request {
            Request::Add { has_workload: false, .. } => Err("ProtocolError(\"no workload info\")".to_owned()),
            Request::Add { uid, netns, .. } => {
                self.snapshot.as_mut().map(|uids| uids.insert(uid.clone()));
                Ok(self.add(uid, netns, refuse))
            }
            Request::Keep(uid) => match &mut self.snapshot {
                Some(uids) => {
                    uids.insert(uid);
                    Ok(Ok(()))
                }
                None => Err("ProtocolError(\"pod keep received after snapshot\")".to_owned()),
            },
            Request::SnapshotSent => {
                let uids = self.snapshot.take().ok_or("ProtocolError(\"second snapshot\")")?;
                self.proxies.retain(|uid, _| uids.contains(uid));
                self.pending.retain(|uid, _| uids.contains(uid));
                Ok(Ok(()))
            }
            Request::Del(uid) => {
                self.pending.remove(&uid);
                match &mut self.snapshot {
                    Some(uids) => drop(uids.remove(&uid)),
                    None => drop(self.proxies.remove(&uid)),
                }
                Ok(Ok(()))
            }
        }
    }

    fn add(&mut self, uid: String, netns: Netns, refuse: Option<&String>) -> Result<(), String> {
        if self.proxies.get(&uid).is_some_and(|proxy| proxy.serves(&netns)) {
            return Ok(());
        }
        self.proxies.remove(&uid);
        self.pending.remove(&uid);
        let started = match refuse {
            Some(why) => Err((netns, why.clone())),
            None => Proxy::start(netns, &self.context),
        };
        match started {
            Ok(proxy) => {
                let mut listeners = super::lock(&self.context.listeners);
                listeners.retain(|_, stop| stop.strong_count() > 0);
                listeners.insert(uid.clone(), proxy.listeners());
                self.proxies.insert(uid, proxy);
            }
            Err((netns, why)) => {
                self.pending.insert(uid, netns);
                return Err(format!("failure to start proxy : {why}"));
            }
        }
        Ok(())
    }

    /// Returns how long it waits for a request before it tries again to start proxies.
    pub(super) fn retry_interval(&self) -> Option<Duration> {
        (!self.pending.is_empty()).then_some(RETRY)
    }

    pub(super) fn retry(&mut self, refuse: Option<&String>) {
        for (uid, netns) in std::mem::take(&mut self.pending) {
            // A failure leaves it pending.
            let _ = self.add(uid, netns, refuse);
        }
    }

    pub(super) fn report(&self, observed: &mut Observed) {
        observed.proxies = self.proxies.keys().cloned().collect();
        observed.pending = self.pending.keys().cloned().collect();
        observed.is_ready = self.snapshot.is_none() && self.pending.is_empty();
    }
}
