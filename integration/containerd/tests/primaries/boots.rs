//! The node boots with either agent first, while the kubelet requests pods.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gybe_test_support::wait_for_at_most;

use crate::node::{EntryShape, Primary, PrimaryNode, REWRITE};

/// Between the starts of two agents: the kubelet starts one container after the other.
const BETWEEN_AGENTS: Duration = Duration::from_secs(1);
/// Pods that containerd may still start with the conf file that it loaded before.
pub(crate) const BEFORE_RELOAD: usize = 3;

#[derive(Debug, Default)]
struct Counts {
    pods: usize,
    unmeshed: usize,
    /// Number 0 is the new node.
    boots_with_unmeshed: Vec<usize>,
    /// From the start of the first agent until a pod was redirected, of each boot, sorted.
    to_first_meshed: Vec<Duration>,
}

/// `GYBE_BOOTS` boots in each order, the first of them of a new node.
pub(crate) fn in_both_orders(primary: &Primary, shape: EntryShape) {
    let boots = std::env::var("GYBE_BOOTS").map_or(2, |number| number.parse().unwrap());
    for primary_first in [true, false] {
        let mut node = PrimaryNode::start(primary, shape);
        let mut counts = Counts::default();
        for number in 0..boots {
            if number > 0 {
                node = node.reboot();
            }
            let (redirected, first_meshed) = boot(&node, number, primary_first);
            let unmeshed = redirected.iter().filter(|redirected| !**redirected).count();
            counts.pods += redirected.len();
            counts.unmeshed += unmeshed;
            counts.boots_with_unmeshed.extend((unmeshed > 0).then_some(number));
            counts.to_first_meshed.push(first_meshed);
        }
        let order = if primary_first { "the primary first" } else { "Gybe first" };
        counts.to_first_meshed.sort();
        println!("{}, {}, {order}: {boots} boots: {counts:.1?}", primary.name, shape.name());
        // A drop-in outlives what the primary writes: only a new node has none.
        if shape != EntryShape::Chained {
            assert!(counts.boots_with_unmeshed.iter().all(|number| *number == 0), "{counts:?}");
        }
    }
}

/// Lets the kubelet end, also when an agent does not start.
struct CompleteOnDrop<'a>(&'a AtomicBool);

impl Drop for CompleteOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Reports of each pod in its order whether it is redirected, and when the first one was.
fn boot(node: &PrimaryNode, number: usize, primary_first: bool) -> (Vec<bool>, Duration) {
    let complete = AtomicBool::new(false);
    let before = node.version();
    let start = Instant::now();
    thread::scope(|scope| {
        let kubelet = scope.spawn(|| {
            let cri = node.node.connect().unwrap();
            let mut redirected = Vec::new();
            let (mut since_complete, mut first_meshed) = (0, None);
            // A pod that was requested before both agents ran ends no boot.
            while since_complete == 0 || redirected.last() != Some(&true) {
                let was_complete = complete.load(Ordering::Acquire);
                let (id, is) = node.run_pod(&format!("boot-{number}-{}", redirected.len()), &cri);
                first_meshed = first_meshed.or(is.then(|| start.elapsed()));
                cri.delete(&id).unwrap();
                redirected.push(is);
                since_complete += usize::from(was_complete);
                assert!(since_complete <= BEFORE_RELOAD, "both agents run: {redirected:?}");
            }
            (redirected, first_meshed.unwrap())
        });
        let start_agent = |primary: bool| if primary { node.start_primary() } else { node.start_gybe() };
        let end = CompleteOnDrop(&complete);
        start_agent(primary_first);
        thread::sleep(BETWEEN_AGENTS);
        start_agent(!primary_first);
        // Cilium's agent does not write a file that is as it would write it.
        let _unchanged = wait_for_at_most(REWRITE, || (node.version() != before).then_some(()));
        node.wait_for_entry();
        drop(end);
        kubelet.join().unwrap()
    })
}
