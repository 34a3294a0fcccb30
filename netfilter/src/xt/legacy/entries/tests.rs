use super::*;

/// An entry without header tests, flags 0: these matches, this target.
fn entry_of(layout: &TableEntryLayout, matches: &[Vec<u8>], target: &[u8]) -> Vec<u8> {
    let matches = matches.concat();
    let mut entry = vec![0; layout.size];
    let sizes = [layout.size + matches.len(), layout.size + matches.len() + target.len()];
    for (at, size) in [(layout.target_offset, sizes[0]), (layout.next_offset, sizes[1])] {
        entry[at..at + 2].copy_from_slice(&u16::try_from(size).unwrap().to_ne_bytes());
    }
    [entry, matches, target.to_vec()].concat()
}

fn entry(matches: &[Vec<u8>], target: &[u8]) -> Vec<u8> {
    entry_of(&V4, matches, target)
}

fn extension(name: &str, data: &[u8]) -> Vec<u8> {
    let mut head = vec![0; EXTENSION];
    head[..2].copy_from_slice(&u16::try_from(EXTENSION + data.len()).unwrap().to_ne_bytes());
    head[2..2 + name.len()].copy_from_slice(name.as_bytes());
    [head, data.to_vec()].concat()
}

fn standard(verdict: i32) -> Vec<u8> {
    extension("", &[verdict.to_ne_bytes(), [0; 4]].concat())
}

fn error(name: &str) -> Vec<u8> {
    let mut data = name.as_bytes().to_vec();
    data.resize(EXTENSION, 0);
    extension("ERROR", &data)
}

const ACCEPT: i32 = -2;
const DROP: i32 = -1;
const RETURN: i32 = -5;

fn rule(verdict: i32) -> Vec<u8> {
    entry(&[], &standard(verdict))
}

/// An entry with a match, so that not every packet passes it.
fn commented(verdict: i32) -> Vec<u8> {
    entry(&[extension("comment", b"why\0")], &standard(verdict))
}

fn head(name: &str) -> Vec<u8> {
    entry(&[], &error(name))
}

/// The offset of the entry at this index.
fn offset(entries: &[Vec<u8>], index: usize) -> u32 {
    entries[..index].iter().map(Vec::len).sum::<usize>().try_into().unwrap()
}

/// A table with a chain at OUTPUT, whose policy is the entry at index `policy`.
fn read_with_policy(entries: &[Vec<u8>], policy: usize) -> Option<Vec<LegacyChain>> {
    let (bytes, mut underflows) = (entries.concat(), [0; 5]);
    underflows[3] = offset(entries, policy);
    let size = bytes.len().try_into().unwrap();
    chains(Family::V4, &Info { hooks: 1 << 3, begins: [0; 5], underflows, size }, &bytes)
}

/// A table of one built-in chain of two entries, and one user chain, with a target in each.
fn table(name: &str) -> Vec<Vec<u8>> {
    let mut entries = vec![commented(0), rule(ACCEPT), head(name), rule(DROP), rule(RETURN), head("ERROR")];
    entries[0] = commented(offset(&entries, 3).try_into().unwrap());
    entries
}

/// The same with other entries in place of those of a range.
fn with(range: std::ops::Range<usize>, others: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut entries = table("MINE");
    entries.splice(range, others.iter().cloned());
    // The offset of the user chain changes when others are before it.
    let mine = entries.iter().position(|entry| *entry == head("MINE")).map_or(0, |at| at + 1);
    entries[0] = commented(offset(&entries, mine).try_into().unwrap());
    entries
}

#[test]
fn chains_end_before_their_policies_and_jumps_have_names() {
    let chains = read_with_policy(&table("MINE"), 1).unwrap();
    let lines: Vec<String> = chains
        .iter()
        .flat_map(|chain| chain.rules.iter().map(move |rule| format!("{}{rule}", chain.name)))
        .collect();
    assert_eq!(lines, ["OUTPUT -m comment --comment why -j MINE", "MINE -j DROP"]);
    assert_eq!(chains[0].built_in.as_ref().unwrap().policy, XtTarget::Accept);
    assert!(chains[1].built_in.is_none());
}

#[test]
fn a_chains_name_is_one_word_and_different_names_stay_different() {
    for (name, word) in [("A B\n-j", r"A\x20B\n-j"), (r"A\x20B", r"A\\x20B")] {
        assert_eq!(read_with_policy(&table(name), 1).unwrap()[1].name, word);
    }
}

