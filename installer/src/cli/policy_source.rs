//! The policy that an operator names: a policy file, or a pod of a manifest.

use super::input;
use super::output::CommandError;
use crate::pod::manifest::{self, PodTemplate};
use crate::pod::policy_file::{AnyPolicyFile, Families, FamilyChoice, NoAddress, PolicyFileError};
use clap::{ArgGroup, Args};
use gybe_netfilter::model::policy::{AmbientPolicy, Policy, RedirectPolicy};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::{Decision, decide, warnings};
use gybe_plugin::families::ipv6_left_alone;
use gybe_plugin::gates::{InitContainer, LeaveAloneReason};
use gybe_plugin::names::STATUS;
use gybe_plugin::pod::PodFacts;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The flags that name a policy.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("source").args(["policy", "pod"]))]
pub(super) struct PolicyArgs {
    /// A policy file (JSON); - is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "plugin_conf"])]
    policy: Option<PathBuf>,
    #[command(flatten)]
    pods: PodArgs,
}

/// The flags that name a pod and the plugin's configuration.
#[derive(Debug, Clone, Args)]
pub(super) struct PodArgs {
    /// A manifest with a pod or a pod template (YAML or JSON); - is stdin
    #[arg(long, value_name = "FILE")]
    pod: Option<PathBuf>,
    /// The pod to use, if the manifest has several: NAME or KIND/NAME
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Decide about the pod as gybe-cni does with this configuration (JSON): its entry, or the list that
    /// contains it. Its backend is ignored [default: an entry without keys]
    #[arg(long, value_name = "FILE")]
    plugin_conf: Option<PathBuf>,
}

/// A pod with the init container `istio-init` redirects itself, so Gybe leaves it alone.
#[derive(Debug, Args)]
pub(super) struct IgnoreInitArg {
    /// Treat the pod as if it had no init container istio-init
    #[arg(long)]
    ignore_init: bool,
}

impl IgnoreInitArg {
    pub(super) fn gate(&self) -> InitContainer {
        if self.ignore_init { InitContainer::Ignored } else { InitContainer::Counts }
    }
}

/// One policy file, or one pod.
#[derive(Debug)]
pub(super) enum PolicySource {
    PolicyFile { origin: String, file: AnyPolicyFile },
    Pod { template: PodTemplate, conf: Rc<PluginConf> },
}

/// The policy of a source for one namespace.
#[derive(Debug)]
pub(super) enum Requested {
    Redirect(Policy),
    LeaveAlone { reason: String, hint: Option<String> },
}

/// The namespace that a policy is for, or the assumptions about it.
#[derive(Debug)]
pub(super) enum Target {
    /// A namespace with these addresses.
    Namespace(Vec<IpAddr>),
    /// No namespace; the families as an operator chose them.
    Assumed(Option<Families>),
}

impl PolicyArgs {
    /// Reports whether a policy or a pod is named.
    pub(super) fn is_given(&self) -> bool {
        self.policy.is_some() || self.pods.pod.is_some()
    }

    /// Returns the only source; several pods are an error.
    pub(super) fn one(&self) -> Result<PolicySource, CommandError> {
        let mut sources = self.all()?;
        match (sources.len(), sources.pop()) {
            (1, Some(source)) => Ok(source),
            (several, last) => {
                let names: Vec<&str> = sources.iter().chain(&last).map(PolicySource::origin).collect();
                let hint = format!("choose one with --name: {}", names.join(", "));
                Err(CommandError::new(format!("the manifest has {several} pods")).with_hint(hint))
            }
        }
    }

    /// Returns every source in the file, at least one.
    pub(super) fn all(&self) -> Result<Vec<PolicySource>, CommandError> {
        match (&self.policy, &self.pods.pod) {
            (Some(path), _) => Ok(vec![policy_file(path)?]),
            (None, Some(_)) => {
                let conf = Rc::new(self.pods.plugin_conf()?.unwrap_or_default());
                let source = |template| PolicySource::Pod { template, conf: Rc::clone(&conf) };
                Ok(self.pods.templates()?.into_iter().map(source).collect())
            }
            (None, None) => Err(CommandError::new("neither --policy nor --pod is given")),
        }
    }

