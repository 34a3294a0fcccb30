mod sets;

use super::*;
use crate::kernel::netlink::attr::Writer;
use crate::kernel::netlink::list::{Limit, List, Listed};
use crate::kernel::netlink::message::{DONE, HEADER, Header, Messages};
use crate::kernel::netlink::reply::Received;

/// What the kernel lists: the attributes of each object, after its family.
#[derive(Default)]
struct Recording {
    tables: Vec<Vec<u8>>,
    chains: Vec<Vec<u8>>,
    rules: Vec<Vec<u8>>,
    sets: Vec<Vec<u8>>,
    /// Of each set, in messages of many.
    elements: Vec<Vec<Vec<u8>>>,
    flow_tables: Vec<Vec<u8>>,
    /// Datagrams that were received.
    received: usize,
}

fn entry(family: u8, attributes: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.message(Header { kind: 0, flags: 0, sequence: 0 }, &[family, 0, 0, 7], attributes);
    writer.finish().unwrap().split_off(HEADER)
}

/// A datagram with one message.
fn datagram(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.message(Header { kind, flags: 0, sequence }, body, |_| ());
    writer.finish().unwrap()
}

fn table(name: &str, flags: u32) -> Vec<u8> {
    entry(NFPROTO_INET, |w| {
        w.text(NFTA_TABLE_NAME, name);
        w.be32(NFTA_TABLE_FLAGS, flags);
    })
}

fn chain(table: &str, name: &str, uses: u32) -> Vec<u8> {
    entry(NFPROTO_INET, |w| {
        w.text(NFTA_CHAIN_TABLE, table);
        w.text(NFTA_CHAIN_NAME, name);
        w.be32(NFTA_CHAIN_USE, uses);
    })
}

fn verdict(w: &mut Writer, code: i32, chain: &str) {
    w.nested(NFTA_DATA_VERDICT, |w| {
        w.be32(NFTA_VERDICT_CODE, code.cast_unsigned());
        w.text(NFTA_VERDICT_CHAIN, chain);
    });
}

const JUMP: i32 = -3;
const GOTO: i32 = -4;

/// A rule with a verdict.
fn rule_to(table: &str, chain: &str, code: i32, to: &str) -> Vec<u8> {
    entry(NFPROTO_INET, |w| {
        w.text(NFTA_RULE_TABLE, table);
        w.text(NFTA_RULE_CHAIN, chain);
        w.nested(NFTA_RULE_EXPRESSIONS, |w| {
            w.nested(NFTA_LIST_ELEM, |w| {
                w.text(NFTA_EXPR_NAME, "immediate");
                w.nested(NFTA_EXPR_DATA, |w| w.nested(NFTA_IMMEDIATE_DATA, |w| verdict(w, code, to)));
            });
        });
    })
}

fn rule(chain: &str) -> Vec<u8> {
    rule_to("t", chain, -1, "")
}

fn set_of(name: &str, flags: u32, length: u32) -> Vec<u8> {
    described_set(name, flags, length, &[])
}

/// A set whose key has parts of these lengths; none for a key that is not concatenated.
fn described_set(name: &str, flags: u32, length: u32, parts: &[u32]) -> Vec<u8> {
    const PARTS: u16 = 2;
    const LENGTH: u16 = 1;
    entry(NFPROTO_INET, |w| {
        w.text(NFTA_SET_TABLE, "t");
        w.text(NFTA_SET_NAME, name);
        w.be32(NFTA_SET_FLAGS, flags);
        w.be32(NFTA_SET_KEY_LEN, length);
        w.nested(NFTA_SET_DESC, |w| {
            w.nested(PARTS, |w| {
                parts.iter().for_each(|part| w.nested(NFTA_LIST_ELEM, |w| w.be32(LENGTH, *part)));
            });
        });
    })
}

/// One message with these elements.
fn elements_of(each: impl IntoIterator<Item = impl FnOnce(&mut Writer)>) -> Vec<u8> {
    entry(NFPROTO_INET, |w| {
        w.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |w| {
            each.into_iter().for_each(|one| w.nested(NFTA_LIST_ELEM, one));
        });
    })
}

fn key(kind: u16, bytes: &[u8]) -> impl FnOnce(&mut Writer) + use<> {
    let bytes = bytes.to_vec();
    move |w| w.nested(kind, |w| w.attr(NFTA_DATA_VALUE, &bytes))
}

/// Messages with so many elements together, a thousand in each.
fn many(elements: usize) -> Vec<Vec<u8>> {
    let all: Vec<u32> = (0..elements).map(|n| n.try_into().unwrap()).collect();
    let message =
        |some: &[u32]| elements_of(some.iter().map(|number| key(NFTA_SET_ELEM_KEY, &number.to_be_bytes())));
    all.chunks(1000).map(message).collect()
}

