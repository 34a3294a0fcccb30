//! What an operator wants redirected: a policy file, or a pod of a manifest file.

use super::answer::Failure;
use super::{file, plugin_conf};
use crate::pod::families::{Families, FamilyWish, NoAddress};
use crate::pod::manifest::{self, PodTemplate};
use crate::pod::policy_file::PolicyFile;
use clap::{ArgGroup, Args};
use gybe_netfilter::policy::RedirectPolicy;
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::{Decision, decide, warnings};
use gybe_plugin::families::ipv6_left_alone;
use gybe_plugin::gates::InitContainer;
use gybe_plugin::pod::PodFacts;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Where the wish is written down.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("wish").args(["policy", "pod"]))]
pub(super) struct WishArgs {
    /// A policy file (JSON); - is stdin
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A manifest with a pod or a pod template (YAML or JSON); - is stdin
    #[arg(long, value_name = "FILE")]
    pod: Option<PathBuf>,
    /// Which pod, when the manifest has several: NAME or KIND/NAME
    #[arg(long, value_name = "NAME", conflicts_with = "policy")]
    name: Option<String>,
    /// Decide about the pod as gybe-cni does with this configuration (JSON): its entry, or the list
    /// that has it [default: an entry without keys]. Its backend is not taken over
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    plugin_conf: Option<PathBuf>,
}

/// A pod with `istio-init` redirects itself, so it is left alone.
#[derive(Debug, Args)]
pub(super) struct InitArg {
    /// Ask as if the init container istio-init were not there
    #[arg(long)]
    ignore_init: bool,
}

impl InitArg {
    pub(super) fn gate(&self) -> InitContainer {
        if self.ignore_init { InitContainer::Ignored } else { InitContainer::Counts }
    }
}

/// One wish, where it is known which one is meant.
#[derive(Debug)]
pub(super) enum Wish {
    Policy { origin: String, file: Box<PolicyFile> },
    Pod { template: PodTemplate, conf: Rc<PluginConf> },
}

/// What a wish comes to at some place.
#[derive(Debug)]
pub(super) enum Asked {
    Redirect(Box<RedirectPolicy>),
    LeaveAlone(String),
}

/// What is known about the namespace a wish is for.
#[derive(Debug)]
pub(super) enum Place {
    /// There is one, with these addresses.
    Namespace(Vec<IpAddr>),
    /// There is none; perhaps somebody said which families it would have redirected.
    Imagined(Option<Families>),
}

impl WishArgs {
    /// Whether a policy or a pod is named.
    pub(super) fn is_given(&self) -> bool {
        self.policy.is_some() || self.pod.is_some()
    }

    /// The one wish named.
    pub(super) fn one(&self) -> Result<Wish, Failure> {
        let mut wishes = self.all()?;
        match (wishes.len(), wishes.pop()) {
            (1, Some(wish)) => Ok(wish),
            (several, last) => {
                let names: Vec<&str> = wishes.iter().chain(&last).map(Wish::origin).collect();
                let hint = format!("choose one with --name: {}", names.join(", "));
                Err(Failure::new(format!("the manifest has {several} pods")).hinting(Some(hint)))
            }
        }
    }

    /// Every wish the file has; never none.
    pub(super) fn all(&self) -> Result<Vec<Wish>, Failure> {
        match (&self.policy, &self.pod) {
            (Some(path), _) => Ok(vec![policy(path)?]),
            (None, Some(path)) => self.pods(path),
            (None, None) => Err(Failure::new("neither --policy nor --pod is given")),
        }
    }

    /// The pod that is named without a manifest: NAMESPACE/NAME, where no file has that path.
    pub(super) fn named_pod(&self) -> Option<&str> {
        let path = self.pod.as_deref().filter(|path| path.as_os_str() != "-" && !path.exists())?;
        path.to_str()
    }

    /// The plugin's configuration, if one is named.
    pub(super) fn plugin_conf(&self) -> Result<Option<PluginConf>, Failure> {
        self.plugin_conf.as_deref().map(plugin_conf::read).transpose()
    }

    fn pods(&self, path: &Path) -> Result<Vec<Wish>, Failure> {
        let cannot = format!("cannot use the manifest {}", path.display());
        let text = file::text(path).map_err(|why| Failure::because("cannot use the manifest", why))?;
        let pods = manifest::pods(&text).map_err(|why| Failure::because(cannot, why))?;
        let conf = Rc::new(self.plugin_conf()?.unwrap_or_default());
        let wish = |template| Wish::Pod { template, conf: Rc::clone(&conf) };
        let Some(name) = &self.name else { return Ok(pods.into_iter().map(wish).collect()) };
        let all: Vec<String> = pods.iter().map(|pod| pod.origin.clone()).collect();
        let called = |pod: &PodTemplate| pod.origin == *name || pod.name() == name;
        let named: Vec<Wish> = pods.into_iter().filter(called).map(wish).collect();
        if named.is_empty() {
            let hint = format!("it has {}", all.join(", "));
            return Err(Failure::new(format!("the manifest has no pod called {name}")).hinting(Some(hint)));
        }
        Ok(named)
    }
}

