//! The outcome of a connection, and its one-line text form in the recorded flow vectors.

use nix::errno::Errno;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// The outcome of a connection, as its client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionOutcome {
    Replied(Reply),
    Timeout,
    Refused,
    /// The client's own kernel did not start it.
    Failed(Errno),
}

/// What a listener reports about itself and the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The listener's name, such as `envoy:15001` or `ext-peer`.
    pub by: String,
    /// The client's original destination, if conntrack knows it.
    pub original: Option<SocketAddr>,
    /// The address that the connection comes from.
    pub source: IpAddr,
}

impl fmt::Display for ConnectionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replied(reply) => reply.fmt(f),
            Self::Timeout => f.write_str("timeout"),
            Self::Refused => f.write_str("refused"),
            Self::Failed(errno) => write!(f, "ERR [Errno {}] {}", *errno as i32, errno.desc()),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.by)?;
        if let Some(original) = self.original {
            write!(f, " orig={original}")?;
        }
        write!(f, " src={}", self.source)
    }
}

/// The text is no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither a reply (NAME orig=ADDRESS:PORT src=ADDRESS) nor timeout, refused or ERR [Errno N]"
)]
pub struct ParseOutcomeError(String);

impl FromStr for ConnectionOutcome {
    type Err = ParseOutcomeError;

    fn from_str(text: &str) -> Result<Self, ParseOutcomeError> {
        match text {
            "timeout" => return Ok(Self::Timeout),
            "refused" => return Ok(Self::Refused),
            _ => {}
        }
        let failed = text.strip_prefix("ERR [Errno ").and_then(|rest| rest.split_once(']'));
        if let Some((number, _)) = failed {
            return number
                .parse()
                .map(|raw| Self::Failed(Errno::from_raw(raw)))
                .map_err(|_| ParseOutcomeError(text.into()));
        }
        reply(text).map(Self::Replied).ok_or_else(|| ParseOutcomeError(text.into()))
    }
}

fn reply(text: &str) -> Option<Reply> {
    let mut words = text.split(' ');
    let by = words.next().filter(|name| !name.is_empty())?.to_owned();
    let (mut original, mut source) = (None, None);
    for word in words {
        match word.split_once('=')? {
            ("orig", address) => original = Some(address.parse().ok()?),
            ("src", address) => source = Some(address.parse().ok()?),
            _ => return None,
        }
    }
    Some(Reply { by, original, source: source? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_parsed_from_its_text() {
        for text in [
            "envoy:15001 orig=10.1.2.3:80 src=10.244.0.10",
            "envoy:15006 orig=[fd00:10::10]:8080 src=fd00:10::1",
            "app:8080 orig=[fd00:10::10]:8080 src=::6",
            "ext-peer src=fd00:77::2",
            "timeout",
            "refused",
            "ERR [Errno 99] Cannot assign requested address",
        ] {
            assert_eq!(text.parse::<ConnectionOutcome>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_text_that_is_no_outcome_is_refused() {
        for text in
            ["", "envoy", "envoy src=", "envoy orig=10.0.0.1 src=10.0.0.1", " src=::1", "ERR [Errno x]"]
        {
            assert!(text.parse::<ConnectionOutcome>().is_err(), "{text:?}");
        }
    }
}
