//! Our two programs that write rules, each ready to be run on a namespace of its own, alone or under
//! a program that interferes; and what the namespace should hold when it claims to have done so.

use crate::complaint::Complaint;
use crate::programs::{Run, path_of_ours};
use gybe_installer::demo::add::RecordedAdd;
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_installer::testnet::namespace::Namespace;
use gybe_netfilter::backend::Backend;
use gybe_netfilter::presence::Presence;
use gybe_netfilter::redirection::Redirection;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One program, what it is given, and the namespace it is to redirect.
#[derive(Debug)]
pub struct Errand {
    /// What the namespace holds when it has done it.
    pub redirection: Redirection,
    /// Where.
    pub namespace: Namespace,
    words: Vec<String>,
    environment: BTreeMap<String, String>,
    stdin: String,
}

/// What of ours a namespace holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// No rule.
    Nothing,
    /// All of it, rules and routes.
    Whole,
    /// All rules, and not all routes.
    RulesAlone,
    /// Something else.
    Other(Vec<String>),
}

impl Errand {
    /// `gybe apply` of a policy file, with the backend of that name.
    ///
    /// # Errors
    /// When there is no such program, no namespace, or the text is no policy.
    pub fn apply(policy: &str, backend: &str) -> Result<Self, Complaint> {
        let namespace = Namespace::new()?;
        let netns = namespace.path().to_string_lossy().into_owned();
        let program = path_of_ours("gybe")?.to_string_lossy().into_owned();
        let words = [&program, "apply", "--netns", &netns, "--policy", "-", "--backend", backend];
        Ok(Self {
            redirection: Redirection::of(&PolicyFile::parse(policy)?.policy(&[])?),
            namespace,
            words: words.map(str::to_owned).to_vec(),
            environment: BTreeMap::new(),
            stdin: policy.to_owned(),
        })
    }

    /// `gybe-cni` with the ADD of `examples/`, for a pod of these addresses; its manifest is put into
    /// the directory `scratch`.
    ///
    /// # Errors
    /// When there is no such program, no namespace, or the examples are not to be used.
    pub fn add(addresses: &[IpAddr], scratch: &Path) -> Result<Self, Complaint> {
        let namespace = Namespace::new()?;
        let netns = namespace.path().to_string_lossy().into_owned();
        let examples = PathBuf::from("../examples");
        let call: Value = serde_json::from_str(&std::fs::read_to_string(examples.join("add.json"))?)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let member = |name: &str| call.get(name).cloned().unwrap_or_default();
        let recorded = member("env").get("CNI_NETNS").map(text).unwrap_or_default();
        let environment = member("env").as_object().cloned().unwrap_or_default();
        let environment = environment.iter().map(|(name, value)| (name.clone(), text(value)));
        let manifests = scratch.join("shop");
        std::fs::create_dir_all(&manifests)?;
        std::fs::copy(examples.join("pod.json"), manifests.join("cart-0.json"))?;
        let here = |text: &str| {
            text.replace(&recorded, &netns).replace("/etc/gybe/pods", &scratch.to_string_lossy())
        };
        Ok(Self {
            redirection: Redirection::of(&RecordedAdd::recorded()?.policy(addresses)?),
            words: vec![path_of_ours("gybe-cni")?.to_string_lossy().into_owned()],
            environment: environment.map(|(name, value)| (name, here(&value))).collect(),
            stdin: here(&member("stdin").to_string()),
            namespace,
        })
    }

    /// The program behind `before`, which runs it.
    #[allow(clippy::disallowed_methods, reason = "tests run programs: ours, and those that judge ours")]
    pub fn command(&self, before: &[&str]) -> Command {
        let mut words = before.iter().copied().chain(self.words.iter().map(String::as_str));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(&self.environment);
        command
    }

    /// What it reads.
    pub fn stdin(&self) -> &str {
        &self.stdin
    }

    /// Runs it behind `before`, to its end.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn run(&self, before: &[&str]) -> Result<Run, Complaint> {
        let mut command = self.command(before);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // It may end without having read all of it.
        let _broken_pipe = child.stdin.take().map(|mut pipe| pipe.write_all(self.stdin.as_bytes()));
        let output = child.wait_with_output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
    }

    /// What the namespace holds.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn state(&self, backend: &dyn Backend) -> Result<State, Complaint> {
        let look = || {
            let rules = backend.inspect()?;
            let missing = backend.desired(&self.redirection.rules).unwrap().differences(&rules);
            Ok((rules.is_empty(), missing, self.redirection.differences(backend, &Presence::look().unwrap())))
        };
        let (nothing, missing, all) =
            self.namespace.run(look)?.map_err(|e: gybe_netfilter::backend::BackendError| e)?;
        let all = all?;
        Ok(match (nothing, missing.is_empty(), all.is_empty()) {
            (_, _, true) => State::Whole,
            (true, ..) => State::Nothing,
            (_, true, _) => State::RulesAlone,
            _ => State::Other(all.iter().map(ToString::to_string).collect()),
        })
    }
}
