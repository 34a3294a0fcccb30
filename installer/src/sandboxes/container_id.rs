//! The id of a sandbox or container, as an operator names it.

use std::fmt;
use std::str::FromStr;

/// The length of the ids that runtimes generate.
const LENGTH: usize = 64;

/// The id of a sandbox or container, or its beginning: `crictl ps` prints 13 digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerId(String);

/// Why a text is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id has at most {LENGTH} hexadecimal digits")]
pub struct NoContainerId;

impl FromStr for ContainerId {
    type Err = NoContainerId;

    /// Parses an id as crictl prints it, or with the runtime's name before it, as in a pod's status:
    /// `containerd://75c7…`.
    fn from_str(text: &str) -> Result<Self, NoContainerId> {
        let id = text.split_once("://").map_or(text, |(_, id)| id);
        let is_id = (1..=LENGTH).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| Self(id.to_ascii_lowercase())).ok_or(NoContainerId)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ContainerId {
    /// Reports whether this is the beginning of `id`.
    pub(super) fn is_id(&self, id: &str) -> bool {
        id.starts_with(&self.0)
    }

    /// Reports whether a `/proc/PID/cgroup` names the container: runtimes write `…/<id>` (cgroupfs) and
    /// `…/cri-containerd-<id>.scope` (systemd).
    pub(super) fn is_in(&self, cgroup: &str) -> bool {
        let names = cgroup.lines().flat_map(|line| line.split('/'));
        let ids = names.map(|name| name.strip_suffix(".scope").unwrap_or(name));
        let ids = ids.map(|name| name.rsplit_once('-').map_or(name, |(_, id)| id));
        ids.filter(|id| id.len() == LENGTH).any(|id| self.is_id(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_recognized_in_the_cgroups_of_both_drivers() {
        let whole = "75c7fe7ad0df".repeat(6)[..LENGTH].to_owned();
        let parse = |text: &str| text.parse::<ContainerId>();
        let beginning = parse("75c7fe7ad0df7").unwrap();
        for cgroup in [
            format!("0::/kubepods/besteffort/pod863b91d4-4b68-4efa-917f-4b560e3e86aa/{whole}"),
            format!("0::/kubepods.slice/kubepods-pod863b.slice/cri-containerd-{whole}.scope"),
            format!("12:pids:/kubepods/podx/{whole}\n0::/x\n"),
            format!("0::/kubepods.slice/kubepods-pod863b.slice/crio-{whole}.scope/inner"),
        ] {
            assert!(beginning.is_in(&cgroup), "{cgroup}");
            assert!(parse(&format!("containerd://{whole}")).unwrap().is_in(&cgroup), "{cgroup}");
            assert!(!parse("75c8").unwrap().is_in(&cgroup), "{cgroup}");
        }
        // The end of a pod's uid is no id.
        assert!(
            !parse("4b560e3e86aa").unwrap().is_in("0::/kubepods/pod863b91d4-4b68-4efa-917f-4b560e3e86aa")
        );
        for text in ["", "containerd://", "x", "75c7/..", &"a".repeat(65)] {
            assert_eq!(parse(text), Err(NoContainerId), "{text}");
        }
    }
}
