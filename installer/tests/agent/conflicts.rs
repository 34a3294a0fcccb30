//! Conflicts: another program undoes Gybe's repairs; the agent detects it, limits its rate, and reports the likely
//! owner.

use crate::node::{FILE, Node, PRIMARY};
use gybe_test_support::{Agent, wait_until, with_slowdown};
use serde_json::Value;
use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

/// A part of the message about every conflict.
const CONFLICT: &str = "again and again";

fn is_in_conflict(agent: &Agent, what: &str) -> bool {
    agent.metric(&format!("gybe_conflict{{what=\"{what}\"}}")) == 1.0
}

/// Undoes each repair until the agent reports a conflict; returns the number of rewrites.
fn provoke_conflict(agent: &Agent, what: &str, undo: impl Fn(), is_repaired: impl Fn() -> bool) -> u32 {
    let mut undone = 0;
    while !is_in_conflict(agent, what) {
        assert!(undone < 20, "no conflict after {undone} rewrites");
        undo();
        undone += 1;
        let counted =
            || agent.metric(&format!("gybe_foreign_rewrites_total{{what=\"{what}\"}}")) >= f64::from(undone);
        wait_until("the next pass", || counted() && (is_repaired() || is_in_conflict(agent, what)));
    }
    undone
}

fn message_contains(line: &Value, words: &str) -> bool {
    ["msg", "why"].iter().any(|key| line[key].as_str().is_some_and(|text| text.contains(words)))
}

/// Returns how often a line with `words` was logged, once the node was changed `changes` times.
fn times_logged(agent: &mut Agent, words: &str, changes: usize) -> usize {
    let changed = Cell::new(0);
    agent.wait_for_line(|line| {
        changed.set(changed.get() + usize::from(message_contains(line, "changed the node")));
        changed.get() == changes
    });
    agent.log().iter().filter(|line| message_contains(line, words)).count()
}

#[test]
fn f05_a_conflict_over_the_chain_is_reported_with_its_likely_owner_and_writes_are_limited() {
    let node = Node::new("conflict");
    let cilium = PRIMARY.replace("calico", "cilium-cni");
    node.put_conf(FILE, &cilium);
    let mut agent = node.start_agent();
    let installed = Instant::now();
    let is_in = || node.entry(FILE).is_some();
    assert_eq!(provoke_conflict(&agent, "conf", || node.put_conf(FILE, &cilium), is_in), 6);
    let sentence = agent.wait_for_message("Cilium");
    assert!(sentence["why"].as_str().unwrap().contains("cni.exclusive=false"), "{sentence}");
    wait_until("a note", || {
        let text = agent.get("/readyz").1;
        text.contains("note:") && text.contains("Cilium")
    });
    wait_until("an entry again", is_in);
    let was_unready = Cell::new(false);
    for _ in 0..18 {
        node.put_conf(FILE, &cilium);
        wait_until("an entry again", || {
            let is_unready = !agent.is_ready();
            let is_in = is_in();
            was_unready.set(was_unready.get() || (is_unready && !is_in));
            is_in
        });
    }
    // 25 writes in all: ten at once, and 15 at two a second.
    assert!(installed.elapsed() > Duration::from_secs(4), "{:?}", installed.elapsed());
    assert!(was_unready.get(), "ready without an entry");
    assert_eq!(agent.metric("gybe_conflicts_total{what=\"conf\"}"), 1.0);
    assert!(!is_in_conflict(&agent, "programs"));
    wait_until("a count", || agent.metric("gybe_repairs_total{what=\"conf\"}") == 24.0);
    wait_until("readiness", || agent.is_ready());
    assert!(agent.get("/readyz").1.contains("Cilium"), "also while the node is in its desired state");
    assert_eq!(times_logged(&mut agent, CONFLICT, 25), 1, "{:#?}", agent.log());
    assert_eq!(times_logged(&mut agent, "changed the node", 25), 25);
}

