//! What a check's outcome is in words: what arrived where, and what to do. Finds nothing out.

use super::call::CallEnd;
use super::{Check, Evidence, Holder, Place, Stray, Verdict};
use nix::errno::Errno;
use serde_json::{Value, json};
use std::fmt;

impl Verdict {
    /// The outcome of `check` for a person: one line, or one and its evidence.
    pub fn text(&self, check: &Check) -> String {
        match self {
            Self::Redirected(at) => {
                format!("redirected: a connection to {} arrived at {at}\n", check.target)
            }
            Self::NotRedirected(evidence) => {
                let lines = evidence.lines(check);
                let lines: String = lines.iter().map(|line| format!("  {line}\n")).collect();
                format!(
                    "not redirected: {}\n{lines}hint: {}\n",
                    evidence.verdict(check),
                    evidence.hint(check)
                )
            }
        }
    }

    /// The same for a program.
    pub fn json(&self, check: &Check) -> Value {
        match self {
            Self::Redirected(at) => json!({ "redirected": true, "target": check.target, "arrived_at": at }),
            Self::NotRedirected(evidence) => json!({
                "redirected": false,
                "target": check.target,
                "evidence": evidence.lines(check),
                "hint": evidence.hint(check),
            }),
        }
    }
}

impl Evidence {
    fn verdict(&self, check: &Check) -> String {
        let ports: Vec<String> = check.listeners.iter().map(ToString::to_string).collect();
        let (target, uid, ports) = (check.target, self.uid, ports.join(" or "));
        if self.calls.is_empty() {
            return format!("no connection to {target} could arrive, for {ports} belongs to others");
        }
        let seconds = check.patience.as_secs_f64();
        format!("no connection to {target} by uid {uid} arrived at {ports} within {seconds} s")
    }

    fn lines(&self, check: &Check) -> Vec<String> {
        let calls = self.calls.iter().map(|(end, times)| {
            let times = if *times == 1 { "once".to_owned() } else { format!("{times} times") };
            self.call(*end, &times, check)
        });
        let taken = self.taken.iter().map(|(at, holder)| match holder {
            Some(holder) => format!("{at} could not be listened on: {holder} does"),
            None => format!("{at} could not be listened on: somebody did who is gone now"),
        });
        calls.chain(taken).chain(self.strays.iter().map(ToString::to_string)).collect()
    }

    fn call(&self, end: CallEnd, times: &str, check: &Check) -> String {
        let target = check.target;
        match (end, &self.answers) {
            (CallEnd::Answered, Some(holder)) => {
                format!("answered {times}: {target} was not redirected but reached {holder}")
            }
            (CallEnd::Answered, None) if !self.taken.is_empty() => {
                format!("answered {times}: somebody whose port is named below may have got it")
            }
            (CallEnd::Answered, None) => {
                format!(
                    "answered {times}, though nobody listens on {target}: a rule sends it to another port"
                )
            }
            (CallEnd::Refused, Some(holder)) => {
                format!(
                    "refused {times}, though {holder} listens: a rule sends it to a port where nobody listens"
                )
            }
            (CallEnd::Refused, None) => {
                format!("refused {times}: nobody listens on {target}, so no rule sent it to these ports")
            }
            (CallEnd::Unanswered, _) => format!("unanswered {times}: it was dropped on its way"),
            (CallEnd::Failed(errno), _) => {
                format!("not even begun {times}: {}", Errno::from_raw(errno).desc())
            }
        }
    }

    fn hint(&self, check: &Check) -> String {
        if self.uid != check.uid {
            let (own, proxy) = (self.uid, check.uid);
            return format!(
                "uid {own} may not act as the proxy's uid {proxy}, and only that one's connections to its own pod \
                 are redirected: run this as {proxy} (runAsUser), or with CAP_SETUID"
            );
        }
        if !self.taken.is_empty() {
            return "ask before the proxy starts: only while nobody listens on its ports can this be found out".into();
        }
        if self.target == Place::Elsewhere {
            return format!(
                "address {} is not on lo, so nothing has redirected this pod's IPv6; the rules and it come together",
                check.target.ip()
            );
        }
        "the pod's rules are missing, or not of these ports and this user. If a CNI plugin was to write them, the pod \
         started before the plugin was ready: delete the pod, so that it is made anew. If an init container was to, \
         its log says why it did not. On the node, gybe inspect --netns /proc/PID/ns/net shows what is there"
            .into()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, uid, process } = self;
        match process {
            Some(process) => write!(f, "process {process} of uid {uid} at {address}"),
            None => write!(f, "a process out of sight of uid {uid} at {address}"),
        }
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, from, meant_for } = self;
        match meant_for {
            Some(address) => {
                write!(f, "at {at} arrived a connection from {from} that was to go to {address}")
            }
            None => write!(f, "at {at} arrived a connection from {from}, and conntrack knows nothing of it"),
        }
    }
}
