//! A runtime's call as a value: the verb, the container's namespace, and the network configuration.
//!
//! Pure: takes the environment, and a function that reads stdin. `dispatch` performs the call; `version` knows
//! the versions that a verb accepts.

use crate::network_conf::{NetworkConf, NetworkConfError, is_plain_name};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

/// Every variable that the plugin reads.
pub const VARIABLES: [&str; 7] = [
    "CNI_COMMAND",
    "CNI_CONTAINERID",
    "CNI_NETNS",
    "CNI_IFNAME",
    "CNI_PATH",
    "CNI_ARGS",
    "CNI_NETNS_OVERRIDE",
];

/// The `CNI_*` variables of a call.
#[derive(Debug, Clone, Default)]
pub struct CniVariables(BTreeMap<String, OsString>);

impl CniVariables {
    /// Returns a variable's value; an empty one counts as missing, as in the reference library.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// Returns a variable's value as text. Bytes that are not UTF-8 become U+FFFD, which every check below refuses.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| value.to_string_lossy().into_owned())
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for CniVariables {
    /// Keeps the `CNI_*` variables.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let named = variables.into_iter().filter_map(|(name, value)| {
            let name = name.into().into_string().ok()?;
            name.starts_with("CNI_").then(|| (name, value.into()))
        });
        Self(named.collect())
    }
}

/// `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Sets a container up.
    Add,
    /// Compares a container with what ADD left.
    Check,
    /// Tears a container down.
    Del,
    /// Removes what is left of containers that no longer exist.
    Gc,
    /// Reports whether ADD would work.
    Status,
    /// Reports the supported versions.
    Version,
}

impl Verb {
    /// Parses a verb; verbs are upper case.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Add, Self::Check, Self::Del, Self::Gc, Self::Status, Self::Version]
            .into_iter()
            .find(|verb| verb.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Del => "DEL",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    /// Returns the variables that the verb requires.
    fn required(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            // A removed sandbox has no namespace: runtimes send CNI_NETNS="".
            Self::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Self::Gc | Self::Status => &["CNI_PATH"],
            Self::Version => &[],
        }
    }

    fn has_container(self) -> bool {
        matches!(self, Self::Add | Self::Check | Self::Del)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the container's namespace may be the one that the plugin itself runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnNamespace {
    /// It may not: on a node that is the host's.
    Refused,
    /// It may, by `CNI_NETNS_OVERRIDE`.
    Allowed,
}

/// A call with everything that its verb requires.
#[derive(Debug, Clone)]
pub struct Request {
    pub verb: Verb,
    /// `CNI_CONTAINERID`, fit for a path; empty for a verb without a container.
    pub container: String,
    /// The path of the container's namespace; ADD and CHECK always have one.
    pub netns: Option<PathBuf>,
    pub own_namespace: OwnNamespace,
    /// `CNI_ARGS`, unparsed.
    pub args: String,
    pub network: NetworkConf,
}

/// Why a call is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Missing variables, all of them.
    #[error("required env variables [{}] missing", .0.join(","))]
    Missing(Vec<&'static str>),
    /// An unknown verb, truncated.
    #[error("unknown CNI_COMMAND: {0:?}")]
    UnknownVerb(String),
    /// A container id that is unfit for a path, truncated.
    #[error("CNI_CONTAINERID {0:?} must be a letter or digit followed by letters, digits, '_', '.' or '-'")]
    ContainerId(String),
    /// A name that the kernel refuses for an interface, truncated.
    #[error("CNI_IFNAME {0:?} must be 1 to 15 bytes, not '.' or '..', without '/', ':' or white space")]
    Interface(String),
    /// Stdin is not a network configuration.
    #[error("stdin does not hold a network configuration")]
    Network(#[from] NetworkConfError),
}

/// Checks that every variable that `verb` requires is set; the error names all that are missing.
fn require(verb: Verb, env: &CniVariables) -> Result<(), RequestError> {
    let missing: Vec<_> = verb.required().iter().copied().filter(|name| env.get(name).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(RequestError::Missing(missing)) }
}

impl Request {
    /// Parses the call from its environment and stdin.
    ///
    /// The order of the checks is the reference library's, so that a call with two faults gets the same
    /// code: variables, stdin, then the container's id and interface. A call without a required variable is
    /// refused before stdin is read.
    ///
    /// # Errors
    /// When a variable is missing or malformed, or stdin cannot be read or is not a network configuration.
    pub fn parse<B: AsRef<[u8]>, E: From<RequestError>>(
        command: &str,
        env: &CniVariables,
        stdin: impl FnOnce() -> Result<B, E>,
    ) -> Result<Self, E> {
        let verb = Verb::parse(command);
        if let Some(verb) = verb {
            require(verb, env)?;
        }
        Ok(Self::from_parts(command, verb, env, stdin()?.as_ref())?)
    }

    fn from_parts(
        command: &str,
        verb: Option<Verb>,
        env: &CniVariables,
        stdin: &[u8],
    ) -> Result<Self, RequestError> {
        let network = NetworkConf::parse(stdin)?;
        let mut container = String::new();
        if verb.is_none_or(Verb::has_container) {
            container = env.text("CNI_CONTAINERID").unwrap_or_default();
            check_container_id(&container)?;
            check_interface(&env.text("CNI_IFNAME").unwrap_or_default())?;
        }
        Ok(Self {
            verb: verb.ok_or_else(|| RequestError::UnknownVerb(command.chars().take(32).collect()))?,
            container,
            netns: env.get("CNI_NETNS").map(PathBuf::from),
            own_namespace: own_namespace(env),
            args: env.text("CNI_ARGS").unwrap_or_default(),
            network,
        })
    }
}

fn own_namespace(env: &CniVariables) -> OwnNamespace {
    match env.text("CNI_NETNS_OVERRIDE") {
        Some(value) if value == "1" || value.eq_ignore_ascii_case("true") => OwnNamespace::Allowed,
        _ => OwnNamespace::Refused,
    }
}

fn check_container_id(id: &str) -> Result<(), RequestError> {
    if is_plain_name(id) { Ok(()) } else { Err(RequestError::ContainerId(id.chars().take(64).collect())) }
}

fn check_interface(name: &str) -> Result<(), RequestError> {
    let is_forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace();
    let fits = (1..=15).contains(&name.len()) && !matches!(name, "." | "..");
    if fits && !name.contains(is_forbidden) {
        Ok(())
    } else {
        Err(RequestError::Interface(name.chars().take(32).collect()))
    }
}

#[cfg(test)]
mod tests;
