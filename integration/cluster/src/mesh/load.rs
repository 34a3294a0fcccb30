//! Requests of a running pod to another one, one after the other, while something happens to the node.

use std::time::Duration;

use gybe_integration::failure::Failure;
use serde::Deserialize;

use super::application::{self, MESHED, Name, Nodes, control, pod, service, start};
use super::workstation::Workstation;
use crate::checks::Checks;

/// The kubelet waits up to five minutes before it starts a failed init container again.
pub(super) const NEXT_ATTEMPT: Duration = Duration::from_secs(420);

/// How many requests a load has made, and which failed.
#[derive(Debug, Deserialize)]
struct Counts {
    requests: u64,
    failed: u64,
    /// What the first of them received.
    #[expect(dead_code, reason = "printed with the others")]
    failures: Vec<String>,
}

/// Two pods of the mesh, of which the client makes requests to the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) client: &'static str,
    pub(super) server: &'static str,
    /// The name of a pod that starts after each step.
    pub(super) fresh: &'static str,
}

impl Pair {
    /// Starts both pods on these nodes.
    pub(super) fn start(&self, workstation: &Workstation, nodes: Nodes<'_>) -> Result<(), Failure> {
        start(workstation, MESHED, &nodes.server(pod(self.server)))?;
        start(workstation, MESHED, &nodes.client(pod(self.client))).map(drop)
    }

    /// Both pods.
    pub(super) fn pods(&self) -> [Name<'static>; 2] {
        [self.server, self.client].map(|name| (MESHED, name))
    }

    /// Does a step while the client makes requests, and starts a pod after it, before the load ends.
    pub(super) fn under_load(
        &self,
        workstation: &Workstation,
        checks: &mut Checks,
        what: &str,
        step: impl FnOnce(&mut Checks) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.load_during(workstation, checks, what, |checks| {
            step(checks)?;
            start(workstation, MESHED, &pod(self.fresh))?;
            self.passes(workstation, checks, what, self.fresh)
        })?;
        application::delete(workstation, &[(MESHED, self.fresh)])
    }

    /// Does a step while the client makes requests.
    pub(super) fn load_during(
        &self,
        workstation: &Workstation,
        checks: &mut Checks,
        what: &str,
        step: impl FnOnce(&mut Checks) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let target = service((MESHED, self.server));
        load_during(workstation, checks, (MESHED, self.client), &target, what, step)
    }

    /// Records whether the client's requests pass by mutual TLS.
    pub(super) fn passes_between(
        &self,
        workstation: &Workstation,
        checks: &mut Checks,
        what: &str,
    ) -> Result<(), Failure> {
        let title = format!("{what}: {} to {}", self.client, self.server);
        let target = service((MESHED, self.server));
        checks.passes(&title, workstation, [self.client, self.server], &target).map(drop)
    }

    /// Records whether requests of another pod to the server, and of the client to that pod, pass by mutual TLS.
    pub(super) fn passes(
        &self,
        workstation: &Workstation,
        checks: &mut Checks,
        what: &str,
        other: &str,
    ) -> Result<(), Failure> {
        for [from, to] in [[other, self.server], [self.client, other]] {
            let title = format!("{what}: {from} to {to}");
            checks.passes(&title, workstation, [from, to], &service((MESHED, to)))?;
        }
        Ok(())
    }
}

/// Does a step while a client makes requests to a target.
pub(super) fn load_during(
    workstation: &Workstation,
    checks: &mut Checks,
    client: Name<'_>,
    target: &str,
    what: &str,
    step: impl FnOnce(&mut Checks) -> Result<(), Failure>,
) -> Result<(), Failure> {
    control(workstation, client, &format!("load/{target}"))?;
    step(checks)?;
    let counts: Counts = serde_json::from_value(control(workstation, client, "counts")?)?;
    let what = format!("{what}: {} requests of a running pod", counts.requests);
    checks.holds(&what, counts.requests > 0 && counts.failed == 0, &counts, "all answered");
    Ok(())
}
