//! `gybe support-bundle`: what a maintainer needs of this node, in one file.

use super::doctor::DoctorArgs;
use super::help::VersionArgs;
use super::output::{CommandError, CommandOutput};
use super::pods::OnNodeArgs;
use super::style::examples;
use crate::agent_status;
use crate::diagnosis::support_bundle::SupportBundle;
use crate::host::observe::{HashCache, ObserveScope, observe};
use crate::host::settings::FACTS_SOCKET;
use clap::Args;
use serde_json::json;
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The deadline of the agent's answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The reports in the directory of the probe.
const REPORTS: [&str; 2] = ["probe.json", "runtime.json"];

/// Collect what a maintainer needs of this node, without values that look like secrets
///
/// Writes a tar archive with the output of `gybe doctor` and `gybe verify --all`, the status of the node agent, the
/// conf files of the runtime, the reports of the probe, the versions, and the ends of the agent's logs. Kubeconfigs,
/// environment variables, manifests and annotations are not read into it; in the rest, values with the name of a secret
/// and words that look like one are replaced by `(removed)`. Read it before you pass it on: names of pods, namespaces,
/// nodes and addresses stay in it. Changes nothing else. Exit code 0: written; 2: the command failed.
#[derive(Debug, Args)]
#[command(after_help = examples(&[
    "gybe support-bundle --output gybe-support.tar",
    "kubectl exec -n gybe-system POD -c repair -- gybe support-bundle --output - --json > gybe-support.json",
]))]
pub(super) struct SupportBundleArgs {
    /// The archive, a new file; - writes none: with --json the files are in the output
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    doctor: DoctorArgs,
}

impl SupportBundleArgs {
    pub(super) fn run(&self) -> Result<CommandOutput, CommandError> {
        let bundle = self.collect();
        let files: Vec<&str> = bundle.names().collect();
        if self.output == Path::new("-") {
            let text = files.iter().map(|name| format!("{name}\n")).collect::<String>();
            return Ok(CommandOutput::done(text, json!({ "files": bundle.to_json() })));
        }
        let path = self.output.display();
        self.write(&bundle).map_err(|why| CommandError::because(format!("cannot write {path}"), why))?;
        let text = format!("wrote {} files to {path}; read it before you pass it on\n", files.len());
        Ok(CommandOutput::done(text, json!({ "output": self.output, "files": files })))
    }

    fn collect(&self) -> SupportBundle {
        let (directories, run) = (self.doctor.directories(), self.doctor.run_directory());
        let mut bundle = SupportBundle::default();
        let kernel = nix::sys::utsname::uname().map(|it| it.release().to_string_lossy().into_owned());
        bundle.add_json("versions", json!({ "gybe": VersionArgs.run().json, "kernel": kernel.ok() }));
        bundle.add_json("doctor", self.doctor.run().json);
        let verdicts = OnNodeArgs::of(directories.clone())
            .judge_all(None)
            .map_or_else(|why| json!({ "error": why.to_string() }), |output| output.json);
        bundle.add_json("verify", verdicts);
        let agent = agent_status::query(&run.join(FACTS_SOCKET), TIMEOUT);
        bundle.add_json(
            "agent",
            match agent {
                Ok(status) => json!(status),
                Err(why) => json!({ "unreachable": crate::error::chain(&why) }),
            },
        );
        let scope = ObserveScope::default();
        bundle.add_conf(&observe(&directories.node_directories(), &scope, &mut HashCache::default()).conf);
        bundle.add_reports(run, &REPORTS);
        bundle.add_logs(directories.root());
        bundle
    }

    /// Writes the archive to a new file; a failed write leaves no part of it.
    fn write(&self, bundle: &SupportBundle) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.output)?;
        let written = bundle.write(BufWriter::new(&file)).and_then(|()| file.sync_all());
        if written.is_err() {
            // The error of the write is the one to report.
            let _ = fs::remove_file(&self.output);
        }
        written
    }
}
