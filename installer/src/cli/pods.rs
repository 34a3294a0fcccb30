//! `gybe verify --all` and `gybe verify --pod NAMESPACE/NAME`: finds and judges the pods of this node.

use super::input::DirectoriesArg;
use super::output::{CommandError, CommandOutput, Exit};
use super::style::{bad, doubtful, good, titles};
use crate::pod::manifest::printable;
use crate::pod::proxy::ProxyFault;
use crate::sandboxes::repair::RepairNode;
use crate::sandboxes::{
    self, Network, PolicySources, Sandbox, SandboxList, SandboxVerdict, state_name, summary,
};
use clap::Args;
use gybe_netfilter::inspect::verdict::RedirectionState;
use gybe_plugin::args::{Namespace, PodName, PodRef};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::pod::PodFacts;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// The flags that name the directories of the node's pods and of their manifests.
#[derive(Debug, Args)]
pub(super) struct OnNodeArgs {
    /// Also take the policies of pods from the manifests in this directory, NAMESPACE/NAME.json
    #[arg(long, value_name = "DIR")]
    facts: Option<PathBuf>,
    #[command(flatten)]
    directories: DirectoriesArg,
}

impl OnNodeArgs {
    pub(super) fn directories(&self) -> &DirectoriesArg {
        &self.directories
    }

    /// The flags without a value.
    pub(super) fn of(directories: DirectoriesArg) -> Self {
        Self { facts: None, directories }
    }

    /// Judges every sandbox. `conf` is the plugin's configuration if the operator named one.
    pub(super) fn judge_all(&self, conf: Option<PluginConf>) -> Result<CommandOutput, CommandError> {
        let SandboxList { sandboxes, unreadable } = self.directories.sandboxes()?;
        let judged = sandboxes::judge_all(sandboxes, &self.sources(conf), self.directories.root());
        Ok(output(&judged, &unreadable))
    }

    /// Judges the sandbox of one pod, NAMESPACE/NAME.
    pub(super) fn judge_pod(
        &self,
        pod: &str,
        conf: Option<PluginConf>,
    ) -> Result<CommandOutput, CommandError> {
        self.judge(&pod_ref(pod)?, &self.sources(conf))
    }

    /// Returns what the sources that the plugin uses know of a pod, NAMESPACE/NAME.
    pub(super) fn look_up_pod(&self, pod: &str, conf: Option<PluginConf>) -> Result<KnownPod, CommandError> {
        let pod = pod_ref(pod)?;
        let sources = self.sources(conf);
        let hint = "name the manifest: kubectl get pod NAME -n NAMESPACE -o yaml | gybe explain --pod -";
        let facts = sources
            .facts(&pod)
            .map_err(|why| CommandError::new(format!("cannot look up pod {pod}: {why}")).with_hint(hint))?;
        let sandboxes = self.directories.sandboxes()?.sandboxes.into_iter();
        let network =
            sandboxes.filter(|sandbox| sandbox.is_of(&pod)).find_map(|sandbox| match sandbox.network {
                Network::Own(path) => Some(path),
                Network::OfNode => None,
            });
        Ok(KnownPod { facts, netns: network, conf: sources.into_conf() })
    }

    /// Judges the sandbox of the pod in a manifest.
    pub(super) fn judge_pod_of_manifest(
        &self,
        facts: PodFacts,
        conf: Option<PluginConf>,
    ) -> Result<CommandOutput, CommandError> {
        let namespace = if facts.namespace.is_empty() { "default" } else { &facts.namespace };
        let unnamed =
            |_| CommandError::new("the manifest does not name one pod; name its sandbox with --netns");
        let namespace = Namespace::parse(namespace).map_err(unnamed)?;
        let name = PodName::parse(&facts.name).map_err(unnamed)?;
        self.judge(&PodRef { namespace, name, uid: None }, &self.sources(conf).with_manifests(vec![facts]))
    }

    fn judge(&self, pod: &PodRef, sources: &PolicySources) -> Result<CommandOutput, CommandError> {
        let these = found(&self.directories, &format!("pod {pod}"), |sandbox| sandbox.is_of(pod))?;
        let judged = sandboxes::judge_all(these, sources, self.directories.root());
        let of_rules = judged.iter().flat_map(SandboxVerdict::notes);
        let of_rules = of_rules.map(|note| format!("note: {}", printable(note))).collect();
        Ok(output(&judged, &[]).with_notes(of_rules))
    }

