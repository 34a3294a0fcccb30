//! A directory of manifests for one test, removed at its end.

use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

pub(crate) struct Pods(pub(crate) PathBuf);

impl Pods {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gybe-cni-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes the pod's manifest to the path where the plugin looks for it.
    pub(crate) fn add(&self, namespace: &str, name: &str, manifest: &Value) {
        fs::create_dir_all(self.0.join(namespace)).unwrap();
        fs::write(self.0.join(namespace).join(format!("{name}.json")), manifest.to_string()).unwrap();
    }

    /// The value of the key `facts` for this directory.
    pub(crate) fn facts(&self) -> Value {
        json!({ "directory": self.0 })
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A pod as Istio's injector leaves it, with these annotations added.
pub(crate) fn meshed(annotations: &[(&str, &str)]) -> Value {
    let mut pod = json!({
        "metadata": { "annotations": { "sidecar.istio.io/status": "{}" } },
        "spec": { "containers": [{ "name": "app" }, { "name": "istio-proxy", "args": ["proxy", "sidecar"] }] },
    });
    for (name, value) in annotations {
        pod["metadata"]["annotations"][*name] = (*value).into();
    }
    pod
}
