//! A runtime's call as a value: the verb, where the container lives, and the network's entry.
//!
//! Pure: takes the environment, and the bytes of stdin from whoever reads them. What a verb does with the
//! call is in that verb's file; which versions a verb answers is in `version`.

use crate::network::{Network, NetworkError};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

/// Every variable that is read by anybody.
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
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// The variable's value; an empty one counts as missing, as in the reference library.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// The same as text. Bytes that are no text become U+FFFD, which no check below lets pass.
    pub fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| value.to_string_lossy().into_owned())
    }
}

impl<K: Into<OsString>, V: Into<OsString>> FromIterator<(K, V)> for Environment {
    /// Keeps what belongs to the protocol; a runtime's other variables are none of our business.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        let named = variables.into_iter().filter_map(|(name, value)| {
            let name = name.into().into_string().ok()?;
            name.starts_with("CNI_").then(|| (name, value.into()))
        });
        Self(named.collect())
    }
}

/// What the runtime wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Set a container up.
    Add,
    /// Look whether it is still as set up.
    Check,
    /// Take a container down.
    Del,
    /// Forget containers that are gone.
    Gc,
    /// Say whether ADD would work.
    Status,
    /// Say which versions are spoken.
    Version,
}

impl Verb {
    /// The verb of that name; names are upper case.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Add, Self::Check, Self::Del, Self::Gc, Self::Status, Self::Version]
            .into_iter()
            .find(|verb| verb.as_str() == name)
    }

    /// Its name in `CNI_COMMAND`.
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

    /// The variables this verb cannot do without.
    fn required(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            // A removed sandbox has no namespace any more: runtimes send CNI_NETNS="".
            Self::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            Self::Gc | Self::Status => &["CNI_PATH"],
            Self::Version => &[],
        }
    }

    /// Is it about one container?
    fn names_a_container(self) -> bool {
        matches!(self, Self::Add | Self::Check | Self::Del)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// May the container's namespace be the one the plugin itself runs in?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnNamespace {
    /// No: that would be the host's.
    Refused,
    /// `CNI_NETNS_OVERRIDE` says so.
    Allowed,
}

/// A call that has everything its verb needs.
#[derive(Debug, Clone)]
pub struct Request {
    /// What is wanted.
    pub verb: Verb,
    /// Path of the container's namespace; ADD and CHECK always have one.
    pub netns: Option<PathBuf>,
    /// Whether that may be the plugin's own namespace.
    pub own_namespace: OwnNamespace,
    /// `CNI_ARGS`, not yet taken apart.
    pub args: String,
    /// The network's entry, from stdin.
    pub network: Network,
}

/// Why a call is not one we can answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// All that is missing, at once.
    #[error("required env variables [{}] missing", .0.join(","))]
    Missing(Vec<&'static str>),
    /// No verb of ours.
    #[error("unknown CNI_COMMAND: {0:?}")]
    UnknownVerb(String),
    /// Not a name that could be part of a path.
    #[error("CNI_CONTAINERID {0:?} must be a letter or digit followed by letters, digits, '_', '.' or '-'")]
    ContainerId(String),
    /// Not a name the kernel would take.
    #[error("CNI_IFNAME {0:?} must be 1 to 15 bytes, not '.' or '..', without '/', ':' or white space")]
    Interface(String),
    /// Stdin is not a network's entry.
    #[error("stdin does not hold a network configuration")]
    Network(#[from] NetworkError),
}

/// Looks whether every variable that `verb` needs is there; names all that are missing.
fn require(verb: Verb, env: &Environment) -> Result<(), RequestError> {
    let missing: Vec<_> = verb.required().iter().copied().filter(|name| env.get(name).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(RequestError::Missing(missing)) }
}

impl Request {
    /// Reads the call from its environment and stdin.
    ///
    /// The order of the checks is the reference library's, so that a call with two faults is
    /// answered with the same code: variables, stdin, then the container's names. A call that lacks a
    /// variable is refused whatever stdin says, so nobody waits for stdin.
    ///
    /// # Errors
    /// When a variable is missing or has a value that nobody should pass on, or stdin cannot be read or
    /// is no entry.
    pub fn parse<B: AsRef<[u8]>, E: From<RequestError>>(
        command: &str,
        env: &Environment,
        stdin: impl FnOnce() -> Result<B, E>,
    ) -> Result<Self, E> {
        let verb = Verb::parse(command);
        if let Some(verb) = verb {
            require(verb, env)?;
        }
        Ok(Self::of(command, verb, env, stdin()?.as_ref())?)
    }

    fn of(command: &str, verb: Option<Verb>, env: &Environment, stdin: &[u8]) -> Result<Self, RequestError> {
        let network = Network::parse(stdin)?;
        if verb.is_none_or(Verb::names_a_container) {
            check_container_id(&env.text("CNI_CONTAINERID").unwrap_or_default())?;
            check_interface(&env.text("CNI_IFNAME").unwrap_or_default())?;
        }
        Ok(Self {
            verb: verb.ok_or_else(|| RequestError::UnknownVerb(command.chars().take(32).collect()))?,
            netns: env.get("CNI_NETNS").map(PathBuf::from),
            own_namespace: own_namespace(env),
            args: env.text("CNI_ARGS").unwrap_or_default(),
            network,
        })
    }
}

fn own_namespace(env: &Environment) -> OwnNamespace {
    match env.text("CNI_NETNS_OVERRIDE") {
        Some(word) if word == "1" || word.eq_ignore_ascii_case("true") => OwnNamespace::Allowed,
        _ => OwnNamespace::Refused,
    }
}

fn check_container_id(id: &str) -> Result<(), RequestError> {
    if is_plain_name(id) { Ok(()) } else { Err(RequestError::ContainerId(id.chars().take(64).collect())) }
}

fn check_interface(name: &str) -> Result<(), RequestError> {
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace();
    let fits = (1..=15).contains(&name.len()) && !matches!(name, "." | "..");
    if fits && !name.contains(odd) {
        Ok(())
    } else {
        Err(RequestError::Interface(name.chars().take(32).collect()))
    }
}

/// A letter or digit, then letters, digits, `_`, `.` or `-`: the protocol's rule for names.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|head| head.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

#[cfg(test)]
mod tests;