    pub(super) fn node(&self) -> RepairNode {
        RepairNode {
            root: self.directories.root().to_owned(),
            directories: self.directories.node_directories(),
            facts: self.facts.clone(),
        }
    }

    /// Uses the configuration of the node's own entry unless the operator named another one.
    fn sources(&self, conf: Option<PluginConf>) -> PolicySources {
        let mut conf = conf.or_else(|| self.node().conf()).unwrap_or_default();
        conf.facts.directory = self.facts.clone().or(conf.facts.directory);
        PolicySources::of(conf)
    }
}

/// What a node knows of one pod.
#[derive(Debug)]
pub(super) struct KnownPod {
    pub(super) facts: PodFacts,
    /// The network namespace of its sandbox; none if this node has no sandbox of the pod.
    pub(super) netns: Option<PathBuf>,
    /// The configuration of the plugin.
    pub(super) conf: PluginConf,
}

/// Returns the sandboxes of this node that are meant, at least one. `what` names them in the error.
fn found(
    directories: &DirectoriesArg,
    what: &str,
    is_meant: impl Fn(&Sandbox) -> bool,
) -> Result<Vec<Sandbox>, CommandError> {
    let SandboxList { sandboxes, unreadable } = directories.sandboxes()?;
    let these: Vec<Sandbox> = sandboxes.into_iter().filter(is_meant).collect();
    if these.is_empty() {
        let why = if unreadable.is_empty() { String::new() } else { format!(": {}", unreadable.join("; ")) };
        let hint = "gybe verify --all lists the sandboxes of this node; --netns names a namespace";
        return Err(CommandError::new(format!("this node has no sandbox of {what}{why}")).with_hint(hint));
    }
    Ok(these)
}

/// Returns the path of the one network namespace that is meant.
pub(super) fn network_namespace(
    directories: &DirectoriesArg,
    what: &str,
    is_meant: impl Fn(&Sandbox) -> bool,
) -> Result<PathBuf, CommandError> {
    match found(directories, what, is_meant)?.as_slice() {
        [Sandbox { network: Network::Own(path), .. }] => Ok(path.clone()),
        [_] => {
            let hint = "Gybe writes no rules for pods with hostNetwork: true";
            Err(CommandError::new(format!("{what} uses the node's network")).with_hint(hint))
        }
        several => {
            let hint = "name one with --container-id or --netns; gybe verify --all --json lists both";
            let count = several.len();
            Err(CommandError::new(format!("this node has {count} sandboxes of {what}")).with_hint(hint))
        }
    }
}

/// Parses NAMESPACE/NAME.
pub(super) fn parse_pod(pod: &str) -> Result<PodRef, &'static str> {
    let parse = || {
        let (namespace, name) = pod.split_once('/')?;
        Some((Namespace::parse(namespace).ok()?, PodName::parse(name).ok()?))
    };
    let (namespace, name) = parse().ok_or("name the pod as NAMESPACE/NAME, for example shop/cart-0")?;
    Ok(PodRef { namespace, name, uid: None })
}

fn pod_ref(pod: &str) -> Result<PodRef, CommandError> {
    parse_pod(pod).map_err(|hint| {
        let what = format!("--pod {} is neither a file nor NAMESPACE/NAME", printable(pod));
        CommandError::new(what).with_hint(format!("without a network namespace, {hint}"))
    })
}

/// The title of the first column.
pub(super) const POD: &str = "POD";

/// Colours the words of a verdict.
pub(super) fn coloured(state: RedirectionState, words: &str) -> String {
    match state {
        RedirectionState::Redirected | RedirectionState::NotMeshed => good(words),
        RedirectionState::NotRedirected => bad(words),
        RedirectionState::ByOthers | RedirectionState::Unknown => doubtful(words),
    }
}

