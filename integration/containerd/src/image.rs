//! An image as an OCI archive, made of files alone; not how it is imported.
//!
//! Image layout: <https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md>

use std::fmt::Write;
use std::io;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// An image of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Image<'i> {
    /// As the kubelet calls it.
    pub name: &'i str,
    /// Programs, by their paths below the root.
    pub files: &'i [(&'i str, &'i [u8])],
    /// What is run when nobody says otherwise.
    pub entrypoint: &'i str,
}

impl Image<'_> {
    /// The tar archive `ctr images import` takes.
    pub fn archive(&self) -> io::Result<Vec<u8>> {
        let layer = tar_of(self.files)?;
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": { "Entrypoint": [self.entrypoint] },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob("application/vnd.oci.image.config.v1+json", &config),
            "layers": [blob("application/vnd.oci.image.layer.v1.tar", &layer)],
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
            (&place(&manifest), &manifest),
            (&place(&config), &config),
            (&place(&layer), &layer),
        ])
    }
}

fn blob(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

fn place(content: &[u8]) -> String {
    format!("blobs/{}", digest(content).replace(':', "/"))
}

fn digest(content: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(content) {
        // Writing to a String has no way to fail.
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

/// The name Go and the image specification have for this machine.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
