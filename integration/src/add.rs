//! The example ADD, as a runtime would make it, for a namespace with addresses and nothing else.

use crate::complaint::Complaint;
use crate::programs::{Run, path_of_ours, run};
use gybe_installer::testnet::namespace::Namespace;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A directory of one test's own, gone with the value: manifests, and what the test puts there.
#[derive(Debug)]
pub struct Place(PathBuf);

impl Place {
    /// One with the example pod's manifest in it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(test: &str) -> Result<Self, Complaint> {
        let place = Self(std::env::temp_dir().join(format!("gybe-{test}-{}", std::process::id())));
        fs::create_dir_all(place.0.join("shop"))?;
        fs::create_dir_all(place.run())?;
        fs::write(place.manifest(), include_str!("../../examples/pod.json"))?;
        Ok(place)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The example pod's manifest.
    pub fn manifest(&self) -> PathBuf {
        self.0.join("shop/cart-0.json")
    }

    /// What stands in place of `/run` for the programs it runs.
    pub fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Runs a shell command whose `/run` is this place's own, so that no test's findings are another's
    /// nor the machine's.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn sh(&self, command: &str, stdin: &str) -> Result<Run, Complaint> {
        Ok(run("unshare", &self.inside(command).each_ref().map(String::as_str), stdin)?)
    }

    /// The arguments of `unshare` that run the command so.
    pub(crate) fn inside(&self, command: &str) -> [String; 6] {
        let inside = format!("mount --bind {} /run && {command}", self.run().display());
        ["--mount", "--propagation", "private", "sh", "-c", &inside].map(str::to_owned)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// A namespace with the addresses of the example's prevResult, of both families.
///
/// # Errors
/// When it cannot be made.
pub fn pod() -> Result<Namespace, Complaint> {
    let pod = Namespace::new()?;
    pod.run(|| run("ip", &["address", "add", "10.244.0.10/32", "dev", "lo"], ""))??;
    pod.run(|| run("ip", &["address", "add", "fd00:10::10/128", "dev", "lo", "nodad"], ""))??;
    Ok(pod)
}

/// A call of the plugin.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Call {
    /// Its environment.
    pub env: BTreeMap<String, String>,
    /// What it reads.
    pub stdin: Value,
}

impl Call {
    /// The example, for this namespace and the manifests of this place.
    ///
    /// # Errors
    /// When the example is no call.
    pub fn add(pod: &Namespace, place: &Place) -> Result<Self, Complaint> {
        let mut call: Self = serde_json::from_str(include_str!("../../examples/add.json"))?;
        call.env.insert("CNI_NETNS".into(), pod.path().display().to_string());
        let directory = call.stdin.pointer_mut("/facts/directory");
        *directory.ok_or_else(|| Complaint::that("the example asks no directory"))? = json!(place.path());
        Ok(call)
    }

    /// The same for another verb.
    #[must_use]
    pub fn of(mut self, verb: &str) -> Self {
        self.env.insert("CNI_COMMAND".into(), verb.into());
        self
    }

    /// The same with another `backend`.
    #[must_use]
    pub fn by(mut self, backend: &str) -> Self {
        if let Some(members) = self.stdin.as_object_mut() {
            members.insert("backend".into(), backend.into());
        }
        self
    }

    /// Makes it; `before` is put in front of the program, like `strace`.
    ///
    /// # Errors
    /// When the plugin cannot be run.
    pub fn make(&self, place: &Place, before: &str) -> Result<Run, Complaint> {
        place.sh(&self.line(before)?, &self.stdin.to_string())
    }

    /// The shell's line that makes it.
    pub(crate) fn line(&self, before: &str) -> Result<String, Complaint> {
        let set = self.env.iter().map(|(name, value)| format!("'{name}={value}' ")).collect::<String>();
        Ok(format!("exec {before} env -i {set}{}", path_of_ours("gybe-cni")?.display()))
    }
}
