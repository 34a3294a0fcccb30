//! The arguments of `istio-iptables`, which Istio's injector writes into the init container `istio-init`, as a
//! policy file and options. Writes no rule.
//!
//! Arguments are parsed as Go's pflag parses them, so that every command line that works with Istio works here.

mod flags;
mod options;

pub use flags::RunOption;
pub use options::ValidationOptions;

use crate::pod::policy_file::{PolicyFault, PolicyFile, PolicyFileError};
use flags::{FLAGS, FlagMeaning, Setting, VARIABLES};
use gybe_netfilter::apply::backend::BackendKind;
use gybe_plugin::pod::parse_bool;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Envoy's default port for outbound connections.
const ENVOY_PORT: &str = "15001";

/// The parsed arguments of `istio-iptables`.
#[derive(Debug, Clone, PartialEq)]
pub struct InitArgs {
    /// The keys of a policy file and their values.
    policy: Map<String, Value>,
    has_policy_arguments: bool,
    run_options: BTreeSet<RunOption>,
    settings: BTreeMap<Setting, String>,
    /// Arguments and variables without effect.
    notes: BTreeSet<String>,
    validation: ValidationOptions,
    backend: BackendKind,
}

#[derive(Debug, thiserror::Error)]
pub enum InitArgsError {
    #[error("{0:?} is not an argument of istio-iptables")]
    Unknown(String),
    #[error("--{0} needs a value")]
    NoValue(&'static str),
    /// `name` is a flag or an environment variable.
    #[error("{name} is {value:?}, which is neither true nor false")]
    NotABool { name: String, value: String },
    /// The value of an option that is not part of the policy.
    #[error("{name} is {value:?}, which is not {expected}")]
    Invalid { name: &'static str, value: String, expected: &'static str },
    #[error("the arguments of istio-iptables are not a valid policy")]
    Policy(#[source] PolicyFileError),
}

impl InitArgs {
    /// Parses the arguments, without the program's name, and the environment. An argument overrides the
    /// variables that set it too, as in Istio. Values of the policy are checked by [`InitArgs::policy`].
    ///
    /// # Errors
    /// The first argument that is unknown, lacks its value or has an invalid one.
    pub fn read(args: &[String], environment: &BTreeMap<String, String>) -> Result<Self, InitArgsError> {
        let mut read = Self {
            policy: capture_nothing(),
            has_policy_arguments: false,
            run_options: BTreeSet::new(),
            settings: BTreeMap::new(),
            notes: BTreeSet::new(),
            validation: ValidationOptions::default(),
            backend: BackendKind::Nft,
        };
        read.environment(environment)?;
        let mut rest = args.iter().map(String::as_str).peekable();
        rest.next_if_eq(&"istio-iptables");
        while let Some(arg) = rest.next() {
            match (arg.strip_prefix("--"), arg.strip_prefix('-')) {
                // Everything after it is a word, as in pflag.
                (Some(""), _) => rest.by_ref().for_each(|word| read.ignore_word(word)),
                (Some(long), _) => read.long(long, &mut rest)?,
                (None, None | Some("")) => read.ignore_word(arg),
                (None, Some(letters)) => read.short(letters, &mut rest)?,
            }
        }
        read.validation = read.read_validation()?;
        read.backend = read.read_backend()?;
        Ok(read)
    }

    /// Reports whether `word` is one of the flags, so that a command line that begins with it is for
    /// `istio-iptables`.
    pub fn is_flag(word: &str) -> bool {
        if let Some(long) = word.strip_prefix("--") {
            let name = long.split_once('=').map_or(long, |(name, _)| name);
            return FLAGS.iter().any(|flag| flag.is_called(name));
        }
        let letter = word.strip_prefix('-').and_then(|letters| letters.chars().next());
        letter.is_some_and(|letter| FLAGS.iter().any(|flag| flag.short == Some(letter)))
    }

    /// Returns a line for each flag, with the environment variables that set it too.
    pub fn help() -> String {
        let lines = FLAGS.iter().map(|flag| flag.help().trim_end().to_owned() + "\n");
        lines.collect()
    }

    /// Returns the arguments with their meaning before Istio 1.3: the proxy had one port for both directions,
    /// and no argument for a second one (`tools/deb/istio-iptables.sh` of istio/istio 1.0).
    #[must_use]
    pub fn with_one_port(mut self) -> Self {
        let port = self.policy.get("proxy_port").cloned().unwrap_or_else(|| ENVOY_PORT.into());
        self.policy.entry("inbound_capture_port").or_insert(port);
        self
    }

    /// Returns the policy of the arguments. `dns_servers` are those of the pod's `/etc/resolv.conf`; they have an
    /// effect when DNS is captured but not all of it (docs/ISTIO.md, section 2.3).
    ///
    /// # Errors
    /// All invalid values.
    pub fn policy(&self, dns_servers: &[IpAddr]) -> Result<PolicyFile, InitArgsError> {
        let mut policy = self.policy.clone();
        let servers =
            |v4| dns_servers.iter().filter(|ip| ip.is_ipv4() == v4).map(ToString::to_string).collect();
        policy.insert("dns_servers_v4".to_owned(), servers(true));
        policy.insert("dns_servers_v6".to_owned(), servers(false));
        PolicyFile::from_entries(&policy).map_err(|error| InitArgsError::Policy(named_as_flags(error)))
    }

    pub fn requests(&self, option: RunOption) -> bool {
        self.run_options.contains(&option)
    }

    /// Reports whether an argument or variable of the policy was given.
    pub fn has_policy_arguments(&self) -> bool {
        self.has_policy_arguments
    }

    /// Reports whether the policy depends on the pod's DNS servers.
    pub fn needs_dns_servers(&self) -> bool {
        let is = |key| self.policy.get(key).and_then(Value::as_bool) == Some(true);
        is("redirect_dns") && !is("capture_all_dns")
    }

    /// Takes the variables of each flag in order, so the last one counts.
    fn environment(&mut self, environment: &BTreeMap<String, String>) -> Result<(), InitArgsError> {
        let of_flags =
            FLAGS.iter().flat_map(|flag| flag.variables().map(|variable| (variable, flag.meaning)));
        let without_flag = VARIABLES.iter().map(|(variable, meaning)| ((*variable).to_owned(), *meaning));
        for (variable, meaning) in of_flags.chain(without_flag) {
            if let Some(value) = environment.get(&variable) {
                self.take_variable(meaning, &variable, value)?;
            }
        }
        Ok(())
    }

    /// As [`Self::take`], but a value that is neither true nor false counts as false, as with pflag: Istio's injector
    /// copies whatever `proxyMetadata` has.
    fn take_variable(&mut self, meaning: FlagMeaning, name: &str, value: &str) -> Result<(), InitArgsError> {
        if matches!(meaning, FlagMeaning::Bool(_) | FlagMeaning::RunOption(_)) && parse_bool(value).is_none()
        {
            let note = format!(
                "note: {name} is {value:?}, which is neither true nor false; it counts as false, as in Istio"
            );
            self.notes.insert(note);
            return self.take(meaning, name, "false");
        }
        self.take(meaning, name, value)
    }

    fn ignore_word(&mut self, word: &str) {
        self.notes.insert(format!("note: the word {word:?} is ignored: it is not the value of an argument"));
    }

    fn long<'a>(
        &mut self,
        text: &str,
        rest: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), InitArgsError> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let unknown = || InitArgsError::Unknown(format!("--{name}"));
        let flag = FLAGS.iter().find(|flag| flag.is_called(name)).ok_or_else(unknown)?;
        let value = value.or_else(|| flag.value_when_bare()).or_else(|| rest.next());
        self.take(flag.meaning, flag.long, value.ok_or(InitArgsError::NoValue(flag.long))?)
    }

