//! A node without Gybe, two versions of the programs beside it, and waiting; and what is left at the end.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use gybe_containerd_tests::node::CONFLIST;
use gybe_containerd_tests::{Agent, Chain, Generation, Node, Programs, agent, config};

use crate::state::State;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

const STAGE: &str = env!("CARGO_BIN_EXE_gybe-stage");

/// A version of the image, as the agent sees it.
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

/// A node whose primary has written its conf, and nobody else.
pub(crate) fn node(generation: Generation) -> Node {
    let programs = Programs { stage: Path::new(STAGE), plugins: &[] };
    let thread = thread::current();
    let test = thread.name().unwrap_or("unnamed").replace("::", ".");
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.log"));
    let node = Node::start(programs, generation, &chain(generation), log).unwrap();
    fs::create_dir_all(node.stage().path(agent::SETTINGS)).unwrap();
    for image in [Image::One, Image::Two] {
        furnish(&node, image);
    }
    node
}

pub(crate) fn chain(generation: Generation) -> Chain {
    Chain::of_reference_plugins(generation)
}

/// The shipped programs; another version is other bytes that do the same.
fn furnish(node: &Node, image: Image) {
    let directory = node.stage().path(image.directory());
    fs::create_dir_all(&directory).unwrap();
    for name in ["gybe", "gybe-cni"] {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name);
        let mut bytes =
            fs::read(&built).unwrap_or_else(|why| panic!("{}: {why}; run:  make test-node", built.display()));
        if image == Image::Two {
            bytes.extend_from_slice(b"version two");
        }
        let path = directory.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
}

/// An agent that keeps this version in, and has come to it.
pub(crate) fn install(node: &Node, image: Image) -> Agent {
    let agent = begin(node, image);
    until("the agent's work", || has_come_to(node, image).then_some(()));
    agent
}

/// The same, still at it.
pub(crate) fn begin(node: &Node, image: Image) -> Agent {
    node.begin_keeping(Path::new(image.directory())).unwrap()
}

/// Programs in place, Gybe in the conf, and somebody to ask about pods.
fn has_come_to(node: &Node, image: Image) -> bool {
    let conf = node.stage().path(config::CONF_DIR).join(CONFLIST);
    let state = State::of(&serde_json::from_slice(&fs::read(conf).unwrap()).unwrap());
    let in_place = |name| placed(node, name) == Some(of_image(node, image, name));
    state.gybe
        && ["gybe", "gybe-cni"].into_iter().all(in_place)
        && UnixStream::connect(node.stage().path(agent::SOCKET)).is_ok()
}

/// An operator changes the ConfigMap.
pub(crate) fn set(node: &Node, key: &str, value: &str) {
    fs::write(node.stage().path(agent::SETTINGS).join(key), value).unwrap();
}

/// Everything that came is gone, and nothing is left of it.
pub(crate) fn assert_nothing_is_stuck(node: &Node) {
    assert_eq!(node.cri.list().unwrap(), [""; 0]);
    assert_eq!(node.stage().pod_links().unwrap(), [""; 0]);
}

/// A program on the node, as the runtime finds it.
pub(crate) fn placed(node: &Node, name: &str) -> Option<Vec<u8>> {
    fs::read(node.stage().path(config::BIN_DIR).join(name)).ok()
}

/// The same in an image.
pub(crate) fn of_image(node: &Node, image: Image, name: &str) -> Vec<u8> {
    fs::read(node.stage().path(image.directory()).join(name)).unwrap()
}

/// Asks until it is so. The question takes a while itself; between two of them others get to work.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "{what} did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}
