//! The issued tokens, which of them the server accepts, and periods of validity. Clocks are never set: an invalid
//! token or certificate has a period of validity that is two days off.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Namespace and name of the service account of every token.
pub const SERVICE_ACCOUNT: (&str, &str) = ("gybe-system", "gybe-node");

/// A bearer token. `Debug` prints only its number.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Counts issued tokens from 1.
    pub number: u32,
    text: String,
}

/// The token of a request, without its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearer {
    /// The request has no token.
    Anonymous,
    /// An issued token's number.
    Token(u32),
    /// A token that this server did not issue.
    Unknown,
}

/// All tokens that one server issued.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<Vec<Issued>>);

/// The result of checking a request's token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Authentication {
    pub(crate) bearer: Bearer,
    pub(crate) accepted: bool,
}

#[derive(Debug)]
struct Issued {
    token: Token,
    period: Period,
    revoked: bool,
}

impl Tokens {
    /// Issues another token; older ones stay valid.
    pub fn issue(&self, validity: Validity) -> Token {
        let mut all = self.all();
        let number = u32::try_from(all.len()).unwrap_or(u32::MAX).saturating_add(1);
        let period = validity.period();
        let token = Token { number, text: token_text(number, period) };
        all.push(Issued { token: token.clone(), period, revoked: false });
        token
    }

    /// Refuses every further request with that token. A running watch goes on, as with a real server.
    pub fn revoke(&self, token: &Token) {
        self.all().iter_mut().filter(|issued| issued.token == *token).for_each(|it| it.revoked = true);
    }

    /// Revokes all tokens issued so far except these.
    pub fn accept_only(&self, these: &[&Token]) {
        self.all().iter_mut().for_each(|issued| issued.revoked = !these.contains(&&issued.token));
    }

    /// Revokes all tokens issued so far.
    pub fn revoke_all(&self) {
        self.all().iter_mut().for_each(|issued| issued.revoked = true);
    }

    /// Undoes every revocation, as after a fault of the authenticator.
    pub fn restore_all(&self) {
        self.all().iter_mut().for_each(|issued| issued.revoked = false);
    }

    pub(crate) fn authenticate(&self, text: &str) -> Authentication {
        let (all, now) = (self.all(), SystemTime::now());
        let Some(issued) = all.iter().find(|issued| issued.token.text == text) else {
            return Authentication { bearer: Bearer::Unknown, accepted: false };
        };
        let accepted = !issued.revoked && issued.period.from <= now && now < issued.period.until;
        Authentication { bearer: Bearer::Token(issued.token.number), accepted }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Issued>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Token {
    /// The text behind `Authorization: Bearer`.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}", self.number)
    }
}

/// Returns a text with the form and claims of a bound service account token, without a valid signature.
fn token_text(number: u32, Period { from, until }: Period) -> String {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (namespace, name) = SERVICE_ACCOUNT;
    let part = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
    let header = json!({ "alg": "RS256", "kid": "gybe-api-server" });
    let claims = json!({
        "aud": ["https://kubernetes.default.svc.cluster.local"],
        "iss": "https://kubernetes.default.svc.cluster.local",
        "iat": seconds(from), "nbf": seconds(from), "exp": seconds(until),
        "jti": format!("00000000-0000-4000-8000-{number:012}"),
        "kubernetes.io": { "namespace": namespace, "serviceaccount": { "name": name } },
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
    });
    let signature = number.to_be_bytes().repeat(64);
    let parts = [header.to_string().into_bytes(), claims.to_string().into_bytes(), signature];
    parts.map(|bytes| part(&bytes)).join(".")
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The first and the last moment of validity.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    pub(crate) from: SystemTime,
    pub(crate) until: SystemTime,
}

/// The period of validity of a token or certificate, relative to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday on, for a month.
    Valid,
    /// From two days ahead, for a month: what a client with a slow clock sees.
    NotYetValid,
    /// For a month, until two days ago: not renewed, or what a client with a fast clock sees.
    Expired,
}

impl Validity {
    pub(crate) fn period(self) -> Period {
        let now = SystemTime::now();
        let (from, until) = match self {
            Self::Valid => (now - DAY, now + 30 * DAY),
            Self::NotYetValid => (now + 2 * DAY, now + 32 * DAY),
            Self::Expired => (now - 32 * DAY, now - 2 * DAY),
        };
        Period { from, until }
    }
}
