//! A directory of manifests for one test, removed at its end.

use gybe_test_support::TestDir;
use serde_json::{Value, json};

pub(crate) struct Pods(pub(crate) TestDir);

impl Pods {
    pub(crate) fn new(test: &str) -> Self {
        Self(TestDir::new(&format!("cni-{test}")))
    }

    /// Writes the pod's manifest to the path where the plugin looks for it.
    pub(crate) fn add(&self, namespace: &str, name: &str, manifest: &Value) {
        self.0.write(format!("{namespace}/{name}.json"), manifest.to_string());
    }

    /// The value of the key `facts` for this directory.
    pub(crate) fn facts(&self) -> Value {
        json!({ "directory": self.0.path() })
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
