//! Uninstalling with running pods: they stay redirected, and each can be deleted.

use std::fs;
use std::path::Path;
use std::time::Instant;

use gybe_containerd_tests::{Generation, Node, Sandbox, containerd};
use nix::sys::signal::Signal;

use crate::conflist_state::{ConflistState, assert_every_load_succeeded, loaded_state, wait_until_loaded};
use crate::fixture::{
    Image, assert_no_sandbox_is_left, conflist, install, installed_program, node, set_setting, wait_for,
};
use crate::load::{inspect_pod, meshed_pod};
use crate::primary::PrimaryPlugin;

const PODS: usize = 100;
const GENERATION: Generation = Generation::V2;

/// Pods that were started before Gybe was uninstalled.
struct RunningPods {
    pods: Vec<Sandbox>,
    ids: Vec<String>,
    started: Instant,
}

impl RunningPods {
    fn start(node: &Node) -> RunningPods {
        wait_until_loaded(node, ConflistState { revision: 0, has_gybe: true });
        let pods: Vec<Sandbox> =
            (0..PODS).map(|number| meshed_pod(node, &format!("cart-{number}"))).collect();
        let started = Instant::now();
        let ids = node.cri.run_all(&pods).unwrap();
        RunningPods { pods, ids, started }
    }

    /// Asserts that the conflist is the primary plugin's again, that the next pod is not redirected, and that these
    /// pods still are.
    fn assert_still_redirected(&self, node: &Node) {
        let primary = PrimaryPlugin::new(node, conflist(GENERATION));
        let file = fs::read_to_string(primary.file()).unwrap();
        assert_eq!(file, primary.text(), "byte for byte the primary plugin's");
        wait_for("loading the conflist without Gybe", || (!loaded_state(&node.cri).has_gybe).then_some(()));
        let next = meshed_pod(node, "after");
        let id = node.cri.run(&next).unwrap();
        assert!(!inspect_pod(node, &node.cri, &next, &id, Instant::now()).is_redirected);
        node.cri.delete(&id).unwrap();
        for (pod, id) in self.pods.iter().zip(&self.ids) {
            let started = inspect_pod(node, &node.cri, pod, id, self.started);
            assert!(started.is_redirected && started.conflist.has_gybe, "{started:?}");
        }
    }

    fn assert_each_can_be_deleted(&self, node: &Node) {
        assert!(installed_program(node, "gybe-cni").is_some(), "their DEL needs the plugin");
        let errors = node.cri.stop_concurrently(&self.ids).into_iter().filter_map(Result::err);
        let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
        println!("{PODS} pods ran when Gybe was uninstalled: {} cannot be deleted", errors.len());
        assert_eq!(errors, [""; 0]);
        self.ids.iter().for_each(|id| node.cri.remove(id).unwrap());
        assert_no_sandbox_is_left(node);
    }
}

/// Runs `gybe uninstall` on the node and returns its output.
fn uninstall(node: &Node) -> String {
    let program = Path::new(Image::One.directory()).join("gybe");
    let arguments = ["uninstall", "--conf-dir", containerd::CONF_DIR, "--bin-dir", containerd::BIN_DIR];
    node.host().run(&program, &arguments).unwrap()
}

#[test]
fn f29_after_uninstall_a_hundred_running_pods_stay_redirected_and_can_be_deleted() {
    let node = node(GENERATION);
    let agent = install(&node, Image::One);
    let pods = RunningPods::start(&node);
    agent.stop(Signal::SIGTERM).unwrap();
    let output = uninstall(&node);
    assert!(output.contains("no conf file names gybe-cni"), "{output}");
    pods.assert_still_redirected(&node);
    pods.assert_each_can_be_deleted(&node);
    // The grace period of five minutes is over.
    let touch = ["--date=301 seconds ago", containerd::CONF_DIR];
    node.host().run(Path::new("touch"), &touch).unwrap();
    let output = uninstall(&node);
    assert!(output.contains("finished: nothing of gybe is left"), "{output}");
    assert_eq!((installed_program(&node, "gybe-cni"), installed_program(&node, "gybe")), (None, None));
    assert_every_load_succeeded(&node);
}

#[test]
fn f29_after_mode_leave_a_hundred_running_pods_stay_redirected_and_can_be_deleted() {
    let node = node(GENERATION);
    let _agent = install(&node, Image::One);
    let pods = RunningPods::start(&node);
    set_setting(&node, "mode", "leave");
    wait_for("leaving the conflist", || (!loaded_state(&node.cri).has_gybe).then_some(()));
    pods.assert_still_redirected(&node);
    pods.assert_each_can_be_deleted(&node);
    assert_every_load_succeeded(&node);
}
