//! Somebody undoes what we do again and again: recognised, slowed, and told with their likely name.

use crate::agent::{Agent, eventually};
use crate::node::{Node, PRIMARY};
use serde_json::Value;
use std::cell::Cell;
use std::fs;
use std::time::{Duration, Instant};

const FILE: &str = "10-calico.conflist";
/// What is said of every fight.
const FIGHT: &str = "again and again";

fn is_fight(agent: &Agent, what: &str) -> bool {
    agent.number(&format!("gybe_fight{{what=\"{what}\"}}")) == 1.0
}

/// Undoes what is healed until the agent calls it a fight; how often that took.
fn provokes(agent: &Agent, what: &str, undo: impl Fn(), is_healed: impl Fn() -> bool) -> u32 {
    let mut undone = 0;
    while !is_fight(agent, what) {
        assert!(undone < 20, "no fight after {undone} times");
        undo();
        undone += 1;
        eventually("the next turn", || is_healed() || is_fight(agent, what));
    }
    undone
}

fn has(line: &Value, words: &str) -> bool {
    line["msg"].as_str().is_some_and(|message| message.contains(words))
}

/// How often it was told, when the node has been changed so often.
fn told(agent: &mut Agent, words: &str, changes: usize) -> usize {
    let seen = Cell::new(0);
    agent.hears(|line| {
        seen.set(seen.get() + usize::from(has(line, "changed the node")));
        seen.get() == changes
    });
    agent.all().iter().filter(|line| has(line, words)).count()
}

#[test]
fn f05_a_fight_is_recognised_slowed_and_reported_with_the_rival() {
    let node = Node::new("fight");
    let cilium = PRIMARY.replace("calico", "cilium-cni");
    node.puts(FILE, &cilium);
    let mut agent = node.agent();
    let is_in = || node.entry(FILE).is_some();
    assert_eq!(provokes(&agent, "conf", || node.puts(FILE, &cilium), is_in), 6);
    let sentence = agent.tells("Cilium");
    assert!(sentence["msg"].as_str().unwrap().contains("cni.exclusive=false"), "{sentence}");
    eventually("a word", || {
        let (status, text) = agent.get("/readyz");
        status == 503 && text.contains("note:") && text.contains("Cilium")
    });
    // Now we write every five seconds, and not for each of theirs.
    eventually("an entry again", is_in);
    let healed = Instant::now();
    node.puts(FILE, &cilium);
    eventually("another", is_in);
    assert!(healed.elapsed() > Duration::from_secs(3), "{:?}", healed.elapsed());
    assert_eq!(agent.number("gybe_fights_total{what=\"conf\"}"), 1.0);
    assert!(!is_fight(&agent, "programs"));
    eventually("a count", || agent.number("gybe_healed_total{what=\"conf\"}") == 7.0);
    assert!(agent.get("/readyz").1.contains("Cilium"), "also while all is as wanted");
    // The first pass, and seven heals.
    assert_eq!(told(&mut agent, FIGHT, 8), 1, "{:#?}", agent.all());
    assert_eq!(told(&mut agent, "changed the node", 8), 8);
}

#[test]
fn f05_a_fight_over_programs_is_told_with_the_rival_and_the_chain_is_healed_at_once_all_the_same() {
    let node = Node::new("fight-programs");
    let (theirs, new) = (node.root.join("another"), node.root.join("bin/.theirs"));
    node.brings("another");
    fs::copy(node.root.join("image/gybe-cni"), &theirs).unwrap();
    node.brings("1");
    node.puts(FILE, PRIMARY);
    let mut agent = node.agent();
    eventually("peace", || agent.is_ready());
    let theirs = || {
        fs::copy(&theirs, &new).unwrap();
        fs::rename(&new, node.program("gybe-cni")).unwrap();
    };
    let is_ours = || node.build("gybe-cni") == "gybe-cni 1";
    assert_eq!(provokes(&agent, "programs", theirs, is_ours), 6);
    let sentence = agent.tells("the program gybe-cni is replaced again and again");
    let sentence = sentence["msg"].as_str().unwrap();
    assert!(sentence.contains("another agent of Gybe") && sentence.contains("remove one"), "{sentence}");
    eventually("a word", || {
        let (status, text) = agent.get("/readyz");
        status == 503 && text.contains("note: the program gybe-cni")
    });
    // The chain is nobody's fight, and every pod needs it.
    node.puts(FILE, &PRIMARY.replace("calico", "calico-2"));
    eventually("a healed chain", || node.entry(FILE).is_some());
    assert!(!is_ours(), "the program waits");
    assert!(!is_fight(&agent, "conf"));
    eventually("our program", is_ours);
    let healed = Instant::now();
    theirs();
    eventually("our program again", is_ours);
    assert!(healed.elapsed() > Duration::from_secs(3), "{:?}", healed.elapsed());
    // The first pass, seven programs, and the chain.
    assert_eq!(told(&mut agent, FIGHT, 9), 1, "{:#?}", agent.all());
}