/// The kernel accepts most of these (`IPT_SO_SET_REPLACE`), and iptables writes none. A reader that takes the last
/// entry of a chain for its RETURN or policy loses a rule.
#[test]
fn a_table_that_chains_cannot_express_is_malformed_as_a_whole() {
    let jump = |to: u32| rule(to.try_into().unwrap());
    let whole = table("MINE");
    let drops = || rule(DROP);
    // A header test: protocol 6.
    let mut conditional = rule(RETURN);
    conditional[V4.protocol] = 6;
    let mut conditional_head = head("MINE");
    conditional_head[V4.protocol] = 6;
    for (wrong, entries, policy) in [
        ("a user chain that ends with another verdict", with(4..5, &[]), 1),
        ("a user chain that runs on into the next", with(4..5, &[drops(), head("NEXT"), rule(RETURN)]), 1),
        ("a user chain whose RETURN has a test", with(4..5, &[conditional]), 1),
        ("a user chain whose RETURN has a match", with(4..5, &[commented(RETURN)]), 1),
        ("a user chain that ends with its head", with(3..5, &[]), 1),
        ("a last user chain without RETURN", with(4..6, &[head("ERROR")]), 1),
        ("a head that not every packet passes", with(2..3, &[conditional_head]), 1),
        ("two user chains of one name", with(2..2, &[head("MINE"), drops(), rule(RETURN)]), 1),
        ("a user chain with a built-in chain's name", with(2..2, &[head("OUTPUT"), rule(RETURN)]), 1),
        ("entries behind the policy", with(2..2, &[drops(), rule(ACCEPT)]), 1),
        ("a policy that is another entry", with(1..2, &[rule(ACCEPT), rule(ACCEPT)]), 1),
        ("a policy in another chain", table("MINE"), 3),
        ("a policy that returns", with(1..2, &[rule(RETURN)]), 1),
        ("a policy with a match", with(1..2, &[commented(ACCEPT)]), 1),
        ("a jump to a built-in chain", with(3..4, &[jump(0)]), 1),
        ("a jump to a head", with(3..4, &[jump(offset(&whole, 2))]), 1),
        ("a jump to the middle of a chain", with(4..4, &[drops(), jump(offset(&whole, 4))]), 1),
        ("a jump to the middle of an entry", with(3..4, &[jump(offset(&whole, 3) + 8)]), 1),
        ("a jump behind the end", with(3..4, &[jump(offset(&whole, 6))]), 1),
        ("no last ERROR", with(5..6, &[]), 1),
        (
            "a last ERROR that not every packet passes",
            with(5..6, &[entry(&[extension("comment", b"\0\0\0\0")], &error("ERROR"))]),
            1,
        ),
        ("no entries", Vec::new(), 0),
    ] {
        assert_eq!(read_with_policy(&entries, policy), None, "{wrong}");
    }
}

#[test]
fn a_hook_without_a_chain_of_its_own_makes_the_table_malformed() {
    let bytes = table("MINE").concat();
    let size = bytes.len().try_into().unwrap();
    let policy = offset(&table("MINE"), 1);
    for (hooks, begins, is_read) in [
        (1 << 3, [0; 5], true),
        // The kernel does not clear the offsets of other hooks.
        (1 << 3, [7, 7, 7, 0, 7], true),
        (0b1010, [0; 5], false),
        (0b1010, [0, 4, 0, 0, 0], false),
        (0b1010, [0, offset(&table("MINE"), 2), 0, 0, 0], false),
        (0b1010, [0, size, 0, 0, 0], false),
        (0, [0; 5], false),
    ] {
        let info = Info { hooks, begins, underflows: [policy; 5], size };
        assert_eq!(chains(Family::V4, &info, &bytes).is_some(), is_read, "{hooks:b} {begins:?}");
    }
}

#[test]
fn a_table_that_is_cut_anywhere_is_malformed() {
    let whole = table("MINE").concat();
    let size = whole.len().try_into().unwrap();
    let underflows = [offset(&table("MINE"), 1); 5];
    for length in 1..whole.len() {
        let info = Info { hooks: 1 << 3, begins: [0; 5], underflows, size };
        assert_eq!(chains(Family::V4, &info, &whole[..length]), None, "cut to {length}");
    }
}

