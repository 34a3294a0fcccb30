//! Which kinds of objects there are, and where in the API they stand.

/// A kind this server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Pods,
    Nodes,
    DaemonSets,
}

impl Resource {
    /// What an object says it is; one that says nothing is a pod.
    pub(crate) fn of_kind(kind: Option<&str>) -> Option<Self> {
        match kind {
            None | Some("Pod") => Some(Self::Pods),
            Some("Node") => Some(Self::Nodes),
            Some("DaemonSet") => Some(Self::DaemonSets),
            Some(_) => None,
        }
    }

    /// By its segment in a path below `api/v1` or `apis/apps/v1`.
    pub(crate) fn of_path(group: &str, name: &str) -> Option<Self> {
        [Self::Pods, Self::Nodes, Self::DaemonSets]
            .into_iter()
            .find(|resource| resource.group() == group && resource.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::DaemonSets => "daemonsets",
        }
    }

    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Pods => "Pod",
            Self::Nodes => "Node",
            Self::DaemonSets => "DaemonSet",
        }
    }

    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Pods | Self::Nodes => "",
            Self::DaemonSets => "apps",
        }
    }

    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Pods | Self::Nodes => "v1",
            Self::DaemonSets => "apps/v1",
        }
    }

    pub(crate) fn is_namespaced(self) -> bool {
        self != Self::Nodes
    }
}