    /// Parses the letters after one dash. Flags without a value can be combined; the first flag with a value takes the
    /// rest of the word or the next word.
    fn short<'a>(
        &mut self,
        mut letters: &'a str,
        rest: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), InitArgsError> {
        let word = format!("-{letters}");
        let unknown = || InitArgsError::Unknown(word.clone());
        while let Some(letter) = letters.chars().next() {
            let flag = FLAGS.iter().find(|flag| flag.short == Some(letter)).ok_or_else(unknown)?;
            letters = letters.get(letter.len_utf8()..).unwrap_or_default();
            let value = match (letters.strip_prefix('='), flag.value_when_bare()) {
                (Some(value), _) => Some(value),
                (None, Some(bare)) => {
                    self.take(flag.meaning, flag.long, bare)?;
                    continue;
                }
                (None, None) if letters.is_empty() => rest.next(),
                (None, None) => Some(letters),
            };
            return self.take(flag.meaning, flag.long, value.ok_or(InitArgsError::NoValue(flag.long))?);
        }
        Ok(())
    }

    fn take(&mut self, meaning: FlagMeaning, name: &str, value: &str) -> Result<(), InitArgsError> {
        self.has_policy_arguments |= meaning.key().is_some();
        match meaning {
            FlagMeaning::SilentlyIgnored | FlagMeaning::SilentlyIgnoredBare => {}
            FlagMeaning::IgnoredWithNote | FlagMeaning::IgnoredWithNoteBare
                if value.is_empty() || matches!(boolean(name, value), Ok(false)) => {}
            FlagMeaning::IgnoredWithNote | FlagMeaning::IgnoredWithNoteBare => {
                let dashes = if name.starts_with(char::is_lowercase) { "--" } else { "" };
                self.notes.insert(format!("note: {dashes}{name} is ignored: it has no meaning for gybe"));
            }
            FlagMeaning::Setting(setting) => drop(self.settings.insert(setting, value.to_owned())),
            FlagMeaning::Mode(key) | FlagMeaning::Value(key) | FlagMeaning::Number(key)
                if value.is_empty() =>
            {
                drop(self.policy.remove(key));
            }
            FlagMeaning::Mode(key) => self.set(key, flags::mode(value)),
            FlagMeaning::Value(key) => self.set(key, value),
            FlagMeaning::Number(key) => self.set(key, flags::number(value)),
            FlagMeaning::List(key) => self.set(key, list(value, |item| item.into())),
            FlagMeaning::Numbers(key) => self.set(key, list(value, flags::number)),
            FlagMeaning::Ports(key) => self.set(key, list(value, flags::ports)),
            FlagMeaning::Bool(key) => self.set(key, boolean(name, value)?),
            FlagMeaning::RunOption(option) => {
                if boolean(name, value)? {
                    self.run_options.insert(option);
                } else {
                    self.run_options.remove(&option);
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.policy.insert(key.to_owned(), value.into());
    }
}

/// Returns the policy of `istio-iptables` without arguments: it captures no port and no address.
fn capture_nothing() -> Map<String, Value> {
    let lists = FLAGS.iter().filter_map(|flag| match flag.meaning {
        FlagMeaning::List(key) | FlagMeaning::Numbers(key) | FlagMeaning::Ports(key) => {
            Some((key.to_owned(), Value::Array(Vec::new())))
        }
        _ => None,
    });
    lists.collect()
}

fn list(text: &str, spelled: fn(&str) -> Cow<'_, str>) -> Value {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(spelled).collect()
}

fn boolean(name: &str, value: &str) -> Result<bool, InitArgsError> {
    let neither = || InitArgsError::NotABool { name: name.to_owned(), value: value.to_owned() };
    parse_bool(value).ok_or_else(neither)
}

/// Replaces the keys in faults by the flags that the operator wrote: `--proxy-uid` instead of `proxy_uids`.
fn named_as_flags(error: PolicyFileError) -> PolicyFileError {
    let PolicyFileError::Faults(faults) = error else { return error };
    let flag_of = |key: &str| FLAGS.iter().find(|flag| flag.meaning.key() == Some(key));
    let renamed = faults.into_iter().map(|fault| match flag_of(&fault.key) {
        Some(flag) => PolicyFault { key: format!("--{}", flag.long), ..fault },
        None => fault,
    });
    PolicyFileError::Faults(renamed.collect())
}
