//! Removes what may be a secret from a text or a JSON value. Removes too much rather than too little. Pure.

use serde_json::{Map, Value};

const REMOVED: &str = "(removed)";

/// Parts of the names of secrets, in lower case. A name that ends with `key` is one, too.
const SECRET_NAMES: [&str; 17] = [
    "token",
    "secret",
    "passw",
    "passphrase",
    "pwd",
    "psk",
    "jwt",
    "cookie",
    "credential",
    "auth",
    "private",
    "access",
    "cert",
    "apikey",
    "keydata",
    "key-",
    "key_",
];
/// What a value of `Authorization` begins with, before a space.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// A word of mixed letters and digits that is at least this long may be a secret.
const LONG: usize = 32;
/// The beginning of base64 of `{"`: a part of a JSON web token.
const JSON_IN_BASE64: &str = "eyJ";
/// What a log of the kubelet's format has before a line of the container.
const LOG_PREFIXES: [&str; 2] = [" F ", " P "];

/// Removes values with the name of a secret, items after `--password` and the like, and words that look like a secret.
pub(super) fn redacted_value(value: Value) -> Value {
    match value {
        Value::String(text) => redacted_text(&text).into(),
        Value::Array(items) => {
            let mut is_secret = false;
            let redacted = items.into_iter().map(|item| {
                let next_is_secret = item.as_str().is_some_and(is_secret_argument);
                match std::mem::replace(&mut is_secret, next_is_secret) {
                    true => REMOVED.into(),
                    false => redacted_value(item),
                }
            });
            redacted.collect()
        }
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

/// Removes words that look like a secret, values after the name of one (`token=…`, `password: "…"`, `--token …`,
/// `Bearer …`), and what stands before `@`, as in a URL. An object at the end of a line is redacted as a value.
pub(super) fn redacted_text(text: &str) -> String {
    text.split_inclusive('\n').map(redacted_line).collect()
}

fn redacted_line(line: &str) -> String {
    let (text, end) = line.split_at(line.trim_end().len());
    let object = text.find('{').map(|start| text.split_at(start));
    let object = object.filter(|(before, _)| !before.trim_end().ends_with([':', '=']));
    let object = object.and_then(|(before, object)| Some((before, serde_json::from_str(object).ok()?)));
    let redacted = match object {
        Some((before, object)) => format!("{}{}", redacted_words(before), redacted_value(object)),
        None => redacted_words(text),
    };
    redacted + end
}

fn redacted_words(line: &str) -> String {
    let mut redacted = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_of_word) {
        let (between, from_word) = rest.split_at(start);
        let (word, after) = from_word.split_at(from_word.find(|c| !is_of_word(c)).unwrap_or(from_word.len()));
        redacted.push_str(between);
        let is_first = redacted.trim_start().trim_start_matches("- ").is_empty()
            || LOG_PREFIXES.iter().any(|prefix| redacted.ends_with(prefix));
        redacted.push_str(if looks_secret(word) { REMOVED } else { word });
        rest = after;
        if let Some((separator, behind)) = around_value(word, after, is_first) {
            redacted.push_str(separator);
            redacted.push_str(REMOVED);
            rest = behind;
        }
    }
    without_users(&(redacted + rest))
}

/// Returns what stands before and behind the value of the secret that `word` names.
fn around_value<'a>(word: &str, after: &'a str, is_first: bool) -> Option<(&'a str, &'a str)> {
    let is_scheme = SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
    let unquoted = after.trim_start_matches(['\\', '"', '\'']);
    // Words with a slash are names below a domain; or paths, or, within a line, a pod before a colon.
    let (domain, name) = word.rsplit_once('/').unwrap_or(("", word));
    let is_pod = !domain.is_empty() && !is_first && unquoted.starts_with(": ");
    let is_name = is_secret_name(name) && !word.starts_with('/') && !is_pod;
    let value = match unquoted.trim_start().strip_prefix([':', '=']) {
        Some(value) if is_name => value.trim_start_matches([':', '=', '>', ' ', '\t']),
        None if is_scheme || is_secret_argument(word) => {
            let value = unquoted.trim_start_matches([',', ' ', '\t']);
            (value.len() < unquoted.len()).then_some(value)?
        }
        _ => return None,
    };
    let (separator, _) = after.split_at(after.len() - value.len());
    let bare = value.trim_start_matches('\\');
    let (quote, quoted) = match bare.strip_prefix(['"', '\'']) {
        Some(quoted) => value.split_at(value.len() - quoted.len()),
        None => ("", value),
    };
    let end = if !quote.is_empty() {
        let mut ends = quoted.match_indices(quote).map(|(end, _)| end);
        ends.find(|end| !quoted.split_at(*end).0.ends_with('\\'))
    } else if is_first && separator.ends_with([' ', '\t']) {
        None
    } else {
        let is_scheme = |word: &&str| SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
        let first = value.split(|c| !is_of_word(c)).find(|word| !word.is_empty()).filter(is_scheme);
        let behind =
            first.and_then(|scheme| value.split_once(scheme)).map_or(value, |(_, rest)| rest.trim_start());
        let from = value.len() - behind.len();
        behind.find(char::is_whitespace).map(|end| from + end)
    };
    let (separator, _) = after.split_at(separator.len() + quote.len());
    let (_, behind) = quoted.split_at(end.unwrap_or(quoted.len()));
    (!quoted.is_empty()).then_some((separator, behind))
}