#[test]
fn f05_a_conflict_over_programs_is_reported_with_its_likely_owner_and_does_not_delay_the_chain() {
    let node = Node::new("conflict-programs");
    let (theirs, new) = (node.root.join("another"), node.root.join("bin/.theirs"));
    node.write_image("another");
    fs::copy(node.root.join("image/gybe-cni"), &theirs).unwrap();
    node.write_image("1");
    node.put_conf(FILE, PRIMARY);
    let mut agent = node.start_agent();
    wait_until("readiness", || agent.is_ready());
    let theirs = || {
        fs::copy(&theirs, &new).unwrap();
        fs::rename(&new, node.program_path("gybe-cni")).unwrap();
    };
    let is_ours = || node.installed_build("gybe-cni") == "gybe-cni 1";
    assert_eq!(provoke_conflict(&agent, "programs", theirs, is_ours), 6);
    let sentence = agent.wait_for_message("the program gybe-cni is replaced again and again");
    let sentence = sentence["why"].as_str().unwrap();
    assert!(
        sentence.contains("an agent of another version of Gybe") && sentence.contains("remove one"),
        "{sentence}"
    );
    wait_until("a note", || {
        let (status, text) = agent.get("/readyz");
        status == 503 && text.contains("note: the program gybe-cni")
    });
    // There is no conflict over the conf file, which every pod needs.
    node.put_conf(FILE, &PRIMARY.replace("k8s-pod-network", "another"));
    wait_until("a repaired chain", || node.entry(FILE).is_some());
    assert!(!is_ours(), "the program waits");
    assert!(!is_in_conflict(&agent, "conf"));
    wait_until("our program", is_ours);
    let repaired = Instant::now();
    theirs();
    wait_until("our program again", is_ours);
    assert!(repaired.elapsed() > Duration::from_secs(3), "{:?}", repaired.elapsed());
    // The first pass, seven programs, and the chain.
    assert_eq!(times_logged(&mut agent, CONFLICT, 9), 1, "{:#?}", agent.log());
}

/// The time in which the chain was without our entry, as shares of the whole.
#[derive(Debug, Default)]
struct Unchained {
    all: Duration,
    /// While `/readyz` was ready.
    ready: Duration,
    /// How often `/readyz` was ready without the entry although the agent had counted two rewrites before this one.
    known: u32,
}

/// The effect of a program that rewrites the conf file periodically.
struct Rewritten {
    /// Parts of the whole time, in percent: without our entry, and ready without it.
    unchained: [f64; 2],
    known: u32,
    /// The median of the repair times.
    median_repair: Duration,
}

fn median<T: PartialOrd + Copy>(mut all: Vec<T>) -> T {
    all.sort_by(|one, other| one.partial_cmp(other).unwrap());
    all[all.len() / 2]
}

/// Rewrites the conf file with this period, as another agent would, and measures the effect.
fn rewritten_every(period: Duration, lasting: Duration, (node, agent): (&Node, &Agent)) -> Rewritten {
    let (start, mut next, mut unchained) = (Instant::now(), Duration::ZERO, Unchained::default());
    let (mut before, mut rewritten, mut repairs, mut is_known) = (start, None, Vec::new(), false);
    let is_out = || node.entry(FILE).is_none();
    while start.elapsed() < lasting {
        // Before the next rewrite: on a busy machine each turn of this loop rewrites the file.
        if !is_out() {
            repairs.extend(rewritten.take().map(|at: Instant| at.elapsed()));
        }
        if start.elapsed() >= next {
            is_known = agent.metric("gybe_foreign_rewrites_total{what=\"conf\"}") >= 2.0;
            node.put_conf(FILE, PRIMARY);
            rewritten = rewritten.or(Some(Instant::now()));
            next += period;
        }
        let is_unchained = is_out();
        let is_ready = is_unchained && agent.is_ready() && is_out();
        let now = Instant::now();
        unchained.all += if is_unchained { now - before } else { Duration::ZERO };
        unchained.ready += if is_ready { now - before } else { Duration::ZERO };
        unchained.known += u32::from(is_ready && is_known);
        before = now;
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!repairs.is_empty(), "no repair was seen");
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / start.elapsed().as_secs_f64();
    Rewritten {
        unchained: [unchained.all, unchained.ready].map(percent),
        known: unchained.known,
        median_repair: median(repairs),
    }
}

#[test]
fn f05_the_unchained_time_under_a_rewriter_is_short_and_not_ready_from_the_third_rewrite_on() {
    for (period, lasting) in [(700, 20), (1000, 20), (50, 10)] {
        let node = Node::new("rewriter");
        node.put_conf(FILE, PRIMARY);
        let agent = node.start_agent();
        wait_until("readiness", || agent.is_ready());
        let (every, whole) = (Duration::from_millis(period), Duration::from_secs(lasting));
        let (found, slowdown) = with_slowdown(|| rewritten_every(every, whole, (&node, &agent)));
        let [unchained, ready] = found.unchained;
        println!(
            "rewritten every {every:?} for {whole:?}: unchained {unchained:.1} % of the time, ready then {ready:.1} %, \
             median of the repairs {:?}, slowdown {slowdown:.2}",
            found.median_repair
        );
        assert_eq!(found.known, 0, "ready without the entry although a rewriter is known: {every:?}");
        // 5 % of a second. The median, because single repairs are late on a machine with other work, and as many times
        // as long as other work slows a thread. Of the fastest rewriter, repairs wait for up to half a second.
        assert!(
            period == 50 || found.median_repair <= Duration::from_millis(50).mul_f64(slowdown),
            "{:?}, slowdown {slowdown:.2}",
            found.median_repair
        );
        wait_until("readiness", || agent.is_ready() && node.entry(FILE).is_some());
    }
}
