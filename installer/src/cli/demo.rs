//! `gybe demo`: the main job, watched.

use super::answer::{Answer, Exit, Failure};
use crate::demo::play::{Script, play};
use crate::demo::watched::become_program;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Show a pod's connections with and without Gybe, for real.
///
/// Makes a pod and its peer from network namespaces, gives gybe-cni an ADD as containerd sends it for a
/// pod as Istio's injector writes it, and makes the connections a pod makes. Exit code 0: all went where
/// they must. 1: some did not, and they are named. 2: it could not be shown. Needs root, or in front of
/// it: unshare --user --map-root-user --map-auto
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Leave one rule out and see what breaks; an unknown one names all there are
    #[arg(long, value_name = "RULE-ID")]
    without: Option<String>,
    /// The plugin to call; gybe-cni beside this program otherwise
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// Wait to be watched, and become this program: how the demo starts the plugin
    #[arg(long, value_name = "PATH", hide = true, exclusive = true)]
    r#become: Option<PathBuf>,
}

impl DemoArgs {
    pub(super) fn run(&self) -> Result<Answer, Failure> {
        if let Some(program) = &self.r#become {
            let why = become_program(program);
            return Err(Failure::because(format!("cannot become {}", program.display()), why));
        }
        let own = std::env::current_exe().map_err(|why| Failure::because("cannot find this program", why))?;
        let script = Script {
            plugin: becoming(&own, &self.plugin(&own)?),
            scratch: &std::env::temp_dir(),
            without: self.without.as_deref(),
        };
        let report = play(script).map_err(|why| Failure::hinted("the demo cannot be shown", why))?.report();
        let exit = if report.wrong.is_empty() { Exit::Yes } else { Exit::No };
        Ok(Answer { text: report.text, json: report.json, exit, notes: Vec::new() })
    }

    fn plugin(&self, own: &Path) -> Result<PathBuf, Failure> {
        let path = self.plugin.clone().unwrap_or_else(|| own.with_file_name("gybe-cni"));
        if path.is_file() {
            return Ok(path);
        }
        let hint = "build it (make build, or cargo build), or name it with --plugin".to_owned();
        Err(Failure::new(format!("there is no plugin at {}", path.display())).with_hint(hint))
    }
}

/// This program once more, which becomes the plugin when somebody watches.
fn becoming(own: &Path, plugin: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the demo runs the built plugin, as a runtime does")]
    let mut command = Command::new(own);
    command.args(["demo", "--become"]).arg(plugin);
    command
}
