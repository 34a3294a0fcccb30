//! A node's directories, and an image with two builds of the real plugin.

use gybe_installer::host::conflist::entry::Entry;
use gybe_installer::host::desired::{
    Confirmed, DesiredState, Install, Placement, PlacementOrder, Program, Shape, TakeOver, Trial,
};
use gybe_installer::host::observe::{FileName, Hash, NodeDirectories};
use gybe_integration::programs::{path_of_ours, run};
use gybe_test_support::TestDir;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A primary's conf file.
pub(crate) const LIST: &str =
    "{\"name\":\"net\",\"cniVersion\":\"1.0.0\",\"plugins\":[{\"type\":\"calico\"}]}\n";

/// A simulated node's directory.
pub(crate) struct Node(pub(crate) TestDir);

impl Node {
    pub(crate) fn new(test: &str) -> Self {
        let root = TestDir::new(test).with_subdirectories(&["net.d", "bin", "results", "image"]);
        root.write("net.d/10-a.conflist", LIST);
        let node = Self(root);
        // Stripped, as in the release: a quarter of the bytes to copy.
        let plugin = path_of_ours("gybe-cni").unwrap();
        let stripped = node.image("1");
        let words = ["--strip-all", "-o", stripped.to_str().unwrap(), plugin.to_str().unwrap()];
        assert_eq!(run("strip", &words, "").unwrap().code, Some(0), "strip comes with the C linker");
        // Bytes behind an ELF file's last section have no effect.
        let mut other = fs::read(&stripped).unwrap();
        other.push(b'\n');
        fs::copy(&stripped, node.image("2")).unwrap();
        fs::write(node.image("2"), other).unwrap();
        node
    }

    pub(crate) fn image(&self, build: &str) -> PathBuf {
        self.0.join("image").join(build)
    }

    pub(crate) fn plugin(&self) -> PathBuf {
        self.0.join("bin/gybe-cni")
    }

    pub(crate) fn directories(&self) -> NodeDirectories {
        let at = |folder: &str| self.0.join(folder);
        NodeDirectories { conf: at("net.d"), programs: at("bin"), results: at("results") }
    }

    /// Returns the desired state with this build of the plugin in the chained shape.
    pub(crate) fn desired(&self, build: &str) -> DesiredState {
        let source = self.image(build);
        let hash = Hash::of_all(fs::File::open(&source).unwrap()).unwrap();
        DesiredState::Installed(install(Program {
            name: FileName::new("gybe-cni").unwrap(),
            source,
            hash,
            trial: Trial::CniVersion,
            place: Placement::Always,
            need: PlacementOrder::BeforeEntry,
        }))
    }

    pub(crate) fn conf(&self) -> String {
        fs::read_to_string(self.0.join("net.d/10-a.conflist")).unwrap()
    }
}

fn install(program: Program) -> Install {
    let entry = json!({ "type": "gybe-cni", "capabilities": { "io.kubernetes.cri.pod-annotations": true } });
    Install {
        shape: Shape::Chained { pinned: None },
        pinned_by: "conf_name",
        entry: Entry::from_value(&entry).unwrap(),
        programs: vec![program],
        retired: Vec::new(),
        take_over: TakeOver::Now,
        mode: 0o600,
        confirmed: Confirmed::Yes,
    }
}

const ENVIRONMENT: [(&str, &str); 6] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/nonexistent"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin"),
    ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0"),
];

/// Makes the ADD of an unmeshed pod with the program at `plugin`.
pub(crate) fn add(plugin: &Path) {
    let call = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "gybe-cni",
        "runtimeConfig": { "io.kubernetes.cri.pod-annotations": {} },
        "prevResult": { "cniVersion": "1.0.0", "ips": [], "dns": {} },
    });
    #[expect(clippy::disallowed_methods, reason = "as a runtime does, and twenty at a time")]
    let mut program = Command::new(plugin);
    let pipes = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = pipes.env_clear().envs(ENVIRONMENT).spawn().unwrap_or_else(|why| panic!("{why}"));
    child.stdin.take().unwrap().write_all(call.to_string().as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!((ran.status.code(), &result), (Some(0), &call["prevResult"]), "{ran:?}");
}
