//! What the injected pods of this node say in their annotations, as the runtime handed them over when it
//! made their sandboxes: libcni keeps that beside each result.

use gybe_plugin::annotations::unknown;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// So many results are read; a kubelet allows 110 pods unless it is told otherwise.
const MOST: usize = 1024;
/// The configuration of a network, a result and the pod's annotations.
const LARGEST: u64 = 4 << 20;

const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
const STATUS: &str = "sidecar.istio.io/status";

/// What libcni keeps of an ADD (`cachedInfo` in libcni/api.go).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    cni_args: Option<Vec<(String, String)>>,
    capability_args: Option<Map<String, Value>>,
}

/// Each injected pod with annotations that nobody knows, and a sentence for each of these.
pub(super) fn doubtful(results: &Path) -> Vec<(String, Vec<String>)> {
    let files = fs::read_dir(results).into_iter().flatten().flatten().take(MOST);
    let mut found: Vec<_> = files.filter_map(|file| read(&file.path())).collect();
    found.sort();
    found
}

fn read(path: &Path) -> Option<(String, Vec<String>)> {
    // A link or a pipe is not libcni's.
    let is_file = path.symlink_metadata().ok()?.is_file();
    let mut bytes = Vec::new();
    File::open(path).ok().filter(|_| is_file)?.take(LARGEST).read_to_end(&mut bytes).ok()?;
    let cached: Cached = serde_json::from_slice(&bytes).ok()?;
    let handed = cached.capability_args?;
    let annotations = handed.get(ANNOTATIONS)?.as_object()?;
    let doubts = unknown(annotations.keys().map(String::as_str));
    if doubts.is_empty() || !annotations.contains_key(STATUS) {
        return None;
    }
    let args = cached.cni_args.unwrap_or_default();
    let of = |name: &str| args.iter().find(|(key, _)| key == name).map_or("?", |(_, value)| value.as_str());
    Some((format!("{}/{}", of("K8S_POD_NAMESPACE"), of("K8S_POD_NAME")), doubts))
}
