//! Renders the result of a validation as text and as JSON: where connections arrived, and a hint.

use super::connection::AttemptEnd;
use super::{Evidence, OtherConnection, SocketOwner, Validation, ValidationResult};
use nix::errno::Errno;
use serde_json::{Value, json};
use std::fmt;

impl ValidationResult {
    /// Returns one line; if the pod is not redirected, also the evidence and a hint.
    pub fn text(&self, validation: &Validation) -> String {
        match self {
            Self::Redirected(at) => {
                format!("redirected: a connection to {} arrived at {at}\n", validation.target)
            }
            Self::NotRedirected(evidence) => {
                let lines = evidence.lines(validation);
                let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
                let (summary, hint) = (evidence.summary(validation), evidence.hint(validation));
                format!("not redirected: {summary}\n{lines}hint: {hint}\n")
            }
        }
    }

    pub fn json(&self, validation: &Validation) -> Value {
        match self {
            Self::Redirected(at) => {
                json!({ "redirected": true, "target": validation.target, "arrived_at": at })
            }
            Self::NotRedirected(evidence) => json!({
                "redirected": false,
                "target": validation.target,
                "evidence": evidence.lines(validation),
                "hint": evidence.hint(validation),
            }),
        }
    }
}

impl Evidence {
    fn summary(&self, validation: &Validation) -> String {
        let ports: Vec<String> = validation.listeners.iter().map(ToString::to_string).collect();
        let (target, uid, ports) = (validation.target, self.uid, ports.join(" or "));
        if self.attempts.is_empty() {
            return format!("no connection to {target} could arrive: other processes listen on {ports}");
        }
        let seconds = validation.timeout.as_secs_f64();
        format!("no connection to {target} by uid {uid} arrived at {ports} within {seconds} s")
    }

    fn lines(&self, validation: &Validation) -> Vec<String> {
        let attempts = self.attempts.iter().map(|(end, times)| {
            let times = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
            self.attempt(*end, &times, validation)
        });
        let taken = self.taken.iter().map(|(at, owner)| match owner {
            Some(owner) => format!("cannot listen on {at}: {owner} listens there"),
            None => format!("cannot listen on {at}: a process listened there that is gone now"),
        });
        attempts.chain(taken).chain(self.others.iter().map(ToString::to_string)).collect()
    }

    fn attempt(&self, end: AttemptEnd, times: &str, validation: &Validation) -> String {
        let target = validation.target;
        match (end, &self.target_owner) {
            (AttemptEnd::Accepted, Some(owner)) => {
                format!("accepted {times}: {target} was not redirected but reached {owner}")
            }
            (AttemptEnd::Accepted, None) if !self.taken.is_empty() => {
                format!("accepted {times}: perhaps by a process whose port is named below")
            }
            (AttemptEnd::Accepted, None) => {
                format!(
                    "accepted {times}, although no process listens on {target}: a rule sends it to another port"
                )
            }
            (AttemptEnd::Refused, Some(owner)) => {
                format!(
                    "refused {times}, although {owner} listens: a rule sends it to a port without a listener"
                )
            }
            (AttemptEnd::Refused, None) => {
                format!("refused {times}: no process listens on {target}, so no rule sent it to these ports")
            }
            (AttemptEnd::Unanswered, _) => format!("unanswered {times}: a packet was dropped"),
            (AttemptEnd::Failed(errno), _) => {
                format!("not started {times}: {}", Errno::from_raw(errno).desc())
            }
        }
    }

    fn hint(&self, validation: &Validation) -> String {
        if self.uid != validation.uid {
            let (own, proxy) = (self.uid, validation.uid);
            return format!(
                "uid {own} may not act as the proxy's uid {proxy}, and only the proxy's connections to its own pod \
                 are redirected: run this as {proxy} (runAsUser), or with CAP_SETUID"
            );
        }
        if !self.taken.is_empty() {
            return "run the validation before the proxy starts: it works only while no process listens on the \
                    proxy's ports"
                .into();
        }
        if self.target_is_elsewhere {
            return format!(
                "address {} is not on lo, so this pod's IPv6 is not redirected: the rules for IPv6 add it",
                validation.target.ip()
            );
        }
        "the pod's rules are missing, or are for other ports or another user. If a CNI plugin was to write them, the \
         pod started before the plugin was ready: delete the pod, so that its controller creates a new one. If an \
         init container was to write them, its log has the reason. On the node, gybe inspect --netns \
         /proc/PID/ns/net lists the pod's rules"
            .into()
    }
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, uid, process } = self;
        match process {
            Some(process) => write!(f, "process {process} of uid {uid} at {address}"),
            None => write!(f, "a process in another container, of uid {uid}, at {address}"),
        }
    }
}

impl fmt::Display for OtherConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, from, meant_for } = self;
        match meant_for {
            Some(address) => write!(f, "{at} received a connection from {from} to {address}"),
            None => write!(f, "{at} received a connection from {from} that conntrack does not know"),
        }
    }
}
