//! All rules of a namespace: entries of the lists of tables, chains, rules, sets, flow tables and elements, each after the
//! number of its list (one byte) and its length (two bytes).
#![no_main]

use gybe_netfilter::inspect::datagrams;
use gybe_netfilter::inspect::live::LiveRules;
use gybe_netfilter::model::packet::{Direction, Owner, Packet};
use gybe_netfilter::model::policy::InterfaceName;
use gybe_netfilter::model::ruleset::Transport;
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

fuzz_target!(|input: &[u8]| {
    let lists = lists(input);
    // The seventh list and those behind it are elements of further sets.
    let read = || datagrams::live_rules(|sequence| lists.get(&sequence).cloned().unwrap_or_default());
    let Ok(live) = read() else { return };
    for sentence in live.not_evaluated().iter().chain(live.notes()) {
        assert!(is_one_line(sentence), "{sentence:?}");
    }
    let again = read().expect("the same lists");
    for packet in packets() {
        assert_follows(&live, &again, &packet);
    }
});

/// The work for a packet is bounded, its path is the same at each reading, and every rule on it is one line of text.
fn assert_follows(live: &LiveRules, again: &LiveRules, packet: &Packet) {
    let trace = live.trace(packet);
    assert_eq!(trace, again.trace(packet));
    for step in trace.steps.iter().chain(&trace.decided_by) {
        assert!(is_one_line(&step.to_string()), "{step:?}");
    }
}

fn packets() -> [Packet; 3] {
    let interface = || InterfaceName::parse("eth0").expect("a name");
    let owner = Owner { uid: 1000, gid: 1000 };
    let ends = |from: &str, to: &str| (from.parse().expect("an address"), to.parse().expect("an address"));
    let v4 = ends("10.0.0.2:40000", "192.0.2.1:80");
    let v6 = ends("[fd00::2]:40000", "[2001:db8::1]:443");
    [
        Packet::first(Direction::Leaves { by: interface() }, Transport::Tcp, v4.0, v4.1).owned_by(owner),
        Packet::first(Direction::Leaves { by: interface() }, Transport::Udp, v6.0, v6.1).owned_by(owner),
        Packet::first(Direction::Arrives { by: interface() }, Transport::Tcp, v4.1, v4.0),
    ]
}

fn lists(mut bytes: &[u8]) -> BTreeMap<u32, Vec<Vec<u8>>> {
    let mut lists: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    while let Some(([list, low, high], rest)) = bytes.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (entry, behind) = rest.split_at(rest.len().min(length));
        lists.entry(u32::from(*list)).or_default().push(entry.to_vec());
        bytes = behind;
    }
    lists
}

fn is_one_line(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}
