//! The probe's view of a node: the backend in use, the host's mount namespace in which a probe runs, and the
//! capabilities that it needs. All missing ones are reported at once, before the first trial: a trial that fails for want
//! of a capability shows nothing about the kernel. The probe itself is in `gybe_netfilter`; `probe_loop` repeats it.

pub mod host_mounts;
pub mod node_backend;

use gybe_netfilter::model::Hint;
use std::borrow::Cow;
use std::fs;

/// A capability: its bit (include/uapi/linux/capability.h), its name, and what it is for.
type Capability = (u32, &'static str, &'static str);

/// The capabilities of a probe in the host's mount namespace.
pub const NEEDED: [Capability; 7] = [
    (7, "CAP_SETUID", "a connection of the proxy's user"),
    (10, "CAP_NET_BIND_SERVICE", "a listener at port 53"),
    (12, "CAP_NET_ADMIN", "rules, routes and marks"),
    (13, "CAP_NET_RAW", "iptables-legacy"),
    (18, "CAP_SYS_CHROOT", "the host's mount namespace"),
    (19, "CAP_SYS_PTRACE", "opening that namespace"),
    (21, "CAP_SYS_ADMIN", "entering it, and a temporary network namespace"),
];

/// The capabilities that the calling thread lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this process lacks capabilities to probe the host: {}", listed(.0))]
pub struct MissingCapabilities(Vec<Capability>);

fn listed(capabilities: &[Capability]) -> String {
    let named = capabilities.iter().map(|(_, name, purpose)| format!("{name} ({purpose})"));
    named.collect::<Vec<_>>().join(", ")
}

impl Hint for MissingCapabilities {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let names: Vec<_> = self.0.iter().filter_map(|(_, name, _)| name.strip_prefix("CAP_")).collect();
        let hint = format!("run as root, and add to the container's capabilities: {}", names.join(", "));
        Some(hint.into())
    }
}

/// Checks the capabilities of the calling thread. If the kernel does not report them, the trials will show what is
/// missing.
///
/// # Errors
/// Names all that are missing.
pub fn check() -> Result<(), MissingCapabilities> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    match effective(&status) {
        Some(effective) => check_set(effective),
        None => Ok(()),
    }
}

/// `CapEff` of proc_pid_status(5): the bits in hexadecimal.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn check_set(effective: u64) -> Result<(), MissingCapabilities> {
    let is_missing = |(bit, ..): &Capability| effective & (1 << bit) == 0;
    let missing: Vec<_> = NEEDED.into_iter().filter(is_missing).collect();
    if missing.is_empty() { Ok(()) } else { Err(MissingCapabilities(missing)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_missing_capabilities_are_named_at_once() {
        let status = "Name:\tgybe\nCapInh:\t0000000000000000\nCapEff:\t00000000002c3480\nCapBnd:\t0\n";
        assert_eq!(check_set(effective(status).unwrap()), Ok(()));
        let missing = check_set(1 << 21 | 1 << 7 | 1 << 10 | 1 << 18 | 1 << 19).unwrap_err();
        let text = "this process lacks capabilities to probe the host: CAP_NET_ADMIN (rules, routes and marks), CAP_NET_RAW (iptables-legacy)";
        assert_eq!(missing.to_string(), text);
        assert!(missing.hint().unwrap().ends_with("capabilities: NET_ADMIN, NET_RAW"), "{missing:?}");
        assert_eq!(check_set(0).unwrap_err().0, NEEDED);
        assert_eq!(effective("CapEff:\tzz\n"), None);
    }
}
