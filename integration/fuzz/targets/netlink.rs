//! Replies of the kernel: the first byte selects the request, then datagrams follow, each after its length (two bytes).
#![no_main]

use gybe_netfilter::compile::compile;
use gybe_netfilter::inspect::datagrams;
use gybe_netfilter::model::policy::{Families, RedirectPolicy};
use gybe_netfilter::nft::{Batch, Start};
use libfuzzer_sys::fuzz_target;

/// `NLMSG_ERROR`, which also acknowledges, and `NLM_F_ACK` (include/uapi/linux/netlink.h).
const ERROR: u16 = 2;
const ACK: u16 = 4;

/// A header, the errno, and the header of the acknowledged message.
const ACKNOWLEDGEMENT: usize = 16 + 4 + 16;

fuzz_target!(|input: &[u8]| {
    let Some((to, rest)) = input.split_first() else { return };
    let datagrams = datagrams(rest);
    match to % 4 {
        0 => batch(&datagrams),
        1 => inventory(&datagrams),
        2 => {
            for other in
                datagrams::presence(&datagrams).into_iter().flat_map(|presence| presence.other_meshes)
            {
                assert!(!other.to_string().is_empty());
            }
        }
        _ => {
            let received: usize = datagrams.iter().map(Vec::len).sum();
            let addresses = datagrams::addresses(&datagrams).unwrap_or_default();
            // An address takes a header of 16 bytes, one of 8, and an attribute of 8 at least.
            assert!(addresses.len() * 32 <= received, "{} addresses in {received} bytes", addresses.len());
        }
    }
});

fn datagrams(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let (datagram, behind) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
        all.push(datagram.to_vec());
        bytes = behind;
    }
    all
}

/// A batch counts as written only when the kernel acknowledged its last message and refused none.
fn batch(datagrams: &[Vec<u8>]) {
    let rules = compile(&RedirectPolicy::injected(Families::V4AndV6));
    let batch = Batch::apply(&rules, Start::Fresh).expect("the default");
    let slices: Vec<&[u8]> = datagrams.iter().map(Vec::as_slice).collect();
    if datagrams::batch(&batch, &slices).is_err() {
        return;
    }
    let acknowledges = |message: &[u8]| {
        let errno = i32::from_ne_bytes([message[16], message[17], message[18], message[19]]);
        half(message, 4) == ERROR && errno == 0 && message[28..32] == last(batch.bytes())
    };
    let acknowledged = datagrams.iter().any(|datagram| datagram.windows(ACKNOWLEDGEMENT).any(acknowledges));
    assert!(acknowledged, "without an acknowledgement: {datagrams:x?}");
}

/// The sequence number of the message that requests an acknowledgement.
fn last(mut batch: &[u8]) -> [u8; 4] {
    while half(batch, 6) & ACK == 0 {
        let length = u32::from_ne_bytes([batch[0], batch[1], batch[2], batch[3]]);
        batch = &batch[usize::try_from(length).expect("a length").next_multiple_of(4)..];
    }
    [batch[8], batch[9], batch[10], batch[11]]
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

/// An inventory that is parsed does not differ from itself.
fn inventory(datagrams: &[Vec<u8>]) {
    let mut left = datagrams.iter().cloned();
    // Each list in two datagrams, as kernels send them: its entries, then its end.
    if let Ok(inventory) = datagrams::inventory(|_| left.by_ref().take(2).collect()) {
        assert!(inventory.differences(&inventory).is_empty(), "{inventory:?}");
    }
}