/// Returns a line for each sandbox with its differences below, and the number of sandboxes with each verdict.
fn output(judged: &[SandboxVerdict], unreadable: &[String]) -> CommandOutput {
    let names: Vec<String> = judged.iter().map(|one| printable(&one.sandbox.to_string())).collect();
    let widest = names.iter().map(String::len).chain([POD.len()]).max().unwrap_or(0);
    let mut text = String::new();
    if !judged.is_empty() {
        text += &titles(&format!("{POD:<widest$}  VERDICT"));
        text.push('\n');
    }
    for (name, one) in names.iter().zip(judged) {
        let verdict = coloured(one.verdict.state, state_name(one.verdict.state));
        let headline = one.headline().map_or_else(String::new, |why| format!(": {}", printable(why)));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<widest$}  {verdict}{headline}");
        if one.fails() {
            for detail in one.details() {
                let _ = writeln!(text, "{:<widest$}    {}", "", printable(detail));
            }
        }
        let proxy = one.proxy_faults.iter().map(ToString::to_string);
        let notes = proxy.chain(one.later_annotations().map(str::to_owned));
        for what in notes {
            let _ = writeln!(text, "{:<widest$}    note: {what}", "");
        }
    }
    let holds = unreadable.is_empty() && !judged.iter().any(SandboxVerdict::fails);
    let json = json!({
        "holds": holds,
        "sandboxes": judged.iter().map(as_json).collect::<Vec<_>>(),
        "unreadable": unreadable,
    });
    let exit = if holds { Exit::Yes } else { Exit::No };
    let cannot = unreadable.iter().map(|what| format!("note: sandboxes may be missing: {what}"));
    let notes = cannot.chain(notes(judged)).collect();
    CommandOutput { text: format!("{text}{}\n", summary(judged)), json, exit, notes }
}

/// Returns a note if the policy of some pods is not known: the first reason, and how many more pods there are.
fn notes(judged: &[SandboxVerdict]) -> Option<String> {
    let mut unknown =
        judged.iter().filter(|one| one.sandbox.pod.is_some()).filter_map(|one| one.unknown_because.as_ref());
    let first = unknown.next()?;
    let more = unknown.count();
    let more = if more == 0 { String::new() } else { format!(" (and {more} more)") };
    Some(format!("note: the policy of a pod is not known, so only its rules are judged: {first}{more}"))
}

pub(super) fn as_json(one: &SandboxVerdict) -> Value {
    let SandboxVerdict { sandbox, verdict, unknown_because, proxy_faults } = one;
    let silent = proxy_faults.iter().find_map(|fault| match fault {
        ProxyFault::Silent(ports) | ProxyFault::NotServed(ports) => Some(ports.as_slice()),
        _ => None,
    });
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
        "verdict": verdict.state.name(),
        "reasons": verdict.reasons,
        "differences": verdict.differences,
        "notes": verdict.notes,
        "judged_by_rules_alone": unknown_because,
        "proxy_silent_on": silent.unwrap_or_default(),
        "proxy_faults": proxy_faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anstream::adapter::strip_str;
    use gybe_netfilter::inspect::verdict::NamespaceVerdict;

    #[test]
    fn each_reason_and_difference_of_a_sandbox_is_printed_once() {
        let text = |reasons: &[&str], differences: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            let state = RedirectionState::Redirected;
            let verdict = NamespaceVerdict {
                state,
                reasons: owned(reasons),
                differences: owned(differences),
                notes: Vec::new(),
            };
            let sandbox = Sandbox::in_namespace(PathBuf::from("netns"));
            let one = SandboxVerdict { sandbox, verdict, unknown_because: None, proxy_faults: Vec::new() };
            strip_str(&output(&[one], &[]).text).to_string()
        };
        for (reasons, differences, lines) in [
            (&[][..], &[][..], "netns  redirected\n"),
            (&[], &["d1", "d2"], "netns  redirected: d1\n         d2\n"),
            (&["r1", "r2"], &["d1"], "netns  redirected: r1\n         r2\n         d1\n"),
            // Without a difference the sandbox does not fail.
            (&["r1", "r2"], &[], "netns  redirected: r1\n"),
        ] {
            let text = text(reasons, differences);
            assert_eq!(text, format!("POD    VERDICT\n{lines}1 sandbox: 1 redirected\n"));
        }
    }
}
