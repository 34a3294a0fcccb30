//! The files that `gybe support-bundle` collects of a node, and their archive. `redaction` removes secrets from each.

mod redaction;

use crate::host::observe::{ConfDirectory, ConfFile};
use redaction::{redacted_text, redacted_value};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The size of each log's end, and the number of logs.
const LOG_BYTES: u64 = 256 << 10;
const LOGS: usize = 8;
/// The directory of a log is `<namespace>_<pod>_<uid>/<container>` in `/var/log/pods`. The chart can replace `gybe`
/// in the name of an agent's pod.
const AGENT: (&str, &str) = ("-node-", "install");
/// The largest report.
const MAX_REPORT: u64 = 1 << 20;

/// Files by their name in the archive, without values that look like secrets.
#[derive(Debug, Default)]
pub struct SupportBundle {
    files: BTreeMap<String, String>,
}

impl SupportBundle {
    pub fn add_json(&mut self, name: &str, value: Value) {
        self.files.insert(format!("{name}.json"), format!("{:#}\n", redacted_value(value)));
    }

    /// Adds the conf files that a runtime loads. Of a file that is not JSON it adds the length alone.
    pub fn add_conf(&mut self, directory: &ConfDirectory) {
        let networks = directory.networks.iter().flat_map(|(network, files)| {
            files.iter().map(move |(name, file)| (format!("{network}/{name}"), file))
        });
        let files = directory.files.iter().map(|(name, file)| (name.to_string(), file)).chain(networks);
        for (name, ConfFile { content, .. }) in files {
            let value = match content {
                Ok(bytes) => serde_json::from_slice(bytes)
                    .unwrap_or_else(|_| json!({ "not_json": true, "bytes": bytes.len() })),
                Err(why) => json!({ "unreadable": why.to_string() }),
            };
            self.add_json(&format!("conf/{name}"), value);
        }
    }

    /// Adds the reports in the directory of the probe.
    pub fn add_reports(&mut self, run: &Path, names: &[&str]) {
        for name in names {
            let mut bytes = Vec::new();
            let read =
                File::open(run.join(name)).and_then(|file| file.take(MAX_REPORT).read_to_end(&mut bytes));
            let value = match read {
                Ok(_) => serde_json::from_slice(&bytes).unwrap_or_else(|_| json!({ "not_json": true })),
                Err(why) => json!({ "unreadable": why.to_string() }),
            };
            self.add_json(&format!("run/{}", name.trim_end_matches(".json")), value);
        }
    }

    /// Adds the end of each log of the agents' containers, the newest logs first.
    pub fn add_logs(&mut self, root: &Path) {
        let mut logs: Vec<_> = logs(&root.join("var/log/pods")).collect();
        logs.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).and_then(|it| it.modified()).ok()));
        for path in logs.into_iter().take(LOGS) {
            let text = end_of(&path).unwrap_or_else(|why| format!("cannot be read: {why}\n"));
            let name: Vec<_> = path.iter().rev().take(3).map(|part| part.to_string_lossy()).collect();
            let name: Vec<&str> = name.iter().rev().map(AsRef::as_ref).collect();
            self.files.insert(format!("log/{}", name.join("/")), redacted_text(&text));
        }
    }

    /// The names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    #[must_use]
    pub fn to_json(&self) -> Value {
        json!(self.files)
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// When the target cannot be written.
    pub fn write(&self, target: impl Write) -> io::Result<()> {
        let mut archive = tar::Builder::new(target);
        for (name, text) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(text.len()).unwrap_or_default());
            header.set_mode(0o600);
            archive.append_data(&mut header, Path::new("gybe-support").join(name), text.as_bytes())?;
        }
        archive.into_inner()?.flush()
    }
}

/// The log files of the agents' containers: `POD/CONTAINER/N.log`.
fn logs(pods: &Path) -> impl Iterator<Item = PathBuf> {
    let entries =
        |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|it| it.path());
    let is_agent = |path: &PathBuf| {
        let is_named = path.file_name().is_some_and(|name| name.to_string_lossy().contains(AGENT.0));
        is_named && path.join(AGENT.1).is_dir()
    };
    let containers = entries(pods).filter(is_agent).flat_map(move |pod| entries(&pod));
    let files = containers.flat_map(move |container| entries(&container));
    // A log is a regular file, or a link to one that the runtime writes.
    files.filter(|path| path.extension().is_some_and(|end| end == "log") && path.is_file())
}

fn end_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
