//! OCI archives of images, among them the sandboxes' pause image.
//!
//! Image layout: <https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md>

use std::fmt::Write;
use std::io;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::containerd::PAUSE_IMAGE;

/// The static pause program, which the build script compiles.
const PAUSE_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));

/// The image of the sandboxes.
pub(crate) const PAUSE: Image<'static> =
    Image { name: PAUSE_IMAGE, files: &[("pause", PAUSE_PROGRAM)], entrypoint: "/pause", user: "" };

/// The image of a pod's containers: each argument of its program is a port that answers a connection.
pub const WORKLOAD: Image<'static> = Image {
    name: "localhost/gybe-workload:1",
    files: &[("workload", include_bytes!(concat!(env!("OUT_DIR"), "/workload")))],
    entrypoint: "/workload",
    user: "",
};

/// An image of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Image<'i> {
    /// The name in a pod's specification.
    pub name: &'i str,
    /// Executable files by their paths below the root.
    pub files: &'i [(&'i str, &'i [u8])],
    /// The absolute path of the program; PATH is its directory.
    pub entrypoint: &'i str,
    /// The program's user and group, `UID:GID`, where the pod's specification has none; empty is root.
    pub user: &'i str,
}

impl Image<'_> {
    /// Returns a tar archive for `ctr images import`.
    pub fn archive(&self) -> io::Result<Vec<u8>> {
        let layer = tar_of(self.files)?;
        let directory = Path::new(self.entrypoint).parent().unwrap_or(Path::new("/")).display();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": [self.entrypoint],
                "Env": [format!("PATH={directory}")],
                "User": self.user,
            },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        });
        let manifest = manifest.to_string().into_bytes();
        let entry = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest(&manifest),
            "size": manifest.len(),
            "annotations": { "io.containerd.image.name": self.name },
        });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();
        tar_of(&[
            ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#),
            ("index.json", index.as_bytes()),
            (&blob_path(&manifest), &manifest),
            (&blob_path(&config), &config),
            (&blob_path(&layer), &layer),
        ])
    }
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

fn blob_path(content: &[u8]) -> String {
    format!("blobs/{}", digest(content).replace(':', "/"))
}

fn digest(content: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(content) {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn tar_of(files: &[(&str, &[u8])]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_cksum();
        archive.append_data(&mut header, name, *content)?;
    }
    archive.into_inner()
}

/// The machine's architecture as Go and the image specification name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
