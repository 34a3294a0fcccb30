//! Out of a node with pods alive: they stay redirected, and each can be deleted.

use std::fs;
use std::path::Path;
use std::time::Instant;

use gybe_containerd_tests::{Generation, Node, Sandbox, config};
use nix::sys::signal::Signal;

use crate::ground::{Image, assert_nothing_is_stuck, chain, install, node, placed, set, until};
use crate::load::{look, meshed};
use crate::primary::Primary;
use crate::state::State;
use crate::views::{assert_always_loadable, loaded, until_loaded};

const ALIVE: usize = 100;
const GENERATION: Generation = Generation::V2;

/// Pods that were there before Gybe left.
struct Alive {
    pods: Vec<Sandbox>,
    made: Vec<String>,
    begun: Instant,
}

impl Alive {
    fn on(node: &Node) -> Alive {
        until_loaded(node, State { nth: 0, gybe: true });
        let pods: Vec<Sandbox> = (0..ALIVE).map(|number| meshed(node, &format!("cart-{number}"))).collect();
        let begun = Instant::now();
        let made = node.cri.run_together(&pods).into_iter().map(Result::unwrap).collect();
        Alive { pods, made, begun }
    }

    /// Gybe has left: the file is the primary's, the next pod is on its own, these are what they were.
    fn assert_they_stay_redirected(&self, node: &Node) {
        let primary = Primary::of(node, chain(GENERATION));
        assert_eq!(
            fs::read_to_string(primary.file()).unwrap(),
            primary.bytes(),
            "byte for byte the primary's"
        );
        until("its going out of force", || (!loaded(&node.cri).gybe).then_some(()));
        let after = meshed(node, "after");
        let id = node.cri.run(&after).unwrap();
        assert!(!look(node, &node.cri, &after, (&id, Instant::now())).is_redirected);
        node.cri.stop(&id).unwrap();
        node.cri.remove(&id).unwrap();
        for (pod, id) in self.pods.iter().zip(&self.made) {
            let started = look(node, &node.cri, pod, (id, self.begun));
            assert!(started.is_redirected && started.by.gybe, "{started:?}");
        }
    }

    fn assert_each_can_be_deleted(&self, node: &Node) {
        assert!(placed(node, "gybe-cni").is_some(), "somebody must answer for them");
        let stopped = node.cri.stop_together(&self.made).into_iter().filter_map(Result::err);
        let stuck: Vec<String> = stopped.map(|why| why.to_string()).collect();
        println!("{ALIVE} pods alive when Gybe left: {} stuck", stuck.len());
        assert_eq!(stuck, [""; 0]);
        self.made.iter().for_each(|id| node.cri.remove(id).unwrap());
        assert_nothing_is_stuck(node);
    }
}

/// `gybe uninstall`, as an operator runs it on the node; what it prints.
fn uninstall(node: &Node) -> String {
    let program = Path::new(Image::One.directory()).join("gybe");
    let directories = ["uninstall", "--conf-dir", config::CONF_DIR, "--bin-dir", config::BIN_DIR];
    node.stage().run(&program, &directories).unwrap()
}

#[test]
fn f29_uninstalled_with_a_hundred_pods_alive_every_one_can_be_deleted() {
    let node = node(GENERATION);
    let agent = install(&node, Image::One);
    let alive = Alive::on(&node);
    agent.end(Signal::SIGTERM).unwrap();
    let said = uninstall(&node);
    assert!(said.contains("no conf file names gybe-cni"), "{said}");
    alive.assert_they_stay_redirected(&node);
    alive.assert_each_can_be_deleted(&node);
    // As if five minutes had passed.
    let touch = ["--date=301 seconds ago", config::CONF_DIR];
    node.stage().run(Path::new("/usr/bin/touch"), &touch).unwrap();
    let said = uninstall(&node);
    assert!(said.contains("finished: nothing of gybe is left"), "{said}");
    assert_eq!((placed(&node, "gybe-cni"), placed(&node, "gybe")), (None, None));
    assert_always_loadable(&node);
}

#[test]
fn f29_told_to_leave_by_its_settings_with_a_hundred_pods_alive_every_one_can_be_deleted() {
    let node = node(GENERATION);
    let _agent = install(&node, Image::One);
    let alive = Alive::on(&node);
    set(&node, "mode", "leave");
    until("leaving", || (!loaded(&node.cri).gybe).then_some(()));
    alive.assert_they_stay_redirected(&node);
    alive.assert_each_can_be_deleted(&node);
    assert_always_loadable(&node);
}