fn policy(path: &Path) -> Result<Wish, Failure> {
    let text = file::text(path).map_err(|why| Failure::because("cannot use the policy", why))?;
    let cannot = |why| Failure::because(format!("cannot use the policy {}", path.display()), why);
    let file = PolicyFile::parse(&text).map_err(cannot)?;
    Ok(Wish::Policy { origin: path.display().to_string(), file: Box::new(file) })
}

impl Wish {
    /// Where it comes from: a path, or a kind and name.
    pub(super) fn origin(&self) -> &str {
        match self {
            Self::Policy { origin, .. } => origin,
            Self::Pod { template, .. } => &template.origin,
        }
    }

    /// What the manifest says of its pod.
    pub(super) fn facts(&self) -> Result<PodFacts, Failure> {
        match self {
            Self::Policy { origin, .. } => {
                Err(Failure::new(format!("{origin} names no pod whose namespace could be found")))
            }
            Self::Pod { template, .. } => PodFacts::from_manifest(&template.pod)
                .map_err(|why| Failure::because(format!("cannot use {}", template.origin), why)),
        }
    }

    /// Did somebody write down which families are redirected?
    fn decides_families(&self) -> bool {
        match self {
            Self::Policy { file, .. } => matches!(file.families(), FamilyWish::Decided(_)),
            Self::Pod { .. } => false,
        }
    }

    /// What in a pod's manifest may not mean what it says.
    pub(super) fn warnings(&self) -> Vec<String> {
        let Self::Pod { template, .. } = self else { return Vec::new() };
        let facts = PodFacts::from_manifest(&template.pod).unwrap_or_default();
        warnings(&facts).iter().map(|doubt| format!("warning: {doubt}")).collect()
    }

    /// What it comes to at `place`.
    pub(super) fn asked(&self, place: &Place, init: InitContainer) -> Result<Asked, Failure> {
        match self {
            Self::Policy { origin, file } => {
                let cannot = |why| Failure::because(format!("cannot tell the families of {origin}"), why);
                Ok(Asked::Redirect(Box::new(place.policy(file).map_err(cannot)?)))
            }
            Self::Pod { template, conf } => pods_wish((template, conf), place, init),
        }
    }
}

fn pods_wish(
    (pod, conf): (&PodTemplate, &PluginConf),
    place: &Place,
    init: InitContainer,
) -> Result<Asked, Failure> {
    let cannot = || format!("cannot redirect {}", pod.origin);
    let facts = PodFacts::from_manifest(&pod.pod).map_err(|why| Failure::because(cannot(), why))?;
    match decide(conf, &facts, &place.addresses(), init) {
        Decision::LeaveAlone(reason) => Ok(Asked::LeaveAlone(reason.to_string())),
        Decision::Refuse(cause) => Err(Failure::because(cannot(), cause)),
        Decision::Redirect(policy) => {
            let families = place.families().unwrap_or(policy.families);
            Ok(Asked::Redirect(Box::new(RedirectPolicy { families, ..policy })))
        }
    }
}

impl Place {
    /// The namespace's addresses if there are any to know, else what was said of families.
    pub(super) fn of(addresses: Option<Vec<IpAddr>>, families: Option<Families>) -> Self {
        addresses.map_or(Self::Imagined(families), Self::Namespace)
    }

    fn policy(&self, file: &PolicyFile) -> Result<RedirectPolicy, NoAddress> {
        match self {
            Self::Namespace(addresses) => file.policy(addresses),
            Self::Imagined(Some(families)) => Ok(file.with_families(*families)),
            Self::Imagined(None) => file.policy(&self.addresses()),
        }
    }

    fn families(&self) -> Option<Families> {
        match self {
            Self::Namespace(_) => None,
            Self::Imagined(families) => *families,
        }
    }

    /// An imagined namespace has both families, IPv4 first: then IPv6 is redirected when the wish
    /// says so and left alone when it says nothing (docs/ISTIO.md, section 2.5).
    fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Namespace(addresses) => addresses.clone(),
            Self::Imagined(_) => vec![
                Ipv4Addr::new(192, 0, 2, 1).into(),
                Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
            ],
        }
    }

    /// What an operator should know who did not say so: IPv6 that passes by the proxy, and what in the
    /// pod's manifest may not mean what it says.
    pub(super) fn notes(&self, wish: &Wish, policy: &RedirectPolicy) -> Vec<String> {
        let mut notes = wish.warnings();
        if let Self::Namespace(found) = self
            && !wish.decides_families()
            && ipv6_left_alone(policy.families, found)
        {
            notes.push("note: the namespace has an IPv6 address, and its IPv6 is left alone".to_owned());
        }
        notes
    }
}