impl Recording {
    /// Reads the namespace, each message in a datagram of its own, as long as the list takes more.
    fn read(&mut self) -> Result<NamespaceRules, NftError> {
        let mut sets = self.elements.iter().cycle();
        let (tables, chains, rules) = (&self.tables, &self.chains, &self.rules);
        let (lists, flow_tables, received) = (&self.sets, &self.flow_tables, &mut self.received);
        read_by(&mut |request, sequence, limit: Limit| {
            let kind = Messages(request).next().unwrap().unwrap().header.kind;
            let entries = match kind - (NFNL_SUBSYS_NFTABLES << 8) {
                NFT_MSG_GETTABLE => tables,
                NFT_MSG_GETCHAIN => chains,
                NFT_MSG_GETRULE => rules,
                NFT_MSG_GETSET => lists,
                NFT_MSG_GETFLOWTABLE => flow_tables,
                NFT_MSG_GETSETELEM => sets.next().unwrap(),
                other => panic!("a request of kind {other}"),
            };
            let mut list = List::of(sequence, limit);
            let entries = entries.iter().map(|entry| datagram(0xa00, sequence, entry));
            for datagram in entries.chain([datagram(DONE, sequence, &[0; 4])]) {
                if list.is_complete() {
                    break;
                }
                *received += 1;
                list.add(Received::Datagram(&datagram));
            }
            Ok::<Listed, _>(list.outcome())
        })
    }
}

