//! Who may come in: the tokens that were issued, and which of them still count.

use crate::validity::Validity;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The service account every token is issued for.
pub const SERVICE_ACCOUNT: (&str, &str) = ("gybe-system", "gybe-node");

/// A bearer token. It shows itself by its number alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The how manieth, from 1.
    pub number: u32,
    text: String,
}

/// Whose request it is, without the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearer {
    /// No token came along.
    Nobody,
    /// One that was issued, by its number.
    Token(u32),
    /// One that was never issued here.
    Stranger,
}

/// All tokens ever issued by one server.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<Vec<Issued>>);

#[derive(Debug)]
struct Issued {
    token: Token,
    window: (SystemTime, SystemTime),
    revoked: bool,
}

impl Tokens {
    /// A new one, which counts beside the older ones.
    pub fn issue(&self, validity: Validity) -> Token {
        let mut all = self.all();
        let number = u32::try_from(all.len()).unwrap_or(u32::MAX).saturating_add(1);
        let window = validity.window();
        let token = Token { number, text: written(number, window) };
        all.push(Issued { token: token.clone(), window, revoked: false });
        token
    }

    /// No request with it is answered any more. A watch that runs goes on, as with a real server.
    pub fn revoke(&self, token: &Token) {
        self.all().iter_mut().filter(|issued| issued.token == *token).for_each(|it| it.revoked = true);
    }

    /// Of all tokens issued so far only these count.
    pub fn only(&self, these: &[&Token]) {
        self.all().iter_mut().for_each(|issued| issued.revoked = !these.contains(&&issued.token));
    }

    /// None of those issued so far counts.
    pub fn revoke_all(&self) {
        self.all().iter_mut().for_each(|issued| issued.revoked = true);
    }

    /// Takes every revocation back: the authenticator was at fault, not the token.
    pub fn believe_all(&self) {
        self.all().iter_mut().for_each(|issued| issued.revoked = false);
    }

    /// Whose it is, and whether it counts now.
    pub(crate) fn known(&self, text: &str) -> (Bearer, bool) {
        let (all, now) = (self.all(), SystemTime::now());
        let Some(issued) = all.iter().find(|issued| issued.token.text == text) else {
            return (Bearer::Stranger, false);
        };
        let counts = !issued.revoked && issued.window.0 <= now && now < issued.window.1;
        (Bearer::Token(issued.token.number), counts)
    }

    fn all(&self) -> MutexGuard<'_, Vec<Issued>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Token {
    /// What stands behind `Authorization: Bearer`.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}", self.number)
    }
}

/// Shaped as a bound service account token is, for whoever looks into it; signed by nobody.
fn written(number: u32, (from, until): (SystemTime, SystemTime)) -> String {
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
