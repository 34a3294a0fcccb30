//! The expiry of a service account's token according to its claims. Only the API server can verify the token.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// A token that expires within this time has not been renewed. The kubelet renews a token after four fifths of its
/// life, so a one-hour token has at least twelve minutes left (kubelet, `requiresRefresh` in token_manager.go).
pub(crate) const RENEWAL_OVERDUE: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validity {
    /// It has no expiry: a token from a Secret, or one that is not a JWT (RFC 7519).
    Unlimited,
    /// It is valid for this time.
    For(Duration),
    /// It expires in this time, and the kubelet has not renewed it.
    EndsSoon(Duration),
    Expired,
}

/// Returns the time of the claim `exp`.
#[must_use]
pub(crate) fn expiry(token: &str) -> Option<SystemTime> {
    let claims = token.trim().split('.').nth(1)?;
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    // A number with or without a fraction (RFC 7519, NumericDate).
    let exp = claims.get("exp")?;
    let seconds = exp.as_u64().map(Duration::from_secs);
    let seconds = seconds.or_else(|| Duration::try_from_secs_f64(exp.as_f64()?).ok())?;
    SystemTime::UNIX_EPOCH.checked_add(seconds)
}

#[must_use]
pub(crate) fn validity(token: &str, now: SystemTime) -> Validity {
    match expiry(token).map(|end| end.duration_since(now)) {
        None => Validity::Unlimited,
        Some(Ok(left)) if left > RENEWAL_OVERDUE => Validity::For(left),
        Some(Ok(left)) => Validity::EndsSoon(left),
        Some(Err(_)) => Validity::Expired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("eyJhbGciOiJSUzI1NiJ9.{}.c2ln\n", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn f02_a_tokens_expiry_is_read_from_its_claims() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (claims, expected) in [
            (r#"{"exp":1003600}"#, Validity::For(Duration::from_secs(3600))),
            (r#"{"exp":1003600.0}"#, Validity::For(Duration::from_secs(3600))),
            (r#"{"exp":1000300}"#, Validity::EndsSoon(Duration::from_secs(300))),
            (r#"{"exp":1000000}"#, Validity::EndsSoon(Duration::ZERO)),
            (r#"{"exp":999999}"#, Validity::Expired),
            (r#"{"exp":"soon"}"#, Validity::Unlimited),
            (r#"{"exp":-1}"#, Validity::Unlimited),
            (r#"{"exp":1e300}"#, Validity::Unlimited),
            (r"{}", Validity::Unlimited),
            ("?", Validity::Unlimited),
        ] {
            assert_eq!(validity(&token(claims), now), expected, "{claims}");
        }
        for odd in ["", "a.b", "service_account_token_string", "..", "a.!.c"] {
            assert_eq!(validity(odd, now), Validity::Unlimited, "{odd}");
        }
    }
}