/// Header tests that iptables cannot write, and that hide a rule when they are taken for what they resemble.
#[test]
fn header_tests_that_differ_from_what_they_resemble_are_unknown() {
    /// A number of two bytes is in host byte order.
    fn rule_with(layout: &TableEntryLayout, bytes: &[(usize, u8)]) -> Vec<u8> {
        let mut entry = entry_of(layout, &[], &standard(DROP));
        bytes.iter().for_each(|(at, byte)| entry[*at] = *byte);
        entry
    }
    let read = |family: Family, bytes: &[(usize, u8)]| {
        let layout = if family == Family::V4 { &V4 } else { &V6 };
        let entries = [
            rule_with(layout, bytes),
            entry_of(layout, &[], &standard(ACCEPT)),
            entry_of(layout, &[], &error("ERROR")),
        ];
        let underflow = entries[0].len().try_into().unwrap();
        let bytes = entries.concat();
        let size = bytes.len().try_into().unwrap();
        let info = Info { hooks: 1 << 3, begins: [0; 5], underflows: [underflow; 5], size };
        chains(family, &info, &bytes).unwrap()[0].rules[0].to_string()
    };
    // The source mask follows both addresses; the in-interface follows both masks.
    let (mask_v4, name_v4, name_mask_v4) = (8, 16, 48);
    let protocol_v6 = |byte: u8| (V6.protocol, byte);
    for (family, bytes, text) in [
        (Family::V4, &[][..], " -j DROP"),
        (Family::V4, &[(0, 10), (mask_v4, 255)], " -s 10.0.0.0/8 -j DROP"),
        // `ip_packet_match` compares all bits of the rule's address.
        (Family::V4, &[(0, 10), (1, 1), (mask_v4, 255)], " -m address-mask [unknown] -j DROP"),
        (Family::V4, &[(3, 1)], " -m address-mask [unknown] -j DROP"),
        (Family::V4, &[(V4.flags, 1)], " -f -j DROP"),
        (Family::V4, &[(V4.flags, 1), (V4.invflags, 0x20)], " ! -f -j DROP"),
        (Family::V4, &[(V4.invflags, 0x20)], " -m fragment [unknown] -j DROP"),
        (Family::V4, &[(name_v4, b'e'), (name_mask_v4, 255)], " -i e+ -j DROP"),
        (Family::V4, &[(name_v4, b'e'), (name_mask_v4, 255), (name_mask_v4 + 1, 255)], " -i e -j DROP"),
        (
            Family::V4,
            &[
                (name_v4, b'e'),
                (name_v4 + 2, 1),
                (name_mask_v4, 255),
                (name_mask_v4 + 1, 255),
                (name_mask_v4 + 2, 255),
            ],
            " -m interface-mask [unknown] -j DROP",
        ),
        (Family::V4, &[(name_v4, b'e'), (name_mask_v4, 0x7f)], " -m interface-mask [unknown] -j DROP"),
        (Family::V4, &[(V4.protocol, 6)], " -p tcp -j DROP"),
        (Family::V6, &[protocol_v6(6), (V6.flags, 1)], " -p tcp -j DROP"),
        // Without the flag, and with protocol 0, every packet passes (`ip6_packet_match`).
        (Family::V6, &[protocol_v6(6)], " -m protocol [unknown] -j DROP"),
        (Family::V6, &[(V6.flags, 1)], " -j DROP"),
        (Family::V6, &[(V6.flags, 1), (V6.invflags, 0x40)], " -j DROP"),
        (Family::V6, &[(V6.flags, 2)], " -m tos [unknown] -j DROP"),
    ] {
        assert_eq!(read(family, bytes), text, "{bytes:?}");
    }
}

#[test]
fn any_byte_may_be_another_without_a_panic_or_a_lost_entry() {
    let entries = table("MINE");
    let whole = entries.concat();
    for at in 0..whole.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            let size = bytes.len().try_into().unwrap();
            let info = Info { hooks: 1 << 3, begins: [0; 5], underflows: [offset(&entries, 1); 5], size };
            for family in [Family::V4, Family::V6] {
                let Some(chains) = chains(family, &info, &bytes) else { continue };
                assert!(chains.iter().all(|chain| chain.to_string().is_ascii()));
                // A built-in chain has its rules and a policy, a user chain a head, its rules and a RETURN.
                let count =
                    |chain: &LegacyChain| chain.rules.len() + 2 - usize::from(chain.built_in.is_some());
                assert_eq!(chains.iter().map(count).sum::<usize>() + 1, entries.len(), "byte {at} is {byte}");
            }
        }
    }
}
