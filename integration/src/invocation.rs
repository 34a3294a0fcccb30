//! `gybe apply` and an ADD by `gybe-cni`, each ready to run on a namespace of its own, directly or under a program
//! that interferes; and the state of the namespace afterwards.

use crate::failure::Failure;
use crate::programs::{Run, path_of_ours};
use gybe_demo::add::RecordedAdd;
use gybe_demo::testnet::namespace::Namespace;
use gybe_installer::pod::policy_file::PolicyFile;
use gybe_netfilter::apply::backend::Backend;
use gybe_netfilter::apply::presence::Presence;
use gybe_netfilter::apply::redirection::Redirection;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program with its arguments and input, and the namespace that it redirects.
#[derive(Debug)]
pub struct Invocation {
    /// What the namespace has after a successful run.
    pub redirection: Redirection,
    pub namespace: Namespace,
    words: Vec<String>,
    environment: BTreeMap<String, String>,
    stdin: String,
}

/// How much of a redirection a namespace has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Nothing,
    /// All rules and routes.
    Whole,
    /// All rules, not all routes.
    RulesAlone,
    /// Anything else: the differences.
    Other(Vec<String>),
}

impl Invocation {
    /// Prepares `gybe apply` of a policy file with this backend.
    ///
    /// # Errors
    /// When the program is not built, there is no namespace, or the text is not a policy.
    pub fn apply(policy: &str, backend: &str) -> Result<Self, Failure> {
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

    /// Prepares the ADD of `examples/` for a pod with these addresses, and writes its manifest to `scratch`.
    ///
    /// # Errors
    /// When the program is not built, there is no namespace, or the examples cannot be read.
    pub fn add(addresses: &[IpAddr], scratch: &Path) -> Result<Self, Failure> {
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

    /// Returns the command, as arguments of `before` if that is not empty.
    #[allow(clippy::disallowed_methods, reason = "tests run programs: ours, and those that judge ours")]
    pub fn command(&self, before: &[&str]) -> Command {
        let mut words = before.iter().copied().chain(self.words.iter().map(String::as_str));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").envs(&self.environment);
        command
    }

    pub fn stdin(&self) -> &str {
        &self.stdin
    }

    /// Runs the command of [`Invocation::command`] to its end.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn run(&self, before: &[&str]) -> Result<Run, Failure> {
        let mut command = self.command(before);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        // It may end without having read all of it.
        let _broken_pipe = child.stdin.take().map(|mut pipe| pipe.write_all(self.stdin.as_bytes()));
        let output = child.wait_with_output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
    }

    /// Returns the state of the namespace.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn state(&self, backend: &dyn Backend) -> Result<State, Failure> {
        let look = || {
            let rules = backend.inspect()?;
            let missing = backend.desired(&self.redirection.rules)?.differences(&rules);
            Ok((rules.is_empty(), missing, self.redirection.differences(backend, &Presence::look()?)))
        };
        let (nothing, missing, all) =
            self.namespace.run(look)?.map_err(|e: gybe_netfilter::apply::backend::BackendError| e)?;
        let all = all?;
        Ok(match (nothing, missing.is_empty(), all.is_empty()) {
            (_, _, true) => State::Whole,
            (true, ..) => State::Nothing,
            (_, true, _) => State::RulesAlone,
            _ => State::Other(all.iter().map(ToString::to_string).collect()),
        })
    }
}
