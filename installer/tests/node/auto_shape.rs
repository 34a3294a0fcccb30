//! `shape: auto`: where the entry is on each kind of node, that the answer is stable, and what moves it.

use crate::test_node::{TestNode, install, installed, name, program, uninstalled};
use crate::{LIST, SINGLE};
use gybe_installer::host::auto_shape::{AutoReason, auto_shape};
use gybe_installer::host::desired::{DesiredState, Install, PutBack, Shape, ShapeSetting};
use gybe_installer::host::observe::runtimes::{DropIns, ReportWait, Runtime, Runtimes};
use gybe_installer::host::observe::{Directory, ObserveScope};
use gybe_installer::host::pass::{PassHistory, pass};

const FILE: &str = "10-calico.conflist";
const DROP_IN: &str = "k8s-pod-network/zz-gybe-cni.conf";
const CHAINED: Shape = Shape::Chained { pinned: None };

fn runtimes(drop_ins: Option<DropIns>) -> Runtimes {
    Runtimes::of([(Runtime::Containerd, drop_ins)])
}

fn current() -> Runtimes {
    runtimes(Some(DropIns::Loaded))
}

fn older() -> Runtimes {
    runtimes(Some(DropIns::Ignored))
}

fn awaited() -> Runtimes {
    Runtimes { waits: ReportWait::Entry, ..Runtimes::default() }
}

/// Returns the decision, and asserts that the changes that follow from it do not change it.
fn decided(node: &TestNode, install: &Install, runtimes: &Runtimes) -> (Shape, AutoReason) {
    let decide = || {
        let mut observed = node.observe(&DesiredState::Installed(install.clone()).interest());
        observed.runtimes.clone_from(runtimes);
        let decided = auto_shape(install, &observed);
        (decided.shape.clone(), decided.reason)
    };
    let before = decide();
    let pass = node.pass_with_runtimes(&DesiredState::Installed(install.clone()), runtimes.clone());
    assert_eq!(pass.left.auto.as_ref().map(|auto| &auto.reason), Some(&decide().1));
    assert!(pass.left.changes.is_empty(), "{:?}", pass.left.changes);
    assert_eq!(decide().0, before.0, "{:?}", decide().1);
    before
}

#[test]
fn the_entry_is_a_drop_in_only_where_the_runtime_certainly_reads_it() {
    let both = [(Runtime::Containerd, Some(DropIns::Loaded)), (Runtime::CriO, Some(DropIns::Ignored))];
    let inlined = LIST.replacen('{', "{\n  \"loadOnlyInlinedPlugins\": true,", 1);
    let nameless = LIST.replace("k8s-pod-network", "a/b");
    for (file, text, runtimes, shape, reason) in [
        (FILE, LIST, current(), Shape::DropIn, AutoReason::DropIn),
        (
            FILE,
            LIST,
            Runtimes::of([(Runtime::CriO, Some(DropIns::Loaded))]),
            Shape::DropIn,
            AutoReason::DropIn,
        ),
        (FILE, LIST, older(), CHAINED, AutoReason::OlderRuntime),
        (FILE, LIST, runtimes(None), CHAINED, AutoReason::UnknownRuntime),
        (FILE, LIST, Runtimes::default(), CHAINED, AutoReason::UnknownRuntime),
        (FILE, LIST, Runtimes::of(both), CHAINED, AutoReason::OlderRuntime),
        (FILE, LIST, awaited(), CHAINED, AutoReason::Awaited),
        ("10-a.conf", SINGLE, current(), CHAINED, AutoReason::NoDropIns(name("10-a.conf"))),
        ("10-a.json", SINGLE, current(), CHAINED, AutoReason::NoDropIns(name("10-a.json"))),
        (FILE, inlined.as_str(), current(), CHAINED, AutoReason::NoDropIns(name(FILE))),
        (FILE, nameless.as_str(), current(), CHAINED, AutoReason::NoDropIns(name(FILE))),
        ("10-a.note", "", current(), Shape::DropIn, AutoReason::NoPrimary),
    ] {
        let node = TestNode::with(&[(file, text)]);
        let install = install(&node.root, ShapeSetting::Auto, "1");
        assert_eq!(decided(&node, &install, &runtimes), (shape, reason), "{text}: {runtimes:?}");
        node.settle(&uninstalled(&node.root, PutBack::Nothing));
        assert_eq!(node.files().into_iter().collect::<Vec<_>>(), [(file.to_owned(), text.into())]);
    }
}

#[test]
fn multus_reads_its_own_directory_and_may_read_no_drop_ins() {
    let node = TestNode::with(&[(FILE, LIST)]);
    let mut observed = node.observe(&ObserveScope::default());
    observed.conf.is_of_multus = true;
    observed.runtimes = current();
    let decided = auto_shape(&install(&node.root, ShapeSetting::Auto, "1"), &observed);
    assert_eq!((decided.shape, decided.reason), (&CHAINED, AutoReason::OfMultus));
}

/// Uninstalling restores the single file, so the list that was made of it does not lose its entry to a drop-in.
#[test]
fn a_list_that_was_a_single_file_stays_chained_until_its_owner_writes_a_list() {
    let node = TestNode::with(&[("10-a.conf", SINGLE)]);
    let install = install(&node.root, ShapeSetting::Auto, "1");
    decided(&node, &install, &current());
    assert_eq!(decided(&node, &install, &current()), (CHAINED, AutoReason::WasSingle(name("10-a.conflist"))));
    node.put("10-a.conflist", LIST);
    assert_eq!(decided(&node, &install, &current()), (Shape::DropIn, AutoReason::DropIn));
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), ["10-a.conflist", DROP_IN]);
}

