//! `gybe install`: into this node's chain, once, without a cluster.

use super::answer::{Answer, Exit, Failure};
use super::directories::{DirectoriesArg, of_this_program};
use super::passed;
use crate::host::by_hand;
use crate::host::doctor::sight::runtimes_of;
use crate::host::image::{Image, OTHER_NAMES};
use crate::host::install::wanted::Wanted;
use crate::host::settings::{Given, Mode, Settings};
use crate::probe::node_backend::NodeProbe;
use clap::Args;
use gybe_plugin::conf::FactsConf;
use gybe_plugin::probe_cache::{ProbeCache, this_node};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Put gybe-cni and gybe on this node and into its chain: one pass, as the node agent makes them.
///
/// Every setting is the ConfigMap's key of the same name, and says what it says there. The programs are
/// those beside this gybe. Where the agent runs it goes by its own settings, and writes the node anew.
/// Exit code 0: the node is as wanted. 1: something stands in the way. Again is the same as once.
#[derive(Debug, Args)]
pub(super) struct InstallArgs {
    #[command(flatten)]
    directories: DirectoriesArg,
    #[command(flatten)]
    settings: SettingsArg,
    /// Take gybe-cni and gybe from this directory
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// Say what would be done, and what stands in the way (exit code 1)
    #[arg(long)]
    dry_run: bool,
}

/// What an operator chooses.
#[derive(Debug, Args)]
struct SettingsArg {
    /// Take settings from this directory, a file for each key; a flag counts for more
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
    /// chained, standalone or dropin
    #[arg(long, value_name = "SHAPE")]
    shape: Option<String>,
    /// The conf file to change, or (standalone) to be
    #[arg(long, value_name = "NAME")]
    conf_name: Option<String>,
    /// auto, nft, iptables, iptables-nft or iptables-legacy
    #[arg(long, value_name = "BACKEND")]
    backend: Option<String>,
    /// Leave pods of these namespaces alone: a comma list
    #[arg(long, value_name = "LIST")]
    exclude_namespaces: Option<String>,
    /// How much the plugin tells: none, error, warn, info or debug
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// When a pod counts as part of the mesh: istio or strict
    #[arg(long, value_name = "GATES")]
    gates: Option<String>,
    /// auto, redirect, leave or reject
    #[arg(long, value_name = "WORD")]
    ipv6: Option<String>,
    /// What is captured when the pod does not say: all or containerPorts
    #[arg(long, value_name = "WORD")]
    inbound_default: Option<String>,
    /// How many ports in a row, networks or interfaces a list in an annotation may come to
    #[arg(long, value_name = "NUMBER")]
    max_intervals: Option<String>,
    /// What to do about an istio-cni entry: wait, or now
    #[arg(long, value_name = "WORD")]
    take_over: Option<String>,
    /// `confirmed`: chain even if it is not known that the runtime looks for plugins in the program directory
    /// [default: check]
    #[arg(long, value_name = "WORD")]
    plugin_dir: Option<String>,
    #[arg(long, value_name = "LIST", help = format!("Further names for gybe on the host: of {}", OTHER_NAMES.join(", ")))]
    also_as: Option<String>,
    /// Let the plugin know pods by the manifests in this directory, and ask no agent
    #[arg(long, value_name = "DIR")]
    pods_from: Option<PathBuf>,
    /// The namespace of the node agent
    #[arg(long, value_name = "NAMESPACE", default_value = "gybe-system")]
    agent_namespace: String,
}

impl SettingsArg {
    fn read(&self) -> Result<Settings, Failure> {
        let mut given = match &self.config {
            None => Given::default(),
            Some(directory) => {
                let variable = ("GYBE_CONFIG_DIR".to_owned(), directory.display().to_string());
                let gathered = Given::gather(BTreeMap::from([variable]));
                gathered.map_err(|why| Failure::because("cannot read the settings", why))?
            }
        };
        given.environment.insert("POD_NAMESPACE".to_owned(), self.agent_namespace.clone());
        given.files.extend(self.said());
        let mut settings = Settings::read(&given).map_err(|why| Failure::because("cannot install", why))?;
        if let Some(directory) = &self.pods_from {
            let directory = std::path::absolute(directory)
                .map_err(|why| Failure::because(format!("cannot use {}", directory.display()), why))?;
            settings.choices.conf.facts =
                FactsConf { socket: None, directory: Some(directory), ..FactsConf::default() };
        }
        Ok(settings)
    }

    fn said(&self) -> impl Iterator<Item = (String, String)> {
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
        all.into_iter().filter_map(|(key, said)| Some((key.to_owned(), said.clone()?)))
    }
}

impl InstallArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        let mut settings = self.settings.read()?;
        if settings.choices.mode == Mode::Leave {
            let hint = "gybe uninstall does that";
            return Err(Failure::new("the settings say mode: leave").with_hint(hint));
        }
        settings.ground.places = self.directories.places();
        settings.ground.istio_run = self.directories.root().join("var/run/istio-cni");
        let image = image(self.from.clone())?;
        let wanted = by_hand::wanted(&settings, &image, found().as_ref());
        let wanted = wanted.map_err(|why| Failure::because("cannot install", why))?;
        self.perform(&settings, &wanted)
    }

    fn perform(&self, settings: &Settings, wanted: &Wanted) -> Result<Answer, Failure> {
        let places = &settings.ground.places;
        let notes = settings.notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>();
        let runtimes = runtimes_of(self.directories.root(), places);
        if self.dry_run {
            return Ok(passed::foreseen(&by_hand::foreseen(places, wanted, runtimes)).noting(notes));
        }
        let pass = by_hand::settle(places, wanted, &runtimes)
            .map_err(|why| Failure::hinted("cannot install", why))?;
        let (text, json) = passed::passed(&pass);
        let is_in = pass.left.is_done() && pass.performed.failed.is_empty();
        let last = if is_in { "this node is as wanted\n" } else { "this node is not as wanted\n" };
        let exit = if is_in { Exit::Yes } else { Exit::No };
        Ok(Answer { text: text + last, json, exit, notes })
    }
}

/// Both programs, from where they are.
pub(super) fn image(from: Option<PathBuf>) -> Result<Image, Failure> {
    let directory = from.or_else(of_this_program);
    let directory = directory.ok_or_else(|| {
        Failure::new("cannot tell where this program is")
            .with_hint("name the directory that has gybe and gybe-cni with --from")
    })?;
    let hint = "name the directory that has gybe and gybe-cni with --from";
    Image::look(&directory).map_err(|why| Failure::because("cannot install", why).with_hint(hint))
}

/// What a probe has found out about this node, if one has.
fn found() -> Option<NodeProbe> {
    let capabilities = ProbeCache::default().recall()?;
    Some(NodeProbe { kernel: this_node().ok()?.kernel, capabilities })
}
