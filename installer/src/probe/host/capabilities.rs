//! Which capabilities the trials of a probe take, and which of them the caller has not: all are named
//! at once, before anything is tried. A trial refused for want of one says nothing about the kernel.

use gybe_netfilter::hint::Hint;
use std::borrow::Cow;
use std::fmt;
use std::fs;

/// A capability: its bit (include/uapi/linux/capability.h), its name, and what it is for.
type Capability = (u32, &'static str, &'static str);

/// What a probe takes that goes into the host's mount namespace.
pub const NEEDED: [Capability; 7] = [
    (7, "CAP_SETUID", "a connection of the proxy's user"),
    (10, "CAP_NET_BIND_SERVICE", "a listener at port 53"),
    (12, "CAP_NET_ADMIN", "rules, routes and marks"),
    (13, "CAP_NET_RAW", "iptables-legacy"),
    (18, "CAP_SYS_CHROOT", "the host's mount namespace"),
    (19, "CAP_SYS_PTRACE", "opening that namespace"),
    (21, "CAP_SYS_ADMIN", "entering it, and a network namespace to throw away"),
];

/// What the calling thread may not do, and would have to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("to probe for the host takes more than this process may: {}", Listed(.0))]
pub struct Lacking(Vec<Capability>);

struct Listed<'a>(&'a [Capability]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (_, name, purpose)) in self.0.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{name} ({purpose})")?;
        }
        Ok(())
    }
}

impl Hint for Lacking {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let names: Vec<_> = self.0.iter().filter_map(|(_, name, _)| name.strip_prefix("CAP_")).collect();
        let hint = format!("run as root, and add to the container's capabilities: {}", names.join(", "));
        Some(hint.into())
    }
}

/// Looks whether anything of it is lacking. Where the kernel does not tell, the trials will.
///
/// # Errors
/// Names all that is.
pub fn lacking() -> Result<(), Lacking> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    match effective(&status) {
        Some(effective) => judge(effective),
        None => Ok(()),
    }
}

/// `CapEff` of proc_pid_status(5): the bits in hexadecimal.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn judge(effective: u64) -> Result<(), Lacking> {
    let is_lacking = |(bit, ..): &Capability| effective & (1 << bit) == 0;
    let lacking: Vec<_> = NEEDED.into_iter().filter(is_lacking).collect();
    if lacking.is_empty() { Ok(()) } else { Err(Lacking(lacking)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_lacking_is_named_at_once() {
        let status = "Name:\tgybe\nCapInh:\t0000000000000000\nCapEff:\t00000000002c3480\nCapBnd:\t0\n";
        assert_eq!(judge(effective(status).unwrap()), Ok(()));
        let lacking = judge(1 << 21 | 1 << 7 | 1 << 10 | 1 << 18 | 1 << 19).unwrap_err();
        let told = "to probe for the host takes more than this process may: CAP_NET_ADMIN (rules, routes and marks), CAP_NET_RAW (iptables-legacy)";
        assert_eq!(lacking.to_string(), told);
        assert!(lacking.hint().unwrap().ends_with("capabilities: NET_ADMIN, NET_RAW"), "{lacking:?}");
        assert_eq!(judge(0).unwrap_err().0, NEEDED);
        assert_eq!(effective("CapEff:\tzz\n"), None);
    }
}
