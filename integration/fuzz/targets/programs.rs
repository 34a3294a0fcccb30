//! Entries of the kernel's lists of functions at netfilter's hooks, queueing disciplines, filters and eBPF programs.
#![no_main]

use gybe_netfilter::inspect::datagrams::programs;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    for name in programs(input) {
        // A name is printed on one line, and is no longer than its entry with every byte escaped.
        assert!(name.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{name:?}");
        assert!(name.len() <= 4 * input.len() + 10, "{name:?}");
    }
});
