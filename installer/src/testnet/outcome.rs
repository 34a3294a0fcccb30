//! What became of a connection, and its one-line text. Who asked, and how, is not known here.

use nix::errno::Errno;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// What became of a connection, as its caller sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionOutcome {
    /// Somebody answered.
    Answered(Reply),
    /// Nobody did, in the time there was.
    Timeout,
    /// It was turned down.
    Refused,
    /// The caller's own kernel would not even start it.
    Failed(Errno),
}

/// What the one who answered says of himself and of the connection he sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// His name, `envoy:15001` or just `ext-peer`.
    pub by: String,
    /// Where the caller wanted to go, when conntrack knows.
    pub original: Option<SocketAddr>,
    /// Where the connection comes from.
    pub source: IpAddr,
}

impl fmt::Display for ConnectionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(answer) => answer.fmt(f),
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

/// A text that tells no fate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither an answer (NAME orig=ADDRESS:PORT src=ADDRESS) nor timeout, refused or ERR [Errno N]"
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
        answer(text).map(Self::Answered).ok_or_else(|| ParseOutcomeError(text.into()))
    }
}

fn answer(text: &str) -> Option<Reply> {
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
    fn a_fate_reads_back_from_its_text() {
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
    fn what_tells_no_fate_is_refused() {
        for text in
            ["", "envoy", "envoy src=", "envoy orig=10.0.0.1 src=10.0.0.1", " src=::1", "ERR [Errno x]"]
        {
            assert!(text.parse::<ConnectionOutcome>().is_err(), "{text:?}");
        }
    }
}