    /// The flags of a pod alone.
    pub(super) fn pods(&self) -> &PodArgs {
        &self.pods
    }
}

impl PodArgs {
    /// Returns the value of --pod if no file has that path: NAMESPACE/NAME.
    pub(super) fn named_pod(&self) -> Option<&str> {
        let path = self.pod.as_deref().filter(|path| path.as_os_str() != "-" && !path.exists())?;
        path.to_str()
    }

    /// Returns the same with this pod, where none is given.
    pub(super) fn or(&self, pod: Option<&Path>) -> Self {
        let pod = self.pod.clone().or_else(|| pod.map(Path::to_owned));
        Self { pod, ..self.clone() }
    }

    pub(super) fn plugin_conf(&self) -> Result<Option<PluginConf>, CommandError> {
        self.plugin_conf.as_deref().map(input::plugin_conf).transpose()
    }

    /// Returns the pods of the manifest, at least one: all, or those of the name.
    pub(super) fn templates(&self) -> Result<Vec<PodTemplate>, CommandError> {
        let Some(path) = &self.pod else { return Err(CommandError::new("--pod is not given")) };
        let cannot = format!("cannot use the manifest {}", path.display());
        let text = input::text(path).map_err(|why| CommandError::because("cannot use the manifest", why))?;
        let pods = manifest::pods(&text).map_err(|why| CommandError::because(cannot, why))?;
        let Some(name) = &self.name else { return Ok(pods) };
        let all: Vec<String> = pods.iter().map(|pod| pod.origin.clone()).collect();
        let has_name = |pod: &PodTemplate| pod.origin == *name || pod.name() == name;
        let named: Vec<PodTemplate> = pods.into_iter().filter(has_name).collect();
        if named.is_empty() {
            let hint = format!("it has {}", all.join(", "));
            return Err(CommandError::new(format!("the manifest has no pod called {name}")).with_hint(hint));
        }
        Ok(named)
    }
}

fn policy_file(path: &Path) -> Result<PolicySource, CommandError> {
    let text = input::text(path).map_err(|why| CommandError::because("cannot use the policy", why))?;
    let file = AnyPolicyFile::parse(&text).map_err(|why| {
        CommandError::because(format!("cannot use the policy {}", path.display()), with_positions(why, &text))
    })?;
    Ok(PolicySource::PolicyFile { origin: path.display().to_string(), file })
}

/// Adds to each fault the position of its value in the file.
fn with_positions(error: PolicyFileError, text: &str) -> PolicyFileError {
    let PolicyFileError::Faults(mut faults) = error else { return error };
    for fault in &mut faults {
        if let Some(position) = input::position_of(text, &fault.key) {
            fault.key = format!("{position}: {}", fault.key);
        }
    }
    PolicyFileError::Faults(faults)
}

impl PolicySource {
    /// The path of the policy file, or the kind and name of the pod.
    pub(super) fn origin(&self) -> &str {
        match self {
            Self::PolicyFile { origin, .. } => origin,
            Self::Pod { template, .. } => &template.origin,
        }
    }

    /// Returns the pod's facts from its manifest.
    pub(super) fn facts(&self) -> Result<PodFacts, CommandError> {
        match self {
            Self::PolicyFile { origin, .. } => {
                Err(CommandError::new(format!("{origin} names no pod whose namespace could be found")))
            }
            Self::Pod { template, .. } => PodFacts::from_manifest(&template.pod)
                .map_err(|why| CommandError::because(format!("cannot use {}", template.origin), why)),
        }
    }

    /// Reports whether the policy file itself sets the families.
    fn sets_families(&self) -> bool {
        match self {
            Self::PolicyFile { file, .. } => match file {
                AnyPolicyFile::Sidecar(file) => matches!(file.families(), FamilyChoice::Fixed(_)),
                AnyPolicyFile::Ambient(_) => true,
            },
            Self::Pod { .. } => false,
        }
    }

