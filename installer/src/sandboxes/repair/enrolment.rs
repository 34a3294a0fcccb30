//! Enrols a pod that runs into ambient mode, and takes it out, without a refused connection: ztunnel listens before the
//! rules lead connections to it, and until the captured connections have ended.

use super::decision::OurRules;
use super::namespace::{RepairError, Repaired, doubt};
use crate::pod::own_namespace;
use crate::pod::proxy::{ZTUNNEL_PORTS, silent_ports_of_ztunnel};
use crate::sandboxes::desired::{AmbientEnrolment, LeavingPod};
use crate::sandboxes::verdict::judge;
use crate::sandboxes::{Sandbox, addresses_in};
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::{Redirection, remove_all};
use gybe_netfilter::compile::has_ambient_rules;
use gybe_netfilter::inspect::verdict::{Desired, NamespaceVerdict, RedirectionState, is_replaceable};
use gybe_netfilter::kernel::netns::Netns;
use gybe_netfilter::kernel::open_connections::{keep_under_ambient, open_on, stop_keeping};
use gybe_netfilter::model::policy::AmbientPolicy;
use gybe_netfilter::model::policy::ambient::AmbientDns;
use gybe_plugin::backend::Selection;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::facts::ambient::{AmbientPod, HandOverBy, HandOverCause, LeaveStep, PodUid};
use gybe_plugin::facts::{AgentError, AgentFault, hand_over, leave as report_leave};
use gybe_plugin::families::is_usable;
use gybe_plugin::probe_cache::MaxAge;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the agent and ztunnel may take for one pod, which takes milliseconds. Other pods wait meanwhile, and a pod
/// whose time is up is looked at again.
const AGENT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long ztunnel serves a pod at least after the annotation is gone: other proxies send it HBONE until they learn of
/// that. istiod collects changes for 10 s at most before it sends them (`PILOT_DEBOUNCE_MAX`); the rest is for sending.
const MIN_DRAIN: Duration = Duration::from_secs(15);

/// How long captured connections may last after that.
const MAX_DRAIN: Duration = Duration::from_secs(30);

/// What was done with a pod that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AmbientOutcome {
    /// ztunnel serves it; with the rules that were written, if any was missing.
    Enrolled(Option<Repaired>),
    /// ztunnel did not listen on these ports, and has started its proxy of the pod again; none if it listened before that.
    Restarted(Vec<u16>),
    /// It has its rules, and no ztunnel that listens in it: ztunnel is away or slow, and gets the pod from the agent.
    NotServed,
    /// New connections keep their destination.
    Draining {
        /// The number of captured ones that are open; none when they cannot be counted.
        open: Option<usize>,
        /// Whether the agent has yet to remove the annotation.
        is_announced: bool,
    },
    /// It has no rules any more, and ztunnel has forgotten it.
    Left,
}

/// What the caller knows of a pod that runs, apart from its sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AmbientTurn {
    /// The agent reports that it has to be enrolled or taken out.
    pub(crate) is_due: bool,
    /// How long its rules have captured no new connection while it had no annotation; none in a single pass.
    pub(crate) drained_for: Option<Duration>,
}

/// A sandbox that is changed under settings that are in force.
pub(super) struct AmbientChange<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) netns: &'a Netns,
    /// Before the change.
    pub(super) verdict: &'a NamespaceVerdict,
    pub(super) ours: OurRules,
    pub(super) conf: &'a PluginConf,
    pub(super) in_force: &'a (dyn Fn() -> bool + Sync),
}

fn agent_deadline() -> Instant {
    Instant::now() + AGENT_TIMEOUT
}

/// Determines which rules of Gybe the namespace has; unless ambient mode `may_have` written them, they are a sidecar's.
///
/// # Errors
/// When they cannot be read.
pub(super) fn our_rules(netns: &Netns, may_have: bool) -> Result<OurRules, RepairError> {
    netns.run(|| {
        let presence = Presence::look().map_err(RepairError::Presence)?;
        if presence.ours.is_empty() || !may_have {
            return Ok(if presence.ours.is_empty() { OurRules::None } else { OurRules::Sidecar });
        }
        let found = presence.ours.iter().map(|kind| kind.find()?.inspect());
        let found = found.collect::<Result<Vec<_>, _>>().map_err(RepairError::Presence)?;
        Ok(match found.iter().any(has_ambient_rules) {
            true => OurRules::Ambient,
            false if found.iter().all(|one| one.parts.iter().all(|part| part.items.is_empty())) => {
                OurRules::Empty
            }
            false => OurRules::Sidecar,
        })
    })?
}