/// Recorded objects, their number, and the name of their list in the error.
type Case = (fn(usize) -> Recording, usize, &'static str);

#[test]
fn a_namespace_at_a_limit_is_read_and_with_one_object_more_it_is_not() {
    let cases: [Case; 7] = [
        (
            |count| Recording {
                tables: (0..count).map(|n| table(&n.to_string(), 0)).collect(),
                ..Recording::default()
            },
            20_000,
            "tables",
        ),
        (
            |count| Recording {
                chains: (0..count).map(|n| chain("t", &n.to_string(), 0)).collect(),
                ..Recording::default()
            },
            20_000,
            "chains",
        ),
        (
            |count| Recording {
                chains: vec![chain("t", "c", count.try_into().unwrap())],
                rules: vec![rule("c"); count],
                ..Recording::default()
            },
            20_000,
            "rules",
        ),
        (
            |count| Recording {
                sets: (0..count).map(|n| set_of(&n.to_string(), 0, 4)).collect(),
                elements: vec![Vec::new()],
                ..Recording::default()
            },
            2_000,
            "sets",
        ),
        (
            |count| Recording {
                sets: vec![set_of("s", 0, 4)],
                elements: vec![many(count)],
                ..Recording::default()
            },
            100_000,
            "elements of sets",
        ),
        // Two sets share the limit.
        (
            |count| Recording {
                sets: vec![set_of("s", 0, 4), set_of("t", 0, 4)],
                elements: vec![many(60_000), many(count - 60_000)],
                ..Recording::default()
            },
            100_000,
            "elements of sets",
        ),
        // All lists share 16 MiB. A table with its user data has 65,524 bytes here, and another list has the last byte.
        (
            |count| Recording {
                tables: vec![entry(NFPROTO_INET, |w| w.attr(6, &[0; 65_516])); Limit::BYTES / 65_524],
                flow_tables: vec![[&[1, 0, 0, 7], &vec![0; Limit::BYTES % 65_524 + count - 5][..]].concat()],
                ..Recording::default()
            },
            1,
            "flow tables",
        ),
    ];
    for (recording, most, list) in cases {
        let mut whole = recording(most);
        assert!(whole.read().is_ok(), "{most} {list}");
        let mut larger = recording(most + 1);
        let error = larger.read().unwrap_err();
        assert!(matches!(error, NftError::TooLarge { what, .. } if what == list), "{list}: {error}");
    }
}

#[test]
fn the_rest_of_a_list_that_is_too_large_is_not_received() {
    let mut recording =
        Recording { sets: vec![set_of("s", 0, 4)], elements: vec![many(1_000_000)], ..Recording::default() };
    assert!(matches!(recording.read(), Err(NftError::TooLarge { .. })));
    // The ends of three empty lists, a set and the end of its list, the end of an empty list, and 101 messages.
    assert_eq!(recording.received, 3 + 2 + 1 + 101);
}

/// The kernel ends a list before a rule that is longer than its datagram, without an error.
#[test]
fn a_chain_that_has_more_uses_than_the_kernel_lists_makes_the_rules_incomplete() {
    let map = |of: u8, code, to: &'static str| {
        elements_of([move |w: &mut Writer| {
            key(NFTA_SET_ELEM_KEY, &[of; 4])(w);
            w.nested(NFTA_SET_ELEM_DATA, |w| verdict(w, code, to));
        }])
    };
    let read = |uses: [u32; 2], rules: &[Vec<u8>], elements: &[Vec<u8>]| {
        Recording {
            tables: vec![table("t", 0)],
            chains: vec![chain("t", "first", uses[0]), chain("t", "second", uses[1])],
            rules: rules.to_vec(),
            sets: vec![set_of("map", 8, 4)],
            elements: vec![elements.to_vec()],
            ..Recording::default()
        }
        .read()
    };
    let jump = || rule_to("t", "first", JUMP, "second");
    let both = [map(0, JUMP, "second"), map(1, GOTO, "second")];
    for (uses, rules, elements, is_whole) in [
        ([0, 0], &[][..], &[][..], true),
        ([1, 0], &[rule("first")], &[], true),
        ([2, 0], &[rule("first")], &[], false),
        ([1, 1], &[rule("first")], &[], false),
        ([0, 0], &[rule("first")], &[], false),
        ([1, 1], &[jump()], &[], true),
        ([1, 2], &[jump()], &[], false),
        ([1, 2], &[jump()], &both[..1], true),
        ([1, 3], &[jump()], &both, true),
        // Neither rules nor verdicts of another table are uses.
        ([1, 1], &[jump(), rule_to("other", "first", JUMP, "second")], &[], true),
    ] {
        match read(uses, rules, elements) {
            Ok(_) => assert!(is_whole, "{uses:?}"),
            Err(NftError::Incomplete { chain }) => {
                assert!(!is_whole && chain.starts_with("inet t "), "{uses:?}: {chain}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// As while the kernel enlarges the hash table of a set.
#[test]
fn f25_a_set_with_one_element_twice_is_read_again_and_then_refused() {
    let element = || elements_of([key(NFTA_SET_ELEM_KEY, &[7; 4])]);
    for (elements, is_read) in [(vec![element()], true), (vec![element(), element()], false)] {
        let mut recording =
            Recording { sets: vec![set_of("s", 0, 4)], elements: vec![elements], ..Recording::default() };
        let read = recording.read();
        assert_eq!(read.is_ok(), is_read, "{read:?}");
        assert!(is_read || matches!(read, Err(NftError::KeptChanging { .. })), "{read:?}");
    }
}

#[test]
fn the_rules_of_a_dormant_table_are_left_out_and_a_flow_table_is_named() {
    for (flags, chains) in [(0, 1), (1, 0), (2, 1)] {
        let mut recording = Recording {
            tables: vec![table("t", flags)],
            chains: vec![chain("t", "c", 1)],
            rules: vec![rule("c")],
            flow_tables: vec![entry(NFPROTO_INET, |w| {
                w.text(1, "t");
                w.text(2, "fast");
            })],
            ..Recording::default()
        };
        let found = recording.read().unwrap();
        assert_eq!(found.chains.len(), chains, "flags {flags}");
        assert_eq!(found.chains.iter().map(|chain| chain.rules.len()).sum::<usize>(), chains);
        assert_eq!(found.opaque, ["flow table t fast: packets of known connections pass no hook"]);
    }
}

/// A chain at another hook, or of another family, may drop what never reaches ours.
#[test]
fn a_base_chain_has_its_policy_and_one_that_is_not_evaluated_is_named_if_it_does_something() {
    const INPUT: u32 = 1;
    const INGRESS: u32 = 5;
    let base = |hook: u32, policy: u32, uses: u32| {
        entry(NFPROTO_INET, |w| {
            w.text(NFTA_CHAIN_TABLE, "t");
            w.text(NFTA_CHAIN_NAME, "c");
            w.be32(NFTA_CHAIN_USE, uses);
            w.text(NFTA_CHAIN_TYPE, "filter");
            w.be32(NFTA_CHAIN_POLICY, policy);
            w.nested(NFTA_CHAIN_HOOK, |w| {
                w.be32(NFTA_HOOK_HOOKNUM, hook);
                w.be32(NFTA_HOOK_PRIORITY, 0);
            });
        })
    };
    let read = |hook, policy, uses| {
        let rules = (0..uses).map(|_| rule("c")).collect();
        let chains = vec![base(hook, policy, uses)];
        Recording { tables: vec![table("t", 0)], chains, rules, ..Recording::default() }.read().unwrap()
    };
    for drops in [false, true] {
        let policy = if drops { NF_DROP } else { NF_ACCEPT };
        let found = read(INPUT, policy, 0);
        assert_eq!(found.chains[0].base.as_ref().map(|base| base.drops), Some(drops));
        for (uses, is_named) in [(0, drops), (1, true)] {
            let found = read(INGRESS, policy, uses);
            assert_eq!(
                (found.chains.len(), found.opaque.len()),
                (0, usize::from(is_named)),
                "{drops} {uses}"
            );
        }
    }
}
