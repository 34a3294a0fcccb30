//! `gybe-demo`: makes connections with and without Gybe's rules and prints where they go.

use clap::Parser;
use gybe_demo::add::exec_traced;
use gybe_demo::scenario::{self, ScenarioOptions};
use gybe_netfilter::model::Hint;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Show where a pod's connections go with and without Gybe
///
/// Creates network namespaces for a pod and its peer, sends gybe-cni an ADD as containerd does for a pod that
/// Istio's injector has changed, and makes the connections of such a pod. Exit code 0: all connections reached
/// the expected destination. 1: some did not, and they are named. 2: the command failed. Needs root, or a
/// user namespace (`unshare --user --map-root-user --map-auto`).
#[derive(Debug, Parser)]
struct Demo {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
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

fn main() -> ExitCode {
    match Demo::parse().run(&mut io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(why) => {
            // Without stderr there is no place left to report it.
            let _ = writeln!(io::stderr(), "gybe-demo: {why}");
            ExitCode::from(2)
        }
    }
}

impl Demo {
    /// Returns whether all connections reached the expected destination.
    fn run(&self, out: &mut impl Write) -> Result<bool, String> {
        if let Some(program) = &self.r#become {
            return Err(format!("cannot execute {}: {}", program.display(), exec_traced(program)));
        }
        let own = std::env::current_exe().map_err(|why| format!("cannot find this program: {why}"))?;
        let plugin = self.plugin.clone().unwrap_or_else(|| own.with_file_name("gybe-cni"));
        if !plugin.is_file() {
            return Err(format!(
                "there is no plugin at {}; build it (make build), or name it with --plugin",
                plugin.display()
            ));
        }
        let options = ScenarioOptions {
            plugin: traced(&own, &plugin),
            scratch: &std::env::temp_dir(),
            without: self.without.as_deref(),
        };
        let report = scenario::run(options).map_err(|why| {
            let hint = why.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
            format!("cannot run the demo: {}{hint}", chain(&why))
        })?;
        let report = report.report();
        let printed =
            if self.json { writeln!(out, "{:#}", report.json) } else { write!(out, "{}", report.text) };
        printed.map_err(|why| format!("cannot write to stdout: {why}"))?;
        Ok(report.wrong.is_empty())
    }
}

fn chain(error: &dyn Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", chain(cause))).unwrap_or_default();
    format!("{error}{cause}")
}

/// A command that runs this program again, which executes the plugin once it is traced.
fn traced(own: &Path, plugin: &Path) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the demo runs the built plugin, as a runtime does")]
    let mut command = Command::new(own);
    command.arg("--become").arg(plugin);
    command
}
