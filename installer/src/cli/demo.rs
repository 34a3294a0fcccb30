//! `gybe demo`: makes connections with and without Gybe's rules and prints where they go.

use super::output::{CommandError, CommandOutput, Exit};
use super::style::examples;
use crate::demo::scenario::{self, ScenarioOptions};
use crate::demo::traced::exec_traced;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Show where a pod's connections go with and without Gybe
///
/// Creates network namespaces for a pod and its peer, sends gybe-cni an ADD as containerd does for a pod that
/// Istio's injector has changed, and makes the connections of such a pod. Exit code 0: all connections reached
/// the expected destination. 1: some did not, and they are named. 2: the command failed. Needs root, or a
/// user namespace (second example).
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "gybe demo",
    "unshare --user --map-root-user --map-auto gybe demo",
    "gybe demo --without inbound-to-proxy",
]))]
pub(super) struct DemoArgs {
    /// Leave one rule out, to see what breaks; an unknown name prints all names
    #[arg(long, value_name = "RULE-ID")]
    without: Option<String>,
    /// The plugin to run [default: gybe-cni in the directory of this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// Wait for a tracer, then execute this program: how the demo starts the plugin
    #[arg(long, value_name = "PATH", hide = true, exclusive = true)]
    r#become: Option<PathBuf>,
}

impl DemoArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        if let Some(program) = &self.r#become {
            let why = exec_traced(program);
            return Err(CommandError::because(format!("cannot execute {}", program.display()), why));
        }
        let own =
            std::env::current_exe().map_err(|why| CommandError::because("cannot find this program", why))?;
        let options = ScenarioOptions {
            plugin: traced(&own, &self.plugin(&own)?),
            scratch: &std::env::temp_dir(),
            without: self.without.as_deref(),
        };
        let report =
            scenario::run(options).map_err(|why| CommandError::hinted("cannot run the demo", why))?.report();
        let exit = if report.wrong.is_empty() { Exit::Yes } else { Exit::No };
        Ok(CommandOutput { text: report.text, json: report.json, exit, notes: Vec::new() })
    }

    fn plugin(&self, own: &Path) -> Result<PathBuf, CommandError> {
        let path = self.plugin.clone().unwrap_or_else(|| own.with_file_name("gybe-cni"));
        if path.is_file() {
            return Ok(path);
        }
        let hint = "build it (make build, or cargo build), or name it with --plugin".to_owned();
        Err(CommandError::new(format!("there is no plugin at {}", path.display())).with_hint(hint))
    }
}

/// A command that runs this program again, which executes the plugin once it is traced.
fn traced(own: &Path, plugin: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the demo runs the built plugin, as a runtime does")]
    let mut command = Command::new(own);
    command.args(["demo", "--become"]).arg(plugin);
    command
}
