//! `gybe verify --all` and `gybe verify --pod NAMESPACE/NAME`: the pods of this node, found by themselves.

use super::answer::{Answer, Exit, Failure};
use super::directories::DirectoriesArg;
use crate::host::doctor::entry_conf;
use crate::host::install::seen::{Hashes, Interest, look};
use crate::host::pods_on_node::{
    Found, HostPaths, Judged, Network, Sandbox, Sources, find, judge_all, summary,
};
use crate::pod::manifest::printable;
use clap::Args;
use gybe_plugin::args::{Namespace, PodName, PodRef};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::pod::PodFacts;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Where the node's pods are found, and who is asked about them.
#[derive(Debug, Args)]
pub(super) struct OnNodeArgs {
    /// Also look in this directory of manifests, <NAMESPACE>/<NAME>.json, for what a pod should have
    #[arg(long, value_name = "DIR", conflicts_with = "netns")]
    facts: Option<PathBuf>,
    #[command(flatten)]
    directories: DirectoriesArg,
}

impl OnNodeArgs {
    /// Every sandbox. `conf` is the plugin's configuration if the operator named one.
    pub(super) fn all(&self, conf: Option<PluginConf>) -> Answer {
        let Found { sandboxes, unreadable } = self.found();
        answer(&judge_all(sandboxes, &self.sources(conf)), &unreadable)
    }

    /// The sandbox of one pod, NAMESPACE/NAME.
    pub(super) fn named(&self, pod: &str, conf: Option<PluginConf>) -> Result<Answer, Failure> {
        let (namespace, name) = pod.split_once('/').ok_or_else(|| not_a_pod(pod))?;
        let namespace = Namespace::parse(namespace).map_err(|_| not_a_pod(pod))?;
        let name = PodName::parse(name).map_err(|_| not_a_pod(pod))?;
        self.one(&PodRef { namespace, name, uid: None }, &self.sources(conf))
    }

    /// The sandbox of the pod that this manifest is of.
    pub(super) fn of_manifest(&self, facts: PodFacts, conf: Option<PluginConf>) -> Result<Answer, Failure> {
        let namespace = if facts.namespace.is_empty() { "default" } else { &facts.namespace };
        let unnamed = |_| Failure::new("the manifest does not name one pod; name its sandbox with --netns");
        let namespace = Namespace::parse(namespace).map_err(unnamed)?;
        let name = PodName::parse(&facts.name).map_err(unnamed)?;
        self.one(&PodRef { namespace, name, uid: None }, &self.sources(conf).with_manifest(facts))
    }

    fn one(&self, pod: &PodRef, sources: &Sources) -> Result<Answer, Failure> {
        let Found { sandboxes, unreadable } = self.found();
        let is_it = |sandbox: &Sandbox| {
            let named = sandbox.pod.as_ref();
            named.is_some_and(|it| it.namespace == pod.namespace && it.name == pod.name)
        };
        let these: Vec<Sandbox> = sandboxes.into_iter().filter(is_it).collect();
        if these.is_empty() {
            let what = format!("this node shows no sandbox of pod {pod}");
            let why =
                if unreadable.is_empty() { String::new() } else { format!(": {}", unreadable.join("; ")) };
            let hint = "gybe verify --all lists the sandboxes of this node; --netns names a namespace";
            return Err(Failure::new(what + &why).hinting(Some(hint.to_owned())));
        }
        Ok(answer(&judge_all(these, sources), &[]))
    }

    fn found(&self) -> Found {
        let results = self.directories.places().results;
        find(&HostPaths { results, root: self.directories.root().to_owned() })
    }

    /// By the node's own entry, unless the operator named another configuration.
    fn sources(&self, conf: Option<PluginConf>) -> Sources {
        let of_node = || {
            let places = self.directories.places();
            entry_conf(&look(&places, &Interest::default(), &mut Hashes::default()).conf)
        };
        let mut conf = conf.or_else(of_node).unwrap_or_default();
        conf.facts.directory = self.facts.clone().or(conf.facts.directory);
        Sources::of(conf)
    }
}

fn not_a_pod(pod: &str) -> Failure {
    let what = format!("--pod {} is neither a file nor NAMESPACE/NAME", printable(pod));
    Failure::new(what).hinting(Some("without --netns a pod is named like shop/cart-0".to_owned()))
}

/// One line for each sandbox, and how many there are of each kind.
fn answer(judged: &[Judged], unreadable: &[String]) -> Answer {
    let names: Vec<String> = judged.iter().map(|one| printable(&one.sandbox.to_string())).collect();
    let widest = names.iter().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (name, one) in names.iter().zip(judged) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<widest$}  {}", printable(&one.line()));
        let more = one.verdict.reasons.iter().skip(1).chain(&one.verdict.differences).filter(|_| one.fails());
        for difference in more {
            let _ = writeln!(text, "{:<widest$}    {}", "", printable(difference));
        }
    }
    let holds = unreadable.is_empty() && !judged.iter().any(Judged::fails);
    let json = json!({
        "holds": holds,
        "sandboxes": judged.iter().map(as_json).collect::<Vec<_>>(),
        "unreadable": unreadable,
    });
    let exit = if holds { Exit::Yes } else { Exit::No };
    let cannot = unreadable.iter().map(|what| format!("note: sandboxes may be missing: {what}"));
    let notes = cannot.chain(notes(judged)).collect();
    Answer { text: format!("{text}{}\n", summary(judged)), json, exit, notes }
}

/// Why pods are judged by their rules alone: each reason once, however many pods it is about.
fn notes(judged: &[Judged]) -> Option<String> {
    let mut unknown =
        judged.iter().filter(|one| one.sandbox.pod.is_some()).filter_map(|one| one.unknown_because.as_ref());
    let first = unknown.next()?;
    let more = unknown.count();
    let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
    Some(format!("note: what a pod should have is not known, so its rules alone are judged: {first}{more}"))
}

fn as_json(one: &Judged) -> Value {
    let Judged { sandbox, verdict, unknown_because } = one;
    let pod = sandbox.pod.as_ref();
    let netns = match &sandbox.network {
        Network::Own(path) => Some(path.display().to_string()),
        Network::OfNode => None,
    };
    json!({
        "namespace": pod.map(|pod| pod.namespace.as_str()),
        "name": pod.map(|pod| pod.name.as_str()),
        "uid": pod.and_then(|pod| pod.uid.as_ref()).or(sandbox.uid.as_ref()),
        "container": sandbox.container,
        "netns": netns,
        "verdict": verdict.answer.name(),
        "reasons": verdict.reasons,
        "differences": verdict.differences,
        "notes": verdict.notes,
        "judged_by_rules_alone": unknown_because,
    })
}
