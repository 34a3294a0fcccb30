//! What real API servers answered, recorded: the bodies and headers of ours are made from these.

use hyper::header::{HeaderName, HeaderValue};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Kubernetes 1.20.2: the oldest that is spoken to. Whatever it was not asked, 1.36.2 was.
const OLDER: &str = include_str!("../../vectors/runtime/kube-api/1.20.2.json");
const NEWER: &str = include_str!("../../vectors/runtime/kube-api/1.36.2.json");

/// Made for each answer anew, by who sends it.
const OF_THE_MOMENT: [&str; 4] = ["audit-id", "date", "transfer-encoding", "content-length"];

/// One recorded answer.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// Without those of the moment.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Value,
}

static ALL: LazyLock<BTreeMap<String, Recorded>> = LazyLock::new(|| {
    let mut all = BTreeMap::new();
    for text in [NEWER, OLDER] {
        let parts: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
        for (name, head) in
            parts.iter().filter_map(|(name, head)| Some((name.strip_suffix(".headers")?, head)))
        {
            // A watch is one object per line; its answer's body is made line by line.
            let first = parts.get(&format!("{name}.json")).map(String::as_str).unwrap_or_default();
            let body = serde_json::Deserializer::from_str(first).into_iter().next();
            let body = body.and_then(Result::ok).unwrap_or_default();
            all.insert(name.to_owned(), Recorded { headers: headers(head), body });
        }
    }
    all
});

/// The answer recorded under that name: of the older server, where it gave one.
pub(crate) fn recorded(name: &str) -> Option<&'static Recorded> {
    ALL.get(name)
}

fn headers(head: &str) -> Vec<(HeaderName, HeaderValue)> {
    let pairs = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let pairs = pairs.filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
    pairs.filter(|(name, _): &(HeaderName, _)| !OF_THE_MOMENT.contains(&name.as_str())).collect()
}
