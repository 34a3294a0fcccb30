//! `gybe install`: installs Gybe on this node in one pass, without a cluster.

use super::input::{DirectoriesArg, directory_of_this_program};
use super::output::{CommandError, CommandOutput, Exit};
use super::pass;
use super::style::{bad, examples, good};
use crate::diagnosis::doctor::observe::runtimes_of;
use crate::host::desired::DesiredState;
use crate::host::image::{Image, OTHER_NAMES};
use crate::host::install;
use crate::host::settings::{NodeMode, Settings, SettingsSources};
use crate::probe::node_backend::NodeProbe;
use clap::Args;
use gybe_plugin::conf::FactsConf;
use gybe_plugin::probe_cache::{ProbeCache, this_node};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Install gybe-cni and gybe on this node and add gybe-cni to its chain of CNI plugins
///
/// Makes one pass, as the node agent does. Every setting has the name and the meaning of the ConfigMap's key.
/// The programs are taken from the directory of this program. A running node agent keeps its own settings and
/// changes the node back to them. Exit code 0: the node is as configured. 1: a problem prevents it, and is
/// printed. Running it again changes nothing.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "gybe install --dry-run",
    "gybe install --shape chained --exclude-namespaces kube-system,istio-system",
    "gybe install --config ./settings --pods-from /etc/gybe/pods",
]))]
pub(super) struct InstallArgs {
    #[command(flatten)]
    directories: DirectoriesArg,
    #[command(flatten)]
    settings: SettingsArg,
    /// Take gybe-cni and gybe from this directory
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Print the plan and the problems that block it (exit code 1); change nothing
    #[arg(long)]
    dry_run: bool,
}

/// The flags for settings.
#[derive(Debug, Args)]
struct SettingsArg {
    /// Read settings from this directory, one file for each key; a flag takes precedence
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
    /// How gybe-cni becomes part of the chain: auto, chained, dropin or standalone
    #[arg(long, value_name = "SHAPE")]
    shape: Option<String>,
    /// The conf file to change, or to create (standalone)
    #[arg(long, value_name = "NAME")]
    conf_name: Option<String>,
    /// The backend: auto, nft, iptables, iptables-nft or iptables-legacy
    #[arg(long, value_name = "BACKEND")]
    backend: Option<String>,
    /// Leave pods of these namespaces alone: a comma-separated list
    #[arg(long, value_name = "LIST")]
    exclude_namespaces: Option<String>,
    /// The plugin's log level: none, error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// The conditions for a pod to be part of the mesh: istio or strict
    #[arg(long, value_name = "GATES")]
    gates: Option<String>,
    /// What happens to a pod's IPv6: auto, redirect, leave or reject
    #[arg(long, value_name = "VALUE")]
    ipv6: Option<String>,
    /// The inbound ports to capture if the pod names none: all or containerPorts
    #[arg(long, value_name = "VALUE")]
    inbound_default: Option<String>,
    /// The largest number of port ranges, networks or interfaces in one annotation
    #[arg(long, value_name = "NUMBER")]
    max_intervals: Option<String>,
    /// When to replace an istio-cni entry: wait (until its agent has ended) or now
    #[arg(long, value_name = "VALUE")]
    take_over: Option<String>,
    /// confirmed: accept the program directory although it is unknown whether the runtime looks there for plugins
    /// [default: check]
    #[arg(long, value_name = "VALUE")]
    plugin_dir: Option<String>,
    #[arg(long, value_name = "LIST", help = format!("Further names for gybe on the host: a comma-separated list of {}", OTHER_NAMES.join(", ")))]
    also_as: Option<String>,
    /// Let the plugin read manifests from this directory instead of querying the agent
    #[arg(long, value_name = "DIR")]
    pods_from: Option<PathBuf>,
    /// The namespace of the node agent
    #[arg(long, value_name = "NAMESPACE", default_value = "gybe-system")]
    agent_namespace: String,
}