/// A drop-in would leave istio-cni's entry in the primary's file. After the take-over only the chain can put it back.
#[test]
fn istio_cnis_entry_is_replaced_in_the_chain_and_a_drop_in_follows_when_its_program_has_gone() {
    let with_istio = LIST.replace(
        "\"type\": \"portmap\"\n    }",
        "\"type\": \"portmap\"\n    },\n    {\n      \"type\": \"istio-cni\"\n    }",
    );
    let node = TestNode::with(&[(FILE, &with_istio)]);
    node.root.write_programs("bin", ["istio-cni"]);
    let mut install = install(&node.root, ShapeSetting::Auto, "1");
    assert_eq!(decided(&node, &install, &current()), (CHAINED, AutoReason::HasIstio(name(FILE))));
    let kept = (CHAINED, AutoReason::HadIstio(name(FILE)));
    assert_eq!(decided(&node, &install, &current()), kept);
    // Also after the primary has written its file again.
    node.put(FILE, LIST);
    assert_eq!(decided(&node, &install, &current()), kept);
    node.settle(&uninstalled(&node.root, PutBack::Istio));
    assert!(node.text(FILE).contains("istio-cni"), "{}", node.text(FILE));

    // The program that answers the DEL of istio-cni's sandboxes is Gybe's own, and the original shows that it is needed.
    decided(&node, &install, &current());
    std::fs::remove_file(node.root.join("bin/istio-cni")).unwrap();
    install.programs.push(program(&node.root, "istio-cni", "1"));
    assert_eq!(decided(&node, &install, &current()), (Shape::DropIn, AutoReason::DropIn));
    assert_eq!(decided(&node, &install, &current()), (Shape::DropIn, AutoReason::DropIn));
    let original = format!("{FILE}.gybe-original");
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), [FILE, original.as_str(), DROP_IN]);
    assert_eq!(node.text(FILE), LIST);
    node.settle(&uninstalled(&node.root, PutBack::Nothing));
    assert_eq!(node.files().into_keys().collect::<Vec<_>>(), [FILE]);
}

/// The shape changes when istio-cni's program is removed.
#[test]
fn an_entry_that_moves_is_no_foreign_rewrite() {
    let node = TestNode::with(&[(FILE, LIST)]);
    node.root.write_programs("bin", ["istio-cni"]);
    node.put(FILE, LIST.replace("portmap", "istio-cni"));
    let (directories, auto) = (node.directories(), installed(&node.root, ShapeSetting::Auto));
    let mut history = PassHistory::default();
    history.set_runtimes(current());
    let mut has_changed = || !pass(&directories, &auto, &mut history).unwrap().plan.changes.is_empty();
    assert_eq!([has_changed(), has_changed()], [true, false]);
    std::fs::remove_file(node.root.join("bin/istio-cni")).unwrap();
    assert_eq!([has_changed(), has_changed()], [true, false]);
    assert!(node.files().contains_key(DROP_IN));
    assert_eq!(history.rewrite_counts(Directory::Conf).rewrites, 0);
}

#[test]
fn a_newer_and_an_older_runtime_move_the_entry_and_the_new_one_is_written_first() {
    let node = TestNode::with(&[(FILE, LIST)]);
    let auto = installed(&node.root, ShapeSetting::Auto);
    let changes = |runtimes: Runtimes| {
        let pass = node.pass_with_runtimes(&auto, runtimes);
        assert!(pass.left.judgement.is_redirected(), "{:?}", pass.left.judgement.reasons);
        (
            pass.plan.changes.iter().map(ToString::to_string).collect::<Vec<_>>(),
            pass.plan.judgement.is_redirected(),
        )
    };
    changes(older());
    let (write_chain, write_drop_in) = (format!("write {FILE}"), format!("write {DROP_IN}"));
    let remove_drop_in = format!("remove {DROP_IN}");
    assert_eq!(changes(current()), (vec![write_drop_in, write_chain.clone()], true));
    // A pod that starts before the older runtime's turn is not redirected, and the node says so until the entry is chained.
    assert_eq!(changes(older()), (vec![write_chain, remove_drop_in], false));
    assert_eq!(changes(older()), (Vec::new(), true));
}

/// After a boot the probe reports after the agent has started; the primary may write its file meanwhile.
#[test]
fn a_drop_in_stays_while_the_runtime_is_not_reported_yet_and_the_node_is_not_ready() {
    let node = TestNode::with(&[(FILE, LIST)]);
    node.settle(&installed(&node.root, ShapeSetting::Auto));
    let before = node.files();
    let mut install = install(&node.root, ShapeSetting::Auto, "1");
    // Without the confirmation nothing is written before the report, whatever the shape.
    install.confirmed = gybe_installer::host::desired::Confirmed::Yes;
    let pass = node.pass_with_runtimes(&DesiredState::Installed(install), awaited());
    assert_eq!(pass.left.auto.unwrap().reason, AutoReason::Awaited);
    assert!(!pass.left.judgement.is_redirected());
    assert_eq!(node.files(), before);
    // A crash between the two writes of a move leaves both: the chain, which every runtime reads, stays.
    let drop_in = node.text(DROP_IN);
    node.settle(&installed(&node.root, CHAINED));
    let chained = node.files();
    node.put(DROP_IN, drop_in);
    node.pass_with_runtimes(&installed(&node.root, ShapeSetting::Auto), awaited());
    assert_eq!(node.files(), chained);
}
