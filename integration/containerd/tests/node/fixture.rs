//! A node without Gybe, two versions of the image to install, and the state that must hold at the end.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use gybe_containerd_tests::node::CONFLIST;
use gybe_containerd_tests::{Agent, AgentOptions, Conflist, Generation, Node, Programs, agent, containerd};
use gybe_test_support::wait_for_at_most;

use crate::conflist_state::ConflistState;

/// The longest wait for one event: more than any takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

const HOST_INIT: &str = env!("CARGO_BIN_EXE_gybe-host-init");

/// A version of the agent's image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Image {
    One,
    Two,
}

impl Image {
    pub(crate) fn directory(self) -> &'static str {
        match self {
            Image::One => "/run/gybe/image-1",
            Image::Two => "/run/gybe/image-2",
        }
    }
}

/// A node on which only the primary plugin has written a conflist, into which the agent writes its entry.
pub(crate) fn node(generation: Generation) -> Node {
    let programs = Programs { host_init: Path::new(HOST_INIT), plugins: &[], runc: None };
    let thread = thread::current();
    let test = thread.name().unwrap_or("unnamed").replace("::", ".");
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.log"));
    let node = Node::start(programs, generation, &conflist(generation), log).unwrap();
    fs::create_dir_all(node.host().path(agent::SETTINGS)).unwrap();
    set_setting(&node, "shape", "chained");
    for image in [Image::One, Image::Two] {
        write_image(&node, image);
    }
    node
}

pub(crate) fn conflist(generation: Generation) -> Conflist {
    Conflist::reference_plugins(generation)
}

/// Writes the release programs. Those of the second version have other bytes and the same function.
fn write_image(node: &Node, image: Image) {
    for name in ["gybe", "gybe-cni"] {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name);
        let path = format!("{}/{name}", image.directory());
        let installed = node.host().install(&built, &path);
        installed.unwrap_or_else(|error| panic!("{error}; run:  make -C integration node"));
        if image == Image::Two {
            let append = ["-c", "printf 'version two' >>\"$0\"", &path];
            node.host().run(Path::new("sh"), &append).unwrap();
        }
    }
}

/// Starts an agent of this version and waits until it has installed Gybe.
pub(crate) fn install(node: &Node, image: Image) -> Agent {
    let agent = start_installing(node, image);
    wait_for("the installation", || is_installed(node, image).then_some(()));
    agent
}

/// Starts an agent of this version and returns at once.
pub(crate) fn start_installing(node: &Node, image: Image) -> Agent {
    let image = Path::new(image.directory());
    node.start_installing_agent(&AgentOptions { image, wrapper: &[], environment: &[] }).unwrap()
}

/// Reports whether the programs are in place, Gybe is in the conflist, and the facts socket accepts connections.
fn is_installed(node: &Node, image: Image) -> bool {
    let conflist = node.host().path(containerd::CONF_DIR).join(CONFLIST);
    let state = ConflistState::of(&serde_json::from_slice(&fs::read(conflist).unwrap()).unwrap());
    let in_place = |name| installed_program(node, name) == Some(image_program(node, image, name));
    state.has_gybe
        && ["gybe", "gybe-cni"].into_iter().all(in_place)
        && UnixStream::connect(node.host().path(agent::SOCKET)).is_ok()
}

/// Changes a key of the ConfigMap.
pub(crate) fn set_setting(node: &Node, key: &str, value: &str) {
    fs::write(node.host().path(agent::SETTINGS).join(key), value).unwrap();
}

/// Asserts that no sandbox and no link of a pod is left.
pub(crate) fn assert_no_sandbox_is_left(node: &Node) {
    assert_eq!(node.cri.list().unwrap(), [""; 0]);
    assert_eq!(node.host().pod_links().unwrap(), [""; 0]);
}

/// Reads a program in the runtime's directory of plugins.
pub(crate) fn installed_program(node: &Node, name: &str) -> Option<Vec<u8>> {
    fs::read(node.host().path(containerd::BIN_DIR).join(name)).ok()
}

fn image_program(node: &Node, image: Image, name: &str) -> Vec<u8> {
    fs::read(node.host().path(image.directory()).join(name)).unwrap()
}

/// Waits until `probe` returns a value.
pub(crate) fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_for_at_most(PATIENCE, probe).unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
}