impl SettingsArg {
    fn read(&self) -> Result<Settings, CommandError> {
        let mut given = match &self.config {
            None => SettingsSources::default(),
            Some(directory) => {
                let variable = ("GYBE_CONFIG_DIR".to_owned(), directory.display().to_string());
                let gathered = SettingsSources::gather(BTreeMap::from([variable]));
                gathered.map_err(|why| CommandError::because("cannot read the settings", why))?
            }
        };
        given.environment.insert("POD_NAMESPACE".to_owned(), self.agent_namespace.clone());
        given.files.extend(self.flags());
        let mut settings =
            Settings::read(&given).map_err(|why| CommandError::because("cannot install", why))?;
        if let Some(directory) = &self.pods_from {
            let directory = std::path::absolute(directory)
                .map_err(|why| CommandError::because(format!("cannot use {}", directory.display()), why))?;
            settings.options.conf.facts =
                FactsConf { socket: None, directory: Some(directory), ..FactsConf::default() };
        }
        Ok(settings)
    }

    fn flags(&self) -> impl Iterator<Item = (String, String)> {
        let all = [
            ("shape", &self.shape),
            ("conf_name", &self.conf_name),
            ("backend", &self.backend),
            ("exclude_namespaces", &self.exclude_namespaces),
            ("log_level", &self.log_level),
            ("gates", &self.gates),
            ("ipv6", &self.ipv6),
            ("inbound_default", &self.inbound_default),
            ("max_intervals", &self.max_intervals),
            ("take_over", &self.take_over),
            ("plugin_dir", &self.plugin_dir),
            ("also_as", &self.also_as),
        ];
        all.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)))
    }
}

impl InstallArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let mut settings = self.settings.read()?;
        if settings.options.mode == NodeMode::Leave {
            let hint = "run gybe uninstall".to_owned();
            return Err(CommandError::new("the settings have mode: leave").with_hint(hint));
        }
        settings.environment.directories = self.directories.node_directories();
        settings.environment.istio_run = self.directories.root().join("var/run/istio-cni");
        let image = image(self.from.clone())?;
        let desired = install::desired(&settings, &image, last_probe().as_ref());
        let desired = desired.map_err(|why| CommandError::because("cannot install", why))?;
        self.perform(&settings, &desired)
    }

    fn perform(&self, settings: &Settings, desired: &DesiredState) -> Result<CommandOutput, CommandError> {
        let directories = &settings.environment.directories;
        let notes = settings.notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>();
        let runtimes = runtimes_of(self.directories.root(), directories);
        if self.dry_run {
            return Ok(pass::dry_run(&install::planned(directories, desired, runtimes)).with_notes(notes));
        }
        let pass = install::settle(directories, desired, &runtimes)
            .map_err(|why| CommandError::hinted("cannot install", why))?;
        let is_done = pass.left.is_done() && pass.applied.failed.is_empty();
        let (last, exit) = match is_done {
            true => (good("this node is as configured"), Exit::Yes),
            false => (bad("this node is not as configured"), Exit::No),
        };
        let text = pass::text(&pass) + &last + "\n";
        Ok(CommandOutput { text, json: pass::json(&pass), exit, notes })
    }
}

/// Reads both programs from the directory `from`, or from this program's own.
pub(super) fn image(from: Option<PathBuf>) -> Result<Image, CommandError> {
    let hint = || "name the directory that contains gybe and gybe-cni with --from".to_owned();
    let directory = from.or_else(directory_of_this_program);
    let directory = directory
        .ok_or_else(|| CommandError::new("cannot find the directory of this program").with_hint(hint()))?;
    Image::read(&directory).map_err(|why| CommandError::because("cannot install", why).with_hint(hint()))
}

/// Returns the findings of the last probe of this node, if they are still cached.
fn last_probe() -> Option<NodeProbe> {
    let capabilities = ProbeCache::default().load()?;
    Some(NodeProbe { kernel: this_node().ok()?.kernel, capabilities })
}