    /// Warnings about annotations of the pod that may not mean what their author expects.
    pub(super) fn warnings(&self) -> Vec<String> {
        let Self::Pod { template, .. } = self else { return Vec::new() };
        let facts = PodFacts::from_manifest(&template.pod).unwrap_or_default();
        warnings(&facts).iter().map(|warning| format!("warning: {warning}")).collect()
    }

    /// Returns the policy for `target`.
    pub(super) fn requested(&self, target: &Target, init: InitContainer) -> Result<Requested, CommandError> {
        match self {
            Self::PolicyFile { origin, file } => {
                let cannot =
                    |why| CommandError::because(format!("cannot determine the families of {origin}"), why);
                Ok(Requested::Redirect(target.policy(file).map_err(cannot)?))
            }
            Self::Pod { template, conf } => requested_by_pod(template, conf, target, init),
        }
    }
}

fn requested_by_pod(
    pod: &PodTemplate,
    conf: &PluginConf,
    target: &Target,
    init: InitContainer,
) -> Result<Requested, CommandError> {
    let cannot = || format!("cannot redirect {}", pod.origin);
    let facts = PodFacts::from_manifest(&pod.pod).map_err(|why| CommandError::because(cannot(), why))?;
    match decide(conf, &facts, &target.addresses(), init) {
        Decision::LeaveAlone(reason) => {
            let is_injected = reason != LeaveAloneReason::NoProxy || facts.annotations.contains_key(STATUS);
            let hint = (!is_injected).then(|| not_injected(&pod.origin));
            Ok(Requested::LeaveAlone { reason: reason.to_string(), hint })
        }
        Decision::Refuse(cause) => Err(CommandError::because(cannot(), cause)),
        Decision::Ambient(policy) => Ok(Requested::Redirect(Policy::Ambient(policy))),
        Decision::Redirect(policy) => {
            let families = target.families().unwrap_or(policy.families);
            Ok(Requested::Redirect(Policy::Sidecar(Box::new(RedirectPolicy { families, ..policy }))))
        }
    }
}

fn not_injected(origin: &str) -> String {
    format!(
        "hint: {origin} is not injected: run its manifest through `istioctl kube-inject -f FILE`, or use the \
         manifest of a running pod (`kubectl get pod NAME -o yaml`)"
    )
}

impl Target {
    /// A namespace with these addresses, or none.
    pub(super) fn of(addresses: Option<Vec<IpAddr>>, families: Option<Families>) -> Self {
        addresses.map_or(Self::Assumed(families), Self::Namespace)
    }

    fn policy(&self, file: &AnyPolicyFile) -> Result<Policy, NoAddress> {
        let file = match file {
            AnyPolicyFile::Sidecar(file) => file,
            AnyPolicyFile::Ambient(policy) => {
                let families = self.families().unwrap_or(policy.families);
                return Ok(Policy::Ambient(AmbientPolicy { families, ..policy.clone() }));
            }
        };
        Ok(Policy::Sidecar(Box::new(match self {
            Self::Namespace(addresses) => file.policy(addresses)?,
            Self::Assumed(Some(families)) => file.with_families(*families),
            Self::Assumed(None) => file.policy(&self.addresses())?,
        })))
    }

    fn families(&self) -> Option<Families> {
        match self {
            Self::Namespace(_) => None,
            Self::Assumed(families) => *families,
        }
    }

    /// An assumed namespace has both families, IPv4 first: IPv6 is then redirected if the policy includes it,
    /// and left alone if the policy does not mention it (docs/ISTIO.md, section 2.5).
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Namespace(addresses) => addresses.clone(),
            Self::Assumed(_) => vec![
                Ipv4Addr::new(192, 0, 2, 1).into(),
                Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
            ],
        }
    }

    /// Notes about the policy: IPv6 that bypasses the proxy although the source does not request it, and the
    /// source's warnings.
    pub(super) fn notes(&self, source: &PolicySource, policy: &Policy) -> Vec<String> {
        let mut notes = source.warnings();
        if let Self::Namespace(found) = self
            && !source.sets_families()
            && ipv6_left_alone(policy.families(), found)
        {
            notes.push("note: the namespace has an IPv6 address, and its IPv6 is left alone".to_owned());
        }
        notes
    }
}
