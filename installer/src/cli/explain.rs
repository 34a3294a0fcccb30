//! `gybe explain`: what gybe-cni does with a pod, and why.

use super::namespace::{FamiliesArg, OpenNamespace};
use super::output::{CommandError, CommandOutput, Exit};
use super::pods::{KnownPod, OnNodeArgs};
use super::policy_source::{IgnoreInitArg, PodArgs, Target};
use super::style::examples;
use crate::diagnosis::explanation::{Explanation, PodAddresses, Subject};
use crate::pod::manifest::PodTemplate;
use clap::{ArgGroup, Args};
use gybe_plugin::conf::PluginConf;
use gybe_plugin::decide::Decision;
use gybe_plugin::pod::PodFacts;
use std::path::PathBuf;

/// Explain what gybe-cni does with a pod, and why
///
/// Prints each gate, the source of each value (an annotation, a variable of istio-proxy, the plugin's configuration or
/// the default), and the policy in words; for a pod without a sidecar, what kept it out of injection. With --json
/// `policy` is a policy file. The plugin's own code decides.
///
/// NAMESPACE/NAME queries the sources that the plugin on this node uses, with the configuration in the node's
/// entry. A manifest that also contains the pod's Namespace shows its labels. Exit code 1: a pod is refused.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("explained").args(["pod", "pod_argument"]).required(true))]
#[command(after_help = examples(&[
    "gybe explain deployment.yaml",
    "gybe explain shop/cart-0",
    "kubectl get namespace/shop pod/cart-0 -n shop -o yaml | gybe explain -",
]))]
pub(super) struct ExplainArgs {
    /// The same as --pod
    #[arg(value_name = "FILE|NAMESPACE/NAME")]
    pod_argument: Option<PathBuf>,
    #[command(flatten)]
    pods: PodArgs,
    #[command(flatten)]
    on_node: OnNodeArgs,
    #[command(flatten)]
    families: FamiliesArg,
    #[command(flatten)]
    init: IgnoreInitArg,
}

impl ExplainArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let pods = self.pods.or(self.pod_argument.as_deref());
        let conf = pods.plugin_conf()?;
        let explanations = match pods.named_pod() {
            Some(name) => vec![self.explain_known(name, &self.on_node.look_up_pod(name, conf)?)?],
            None => {
                let (conf, templates) = (conf.unwrap_or_default(), pods.templates()?);
                let explain = |template| self.explain_template(template, &conf);
                templates.iter().map(explain).collect::<Result<_, _>>()?
            }
        };
        Ok(output(&explanations))
    }

    fn explain_template(
        &self,
        template: &PodTemplate,
        conf: &PluginConf,
    ) -> Result<Explanation, CommandError> {
        let facts = PodFacts::from_manifest(&template.pod)
            .map_err(|why| CommandError::because(format!("cannot use {}", template.origin), why))?;
        let target = Target::of(None, self.families.families());
        let subject = Subject {
            origin: &template.origin,
            facts: &facts,
            manifest: Some(&template.pod),
            namespace_labels: template.namespace_labels.as_ref(),
            addresses: &target.addresses(),
            addresses_are: PodAddresses::Assumed,
            families: self.families.families(),
        };
        Ok(Explanation::of(&subject, conf, self.init.gate()))
    }

    fn explain_known(&self, name: &str, pod: &KnownPod) -> Result<Explanation, CommandError> {
        let namespace = pod.netns.clone().map(OpenNamespace::at).transpose()?;
        let addresses = namespace.as_ref().map(OpenNamespace::addresses).transpose()?;
        let addresses_are = if addresses.is_some() { PodAddresses::Read } else { PodAddresses::Assumed };
        let target = Target::of(addresses, self.families.families());
        let subject = Subject {
            origin: name,
            facts: &pod.facts,
            manifest: None,
            namespace_labels: None,
            addresses: &target.addresses(),
            addresses_are,
            families: self.families.families(),
        };
        Ok(Explanation::of(&subject, &pod.conf, self.init.gate()))
    }
}

fn output(explanations: &[Explanation]) -> CommandOutput {
    let is_refused = |explanation: &Explanation| matches!(explanation.decision(), Decision::Refuse(_));
    let texts: Vec<String> = explanations.iter().map(Explanation::text).collect();
    let warnings = explanations.iter().flat_map(Explanation::warnings);
    CommandOutput {
        text: texts.join("\n"),
        json: explanations.iter().map(Explanation::json).collect(),
        exit: if explanations.iter().any(is_refused) { Exit::No } else { Exit::Yes },
        notes: warnings.map(|warning| format!("warning: {warning}")).collect(),
    }
}
