//! A table of iptables-legacy: the first byte selects the family, 84 bytes are the reply to IPT_SO_GET_INFO, the rest are
//! the entries.
#![no_main]

use gybe_netfilter::model::ruleset::Family;
use gybe_netfilter::xt::legacy::{LegacyChain, parse};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeSet;

const INFO: usize = 84;

fuzz_target!(|input: &[u8]| {
    let Some((family, rest)) = input.split_first() else { return };
    let Some((info, entries)) = rest.split_at_checked(INFO) else { return };
    // The offset of `next_offset` in `struct ipt_entry` and `struct ip6t_entry`.
    let (family, next) = if family % 2 == 0 { (Family::V4, 90) } else { (Family::V6, 142) };
    let Some(chains) = parse(family, info, entries) else { return };
    // Every entry of the kernel is a rule, a policy, a head or a RETURN, and the last one ends the table.
    let count = |chain: &LegacyChain| chain.rules.len() + if chain.built_in.is_some() { 1 } else { 2 };
    assert_eq!(chains.iter().map(count).sum::<usize>() + 1, entries_of(entries, next), "{chains:#?}");
    let names: BTreeSet<&str> = chains.iter().map(|chain| chain.name.as_str()).collect();
    assert_eq!(names.len(), chains.len(), "two chains of one name");
    for chain in &chains {
        assert!(is_one_line(&chain.to_string()), "{chain}");
        for rule in &chain.rules {
            let text = rule.to_string();
            assert!(is_one_line(&text), "{text:?}");
        }
    }
});

fn entries_of(mut bytes: &[u8], next: usize) -> usize {
    let mut count = 0;
    while !bytes.is_empty() {
        let length = usize::from(u16::from_ne_bytes([bytes[next], bytes[next + 1]]));
        bytes = &bytes[length..];
        count += 1;
    }
    count
}

fn is_one_line(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}
