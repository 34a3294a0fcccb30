use super::*;

/// An entry of IPv4 without header tests: these matches, this target, flags 0.
fn entry(matches: &[Vec<u8>], target: &[u8]) -> Vec<u8> {
    let matches = matches.concat();
    let mut entry = vec![0; V4.size];
    let sizes = [V4.size + matches.len(), V4.size + matches.len() + target.len()];
    entry[V4.target_offset..V4.target_offset + 2]
        .copy_from_slice(&u16::try_from(sizes[0]).unwrap().to_ne_bytes());
    entry[V4.target_offset + 2..V4.target_offset + 4]
        .copy_from_slice(&u16::try_from(sizes[1]).unwrap().to_ne_bytes());
    [entry, matches, target.to_vec()].concat()
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

/// A table of one built-in chain and one user chain, with a target in each.
fn table(name: &str, jump: usize) -> Vec<u8> {
    let entries = [
        entry(&[extension("comment", b"why\0")], &standard(jump.try_into().unwrap())),
        entry(&[], &standard(-2)),
        entry(&[], &error(name)),
        entry(&[], &standard(-1)),
        entry(&[], &standard(-5)),
        entry(&[], &error("ERROR")),
    ];
    entries.concat()
}

fn info(bytes: &[u8]) -> Info {
    Info { hooks: 1 << 3, begins: [0; 5], size: bytes.len().try_into().unwrap() }
}

/// The offset of the user chain's first rule.
fn first_rule_offset() -> usize {
    let lengths = [
        entry(&[extension("comment", b"why\0")], &standard(0)),
        entry(&[], &standard(0)),
        entry(&[], &error("")),
    ];
    lengths.iter().map(Vec::len).sum()
}

#[test]
fn chains_end_before_their_policies_and_jumps_have_names() {
    let bytes = table("MINE", first_rule_offset());
    let chains = chains(Family::V4, &info(&bytes), &bytes).unwrap();
    let lines: Vec<String> = chains
        .iter()
        .flat_map(|chain| chain.rules.iter().map(move |rule| format!("{}{rule}", chain.name)))
        .collect();
    assert_eq!(lines, ["OUTPUT -m comment --comment why -j MINE", "MINE -j DROP"]);
    assert_eq!(chains[0].built_in.as_ref().unwrap().policy, XtTarget::Accept);
    assert!(chains[1].built_in.is_none());
}

#[test]
fn a_chains_name_is_one_word() {
    let bytes = table("A B\n-j", first_rule_offset());
    let chains = chains(Family::V4, &info(&bytes), &bytes).unwrap();
    assert_eq!(chains[1].name, r"A\x20B\x0a-j");
}

#[test]
fn entries_that_contradict_each_other_are_refused() {
    let whole = table("MINE", first_rule_offset());
    assert!(
        chains(Family::V4, &info(&whole), &table("MINE", first_rule_offset() + 1)).is_none(),
        "a jump to nowhere"
    );
    for length in (1..whole.len()).filter(|length| *length != first_rule_offset()) {
        let cut = &whole[..length];
        let read = chains(Family::V4, &info(cut), cut);
        assert!(read.is_none() || whole.len() - length < 400, "cut to {length}: {read:?}");
    }
}

#[test]
fn any_byte_may_be_another_without_a_panic() {
    let whole = table("MINE", first_rule_offset());
    for at in 0..whole.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            for family in [Family::V4, Family::V6] {
                for chain in chains(family, &info(&bytes), &bytes).into_iter().flatten() {
                    assert!(chain.to_string().is_ascii());
                }
            }
        }
    }
}