/// Removes the user and the password before `@`.
fn without_users(line: &str) -> String {
    let redacted = |run: &str| match run.rsplit_once('@') {
        Some((before, host)) => {
            let (scheme, _) = before.split_at(before.find("://").map_or(0, |at| at + "://".len()));
            format!("{scheme}{REMOVED}@{host}")
        }
        None => run.to_owned(),
    };
    line.split_inclusive(char::is_whitespace).map(redacted).collect()
}

/// The alphabets of base64, of names, and of paths.
fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '_' | '-' | '.')
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_pass = || name.rsplit(['_', '-', '.']).next() == Some("pass");
    name.ends_with("key") || is_pass() || SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// Reports whether the argument's value is a secret and follows it.
fn is_secret_argument(word: &str) -> bool {
    word.starts_with('-') && !word.contains(['=', '/']) && is_secret_name(word)
}

/// Names of Kubernetes, uids and digests have no upper-case letters.
fn looks_secret(word: &str) -> bool {
    let is_mixed = |part: &str| {
        let has = |is: fn(&u8) -> bool| part.as_bytes().iter().any(is);
        has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit)
    };
    word.split('.').any(|part| part.starts_with(JSON_IN_BASE64) || (part.len() >= LONG && is_mixed(part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_that_may_be_secrets_are_removed_and_what_a_maintainer_needs_stays() {
        for (text, expected) in [
            ("Authorization: Bearer abc", "Authorization: (removed)"),
            ("sent Bearer a.b-c/d== to x", "sent Bearer (removed) to x"),
            ("token=hunter2 next", "token=(removed) next"),
            (r#"{"password": "hunter2", "mtu": 1500}"#, r#"{"mtu":1500,"password":"(removed)"}"#),
            ("eyJhbGciOi.eyJpc3Mi.c2ln", "(removed)"),
            ("MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "(removed)"),
            ("x.go:469] Authorization: Basic YWRt", "x.go:469] Authorization: (removed)"),
            ("> Authorization: Bearer abc123def x", "> Authorization: (removed) x"),
            (r#"curl -H "Authorization: Basic YWRt" x"#, r#"curl -H "Authorization: (removed) x"#),
            ("> Authorization: Bearer  abc123def x", "> Authorization: (removed) x"),
            ("token=[ Bearer abc ] x", "token=(removed) ] x"),
            ("map[Authorization:[Basic YWRt] A:[b]]", "map[Authorization:(removed) A:[b]]"),
            ("basic: x Authorization: Basic", "basic: x Authorization: (removed)"),
            // Punctuation, quotes and spaces.
            ("password=p@ss,w0rd!;x&y next", "password=(removed) next"),
            ("password:p@ss next", "password:(removed) next"),
            ("passwd = 'correct horse' next", "passwd = '(removed)' next"),
            (r#"passphrase="say \"hi\" twice" next"#, r#"passphrase="(removed)" next"#),
            (r#"msg="{\"pwd\":\"correct horse\"}" next"#, r#"msg="{\"pwd\":\"(removed)\"}" next"#),
            ("password: correct horse\nmtu: 1500\n", "password: (removed)\nmtu: 1500\n"),
            ("- psk: 'correct horse", "- psk: '(removed)"),
            (
                "2026-01-02T03:04:05Z stderr F Cookie: a=b; c=d",
                "2026-01-02T03:04:05Z stderr F Cookie: (removed)",
            ),
            // URLs.
            ("https://user:hunter2@host/x", "https://(removed)@host/x"),
            ("GET https://user:p!a$s:w@rd@host:2379/x failed", "GET https://(removed)@host:2379/x failed"),
            ("a=https://u:p@h1,https://u:q@h2 next", "a=https://(removed)@h2 next"),
            ("postgres:p!ss@db/x", "(removed)@db/x"),
            ("https://host/x?mtu=1&api_key=a,b next", "https://host/x?mtu=1&api_key=(removed) next"),
            // Arguments.
            (
                "calico --token X --password=Y --mtu 1500",
                "calico --token (removed) --password=(removed) --mtu 1500",
            ),
            (r#"["--etcd-key", "a b", "--mtu", "1500"]"#, r#"["--etcd-key", "(removed)", "--mtu", "1500"]"#),
            // Names.
            (
                "auth=a pwd=b psk=c jwt=d cookie=e",
                "auth=(removed) pwd=(removed) psk=(removed) jwt=(removed) cookie=(removed)",
            ),
            (
                "key=a etcd_key=b signingKey=c keyData=d",
                "key=(removed) etcd_key=(removed) signingKey=(removed) keyData=(removed)",
            ),
            (r#"F {"keyData":["a"],"level":"info"}"#, r#"F {"keyData":"(removed)","level":"info"}"#),
            ("DB_PASS=a pass=b bypass=c", "DB_PASS=(removed) pass=(removed) bypass=c"),
            ("example.com/password=hunter2", "example.com/password=(removed)"),
            ("example.com/api-token: hunter2", "example.com/api-token: (removed)"),
            // What stays.
            ("/etc/cni/net.d/10-calico.conflist", "/etc/cni/net.d/10-calico.conflist"),
            ("pod 863b91d4-4b68-4efa-917f-4b560e3e86aa", "pod 863b91d4-4b68-4efa-917f-4b560e3e86aa"),
            (&"7c".repeat(32), &"7c".repeat(32)),
            ("GYBE-ADD-011: no answer", "GYBE-ADD-011: no answer"),
            ("pod mesh/cert-manager-0: not redirected", "pod mesh/cert-manager-0: not redirected"),
            ("/var/run/secrets/kubernetes.io/token: denied", "/var/run/secrets/kubernetes.io/token: denied"),
            ("unknown configuration keys: mtuu", "unknown configuration keys: mtuu"),
        ] {
            assert_eq!(redacted_text(text), expected, "{text}");
        }
    }

    #[test]
    fn values_with_the_name_of_a_secret_are_removed_whatever_they_contain() {
        let conf = json!({
            "type": "calico", "mtu": 1500, "k8s_auth_token": "x", "policy": { "clientSecret": ["x"], "hostLocal": true },
            "apiKey": 4711, "hasToken": false, "env": [{ "name": "A", "value": "eyJhbGciOi" }], "key": "x",
            "args": ["--token", "a b", "--mtu", "1500", "--psk=a", "-v"], "log": "x\npassword: a b\ny", "basicAuth": "x",
        });
        let expected = json!({
            "type": "calico", "mtu": 1500, "k8s_auth_token": REMOVED, "policy": { "clientSecret": REMOVED, "hostLocal": true },
            "apiKey": REMOVED, "hasToken": false, "env": [{ "name": "A", "value": REMOVED }], "key": REMOVED,
            "args": ["--token", REMOVED, "--mtu", "1500", "--psk=(removed)", "-v"], "log": "x\npassword: (removed)\ny",
            "basicAuth": REMOVED,
        });
        assert_eq!(redacted_value(conf), expected);
    }
}