/// Determines whether the rules of another mesh in the namespace are those of istio-cni that Gybe's replace.
///
/// # Errors
/// When they cannot be read.
pub(super) fn rules_of_istio(netns: &Netns, policy: &AmbientPolicy) -> Result<OurRules, RepairError> {
    let is_theirs = netns.run(|| is_replaceable(policy))??;
    Ok(if is_theirs { OurRules::IstioAmbient } else { OurRules::NotRead })
}

impl AmbientChange<'_> {
    /// Hands the namespace over to ztunnel, and then writes the rules where they differ, and reports that. Those of a pod
    /// that has some are written first: it must not send plain text while ztunnel or the agent is away. TCP connections
    /// that are open keep their path. A pod that is not redirected although ztunnel serves it stays due.
    ///
    /// # Errors
    /// When ztunnel does not serve the pod, or the pod is not redirected afterwards. A pod without rules is not served by
    /// ztunnel then.
    pub(super) fn enrol(
        &self,
        enrolment: &AmbientEnrolment,
        differs: bool,
    ) -> Result<AmbientOutcome, RepairError> {
        self.check()?;
        // Before the rules are changed.
        self.socket()?;
        if !differs || self.ours == OurRules::Ambient {
            let rewritten = differs.then(|| self.write(&enrolment.policy)).transpose()?;
            if rewritten.is_none() && self.verdict.state != RedirectionState::Redirected {
                self.hand_over(&enrolment.pod, HandOverBy::Enrolment, agent_deadline())?;
                return Err(RepairError::NotEnrolled(self.verdict.reasons.join("; ")));
            }
            self.hand_over(&enrolment.pod, HandOverBy::Repair, agent_deadline())?;
            return Ok(AmbientOutcome::Enrolled(rewritten));
        }
        self.hand_over(&enrolment.pod, HandOverBy::Enrolment, agent_deadline())?;
        let written = self.write(&enrolment.policy);
        // Rules that are there need ztunnel's listeners, so do istio-cni's, which stay.
        let has_none = || {
            matches!(our_rules(self.netns, true), Ok(OurRules::None | OurRules::Empty | OurRules::Sidecar))
        };
        let reported = match &written {
            Ok(_) => self.hand_over(&enrolment.pod, HandOverBy::Repair, agent_deadline()),
            Err(_) if self.ours != OurRules::IstioAmbient && has_none() => {
                self.report_leave(&enrolment.pod.uid, LeaveStep::Left)
            }
            Err(_) => Ok(()),
        };
        // Its error says more.
        let written = written?;
        reported.map(|()| AmbientOutcome::Enrolled(Some(written)))
    }

    /// Lets ztunnel, which has acknowledged the pod and does not listen in it, start its proxy of the pod again.
    ///
    /// # Errors
    /// When the agent does not respond, or ztunnel does not listen afterwards.
    pub(super) fn restart(&self, pod: &AmbientPod) -> Result<AmbientOutcome, RepairError> {
        self.check()?;
        // Before the listeners are read: the agent refuses a restart for 5 s after ztunnel has acknowledged the pod, so that
        // none that is sent in time ends listeners that are newer.
        let until = agent_deadline();
        let silent = silent_ports_of_ztunnel(self.netns);
        if silent.is_empty() {
            return Ok(AmbientOutcome::Restarted(silent));
        }
        match self.hand_over(pod, HandOverBy::Restart, until) {
            Err(RepairError::Agent(AgentError { fault: AgentFault::HandOver(fault), .. }))
                if matches!(fault.cause, HandOverCause::NotConnected | HandOverCause::NoAnswer) =>
            {
                return Ok(AmbientOutcome::NotServed);
            }
            handed_over => handed_over?,
        }
        match silent_ports_of_ztunnel(self.netns).is_empty() {
            true => Ok(AmbientOutcome::Restarted(silent)),
            false => Err(RepairError::NotServed),
        }
    }

    fn hand_over(&self, pod: &AmbientPod, by: HandOverBy, until: Instant) -> Result<(), RepairError> {
        let addresses = addresses_in(self.netns).map_err(RepairError::Changed)?;
        let pod = pod.clone().with_addresses(addresses.into_iter().filter(is_usable));
        let socket = self.socket()?;
        hand_over(&socket, &pod, self.netns.as_fd(), by, until)
            .map_err(|fault| AgentError { socket, fault }.into())
    }

    fn write(&self, policy: &AmbientPolicy) -> Result<Repaired, RepairError> {
        let conf = self.conf;
        let selection = Selection { setting: conf.backend, probed: &conf.probed, age: MaxAge::Any };
        let selected = selection.to_write().map_err(Box::new)?;
        let (redirection, _) = selected.redirection_of_ambient(policy).map_err(Box::new)?;
        let backend = selected.backend.name();
        self.check()?;
        self.netns.run(|| {
            if self.ours == OurRules::IstioAmbient {
                // Conntrack knows the open connections since istio-cni wrote its rules.
                if !(is_replaceable(policy)? && redirection.take_over_ambient(selected.backend.kind())?) {
                    return Err(RepairError::Changed("its rules of istio-cni have changed".to_owned()));
                }
                return self.judged(policy, backend, 0);
            }
            let kept = keep_under_ambient()?;
            if let Err(error) = redirection.apply(&*selected.backend) {
                // Without our rules the sysctl has no purpose. The error is about the rules.
                let _ = kept.undo();
                return Err(error.into());
            }
            self.judged(policy, backend, kept.open)
        })?
    }

    /// Judges the rules that `backend` has written.
    fn judged(
        &self,
        policy: &AmbientPolicy,
        backend: &'static str,
        open_connections: usize,
    ) -> Result<Repaired, RepairError> {
        let verdict = judge(Desired::Ambient(policy), None, &self.sandbox.cgroups)?;
        match verdict.state {
            RedirectionState::Redirected => Ok(Repaired {
                backend,
                open_connections,
                captures_dns: policy.dns == AmbientDns::Captured,
                drops_invalid: false,
            }),
            _ => Err(RepairError::NotRedirected(verdict.reasons.join("; "))),
        }
    }

    /// Lets new connections keep their destination, and reports that to the agent, which then removes the annotation.
    /// After that, when the captured connections and [`MIN_DRAIN`] have ended, or after [`MAX_DRAIN`], ends the proxy
    /// of the pod and removes what is left of its rules. Until then both forms arrive: HBONE at ztunnel, plain text at
    /// the application.
    ///
    /// # Errors
    /// When the rules cannot be changed, or the agent does not respond. Then a next call has to follow.
    pub(super) fn leave(
        &self,
        pod: &LeavingPod,
        drained_for: Option<Duration>,
    ) -> Result<AmbientOutcome, RepairError> {
        self.check()?;
        // Before the rules are changed.
        self.socket()?;
        if self.ours == OurRules::Ambient {
            let (open, were_drained) = self.netns.run(|| self.drain())??;
            // Each time: an agent that has started since then has not received it.
            self.report_leave(&pod.uid, LeaveStep::Draining)?;
            // A connection that was opened under the former rules may not be in the list yet.
            let is_over = drained_for.map_or(were_drained, |time| time >= MIN_DRAIN) && open == Some(0);
            let is_over = is_over || drained_for.is_some_and(|time| time >= MAX_DRAIN);
            if !is_over || pod.is_announced {
                return Ok(AmbientOutcome::Draining { open, is_announced: pod.is_announced });
            }
        }
        // Before the rest of the rules is removed: they show that the agent may have the pod.
        self.report_leave(&pod.uid, LeaveStep::Left)?;
        if self.ours == OurRules::Ambient {
            self.netns.run(|| {
                stop_keeping().map_err(RepairError::Loose)?;
                remove_all().map_err(RepairError::from)
            })??;
        }
        Ok(AmbientOutcome::Left)
    }

    /// Replaces the rules in the calling thread's namespace. Returns the number of captured connections that are open,
    /// none when there are too many to be listed, and whether the rules had been replaced before.
    fn drain(&self) -> Result<(Option<usize>, bool), RepairError> {
        let families = self.conf.ambient.unwrap_or_default().families;
        let presence = Presence::look().map_err(RepairError::Presence)?;
        let mut were_drained = true;
        if let Some(kind) = presence.ours.first() {
            let backend = kind.find().map_err(RepairError::Presence)?;
            let draining = Redirection::of_draining_ambient(families);
            were_drained = draining.differences(&*backend, &presence)?.is_empty();
            if !were_drained {
                draining.apply(&*backend)?;
            }
        }
        let open = open_on(&ZTUNNEL_PORTS);
        Ok((open.ok(), were_drained))
    }

    fn report_leave(&self, pod: &PodUid, step: LeaveStep) -> Result<(), RepairError> {
        let socket = self.socket()?;
        report_leave(&socket, pod, step, agent_deadline())
            .map_err(|fault| AgentError { socket, fault }.into())
    }

    fn socket(&self) -> Result<PathBuf, RepairError> {
        self.conf.facts.socket.clone().ok_or(RepairError::NoAgent)
    }

    /// Checks again what can change after the decision.
    fn check(&self) -> Result<(), RepairError> {
        if let Some(why) = doubt(self.sandbox, self.netns) {
            return Err(RepairError::Changed(why));
        }
        if self.netns.run(|| own_namespace::is_the_first(Path::new("/proc")))? {
            return Err(RepairError::Changed(
                "it is the network namespace this kernel booted with".to_owned(),
            ));
        }
        if !(self.in_force)() {
            return Err(RepairError::Changed("the node's settings have changed".to_owned()));
        }
        Ok(())
    }
}
