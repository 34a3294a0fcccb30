//! Removes what may be a secret from a text or a JSON value. Removes too much rather than too little. Pure.

use serde_json::{Map, Value};

const REMOVED: &str = "(removed)";

/// Parts of the names of secrets, in lower case.
const SECRET_NAMES: [&str; 13] = [
    "token",
    "secret",
    "passw",
    "passphrase",
    "credential",
    "authorization",
    "private",
    "apikey",
    "api-key",
    "api_key",
    "key-data",
    "access",
    "cert",
];
/// A word of mixed letters and digits that is at least this long may be a secret.
const LONG: usize = 32;
/// The beginning of base64 of `{"`: a part of a JSON web token.
const JSON_IN_BASE64: &str = "eyJ";

/// Removes values with the name of a secret, and words that look like one.
pub(super) fn redacted_value(value: Value) -> Value {
    match value {
        Value::String(text) => redacted_text(&text).into(),
        Value::Array(items) => items.into_iter().map(redacted_value).collect(),
        Value::Object(members) => {
            Value::Object(members.into_iter().map(redacted_member).collect::<Map<_, _>>())
        }
        other => other,
    }
}

fn redacted_member((name, value): (String, Value)) -> (String, Value) {
    let value = match value {
        Value::Null | Value::Bool(_) => value,
        Value::Number(_) if !is_secret_name(&name) => value,
        _ if is_secret_name(&name) => REMOVED.into(),
        other => redacted_value(other),
    };
    (redacted_text(&name), value)
}

/// Removes words that look like a secret, words after the name of one (`token=…`, `"password": "…"`, `Bearer …`), and
/// what stands before `@` in a URL.
pub(super) fn redacted_text(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let (mut rest, mut is_value_of_secret) = (text, false);
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len()));
        let (between, next) = after.split_at(after.find(is_of_word).unwrap_or(after.len()));
        let is_secret = is_value_of_secret || looks_secret(word) || between.starts_with('@');
        redacted.push_str(if is_secret && !word.is_empty() { REMOVED } else { word });
        redacted.push_str(between);
        let is_scheme = ["bearer", "basic"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
        let assigns = between.contains([':', '=']) && !between.contains('\n');
        // The parts of a token are joined with dots.
        let continues = is_secret && between == ".";
        is_value_of_secret =
            continues || (is_secret_name(word) && assigns) || (is_scheme && !between.contains('\n'));
        rest = next;
    }
    redacted
}

/// The alphabets of base64 and of names.
fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '_' | '-')
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Names of Kubernetes, uids and digests have no upper-case letters.
fn looks_secret(word: &str) -> bool {
    let has = |is: fn(&u8) -> bool| word.as_bytes().iter().any(is);
    let is_mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit);
    word.starts_with(JSON_IN_BASE64) || (word.len() >= LONG && is_mixed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_that_may_be_secrets_are_removed_and_what_a_maintainer_needs_stays() {
        for (text, expected) in [
            ("Authorization: Bearer abc", "Authorization: (removed) (removed)"),
            ("token=hunter2 next", "token=(removed) next"),
            (r#"{"password": "hunter2", "mtu": 1500}"#, r#"{"password": "(removed)", "mtu": 1500}"#),
            ("https://user:hunter2@host/x", "https://user:(removed)@host/x"),
            ("eyJhbGciOi.eyJpc3Mi.c2ln", "(removed).(removed).(removed)"),
            ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "(removed)"),
            ("/etc/cni/net.d/10-calico.conflist", "/etc/cni/net.d/10-calico.conflist"),
            ("pod 863b91d4-4b68-4efa-917f-4b560e3e86aa", "pod 863b91d4-4b68-4efa-917f-4b560e3e86aa"),
            (&"7c".repeat(32), &"7c".repeat(32)),
            ("GYBE-ADD-011: no answer", "GYBE-ADD-011: no answer"),
        ] {
            assert_eq!(redacted_text(text), expected, "{text}");
        }
    }

    #[test]
    fn values_with_the_name_of_a_secret_are_removed_whatever_they_contain() {
        let conf = json!({
            "type": "calico", "mtu": 1500, "k8s_auth_token": "x", "policy": { "clientSecret": ["x"], "hostLocal": true },
            "apiKey": 4711, "hasToken": false, "env": [{ "name": "A", "value": "eyJhbGciOi" }],
        });
        let expected = json!({
            "type": "calico", "mtu": 1500, "k8s_auth_token": REMOVED, "policy": { "clientSecret": REMOVED, "hostLocal": true },
            "apiKey": REMOVED, "hasToken": false, "env": [{ "name": "A", "value": REMOVED }],
        });
        assert_eq!(redacted_value(conf), expected);
    }
}
